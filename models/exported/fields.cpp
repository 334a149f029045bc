#include "models/exported/fields.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "runtime/base/text.h"

namespace millrace {
namespace {

struct UserInput {
  std::string name;
  const ExportedTensor* tensor;
};

std::string advice_for(const std::vector<UserInput>& inputs) {
  std::string each;
  for (std::size_t i = 0; i < inputs.size(); ++i) each += "{0: torch.export.Dim.DYNAMIC}, ";
  return "export with a dynamic batch dimension: torch.export.export(model, args, dynamic_shapes=(" + each +
         "))";
}

/// Returns the dimension, 0 or 1, that is dynamic in every input and has the same length in the example.
std::optional<int> common_batch_dimension(const ExportedProgram& program,
                                          const std::vector<UserInput>& inputs) {
  for (std::size_t place = 0; place < 2; ++place) {
    std::set<std::int64_t> hints;
    const bool everywhere = std::ranges::all_of(inputs, [&](const UserInput& input) {
      if (input.tensor->sizes.size() <= place || !input.tensor->sizes[place].is_symbol()) return false;
      const auto hint = program.hints.find(input.tensor->sizes[place].symbol());
      hints.insert(hint == program.hints.end() ? 0 : hint->second);
      return true;
    });
    if (everywhere && hints.size() == 1) return static_cast<int>(place);
  }
  // A batch dimension that was frozen at the export: the layers refuse other sizes.
  std::set<std::int64_t> sizes;
  const bool frozen = std::ranges::all_of(inputs, [&](const UserInput& input) {
    if (input.tensor->sizes.empty() || !input.tensor->sizes[0].is_number()) return false;
    sizes.insert(input.tensor->sizes[0].number());
    return true;
  });
  return frozen && sizes.size() == 1 ? std::optional(0) : std::nullopt;
}

/// Returns whether `length` is fixed at place `d` in one input and dynamic there in another, with the same
/// size in the example.
bool is_frozen(const ExportedProgram& program, const std::vector<UserInput>& inputs, std::size_t d,
               std::int64_t length) {
  bool fixed = false, dynamic = false;
  for (const UserInput& input : inputs) {
    if (input.tensor->sizes.size() <= d) continue;
    const SizeExpression& size = input.tensor->sizes[d];
    fixed = fixed || (size.is_number() && size.number() == length);
    const auto hint = program.hints.find(size.symbol());
    dynamic = dynamic || (size.is_symbol() && hint != program.hints.end() && hint->second == length);
  }
  return fixed && dynamic;
}

/// Returns whether a call has the length among its arguments, or makes as many tensors. Then the calls would
/// be wrong for other lengths.
bool is_named(const FlatProgram& flat, std::int64_t length) {
  return std::ranges::any_of(flat.calls, [&](const FlatCall& call) {
    const auto is_length = [&](const SizeExpression& s) { return s.is_number() && s.number() == length; };
    return std::ranges::any_of(
               call.arguments,
               [&](const auto& a) { return std::ranges::any_of(a.second.sizes, is_length); }) ||
           std::ranges::any_of(call.outputs, [&](const ExportedArgument& output) {
             return static_cast<std::int64_t>(output.names.size()) == length;
           });
  });
}

constexpr std::int64_t kIgnored = -100;  // by default, as in PyTorch

bool is_cross_entropy(const FlatCall& call) {
  return call.op == "aten::cross_entropy_loss" || call.op == "aten::nll_loss" ||
         call.op == "aten::nll_loss_nd";
}

/// Returns an integer argument; `otherwise`: it is left out or no number.
std::int64_t integer_of(const FlatCall& call, const char* name, std::int64_t otherwise) {
  const ExportedArgument* argument = call.argument(name);
  const bool known = argument && argument->kind == ExportedArgument::Kind::Int && !argument->sizes.empty() &&
                     argument->sizes[0].is_number();
  return known ? argument->sizes[0].number() : otherwise;
}

/// The part of its labels that a call keeps.
enum class Keeps { All, AllReshaped, Slice, AllAndPadding, Some };
const std::map<std::string, Keeps> kKeeps{{"aten::to", Keeps::All},
                                          {"aten::_to_copy", Keeps::All},
                                          {"aten::contiguous", Keeps::All},
                                          {"aten::clone", Keeps::All},
                                          {"aten::alias", Keeps::All},
                                          {"aten::detach", Keeps::All},
                                          {"aten::lift_fresh_copy", Keeps::All},
                                          {"aten::view", Keeps::AllReshaped},
                                          {"aten::reshape", Keeps::AllReshaped},
                                          {"aten::flatten", Keeps::AllReshaped},
                                          {"aten::unsqueeze", Keeps::AllReshaped},
                                          {"aten::squeeze", Keeps::AllReshaped},
                                          {"aten::t", Keeps::AllReshaped},
                                          {"aten::transpose", Keeps::AllReshaped},
                                          {"aten::permute", Keeps::AllReshaped},
                                          {"aten::slice", Keeps::Slice},
                                          {"aten::constant_pad_nd", Keeps::AllAndPadding},
                                          {"aten::pad", Keeps::AllAndPadding},
                                          {"aten::select", Keeps::Some},
                                          {"aten::expand", Keeps::Some}};

/// Follows values back to the fields that they are made of.
class Origins {
 public:
  Origins(const FlatProgram& flat, const std::vector<FieldSpec>& fields) : flat_(flat), fields_(fields) {
    for (const FlatCall& call : flat.calls)
      for (const std::string& value : call.makes()) makers_.emplace(value, &call);
  }
  const FieldSpec* field(const std::string& value) const {
    const auto found = std::ranges::find(fields_, value, &FieldSpec::name);
    return found == fields_.end() ? nullptr : &*found;
  }
  /// Returns the call before `reader` that makes the value; null: there is none.
  const FlatCall* maker(const std::string& value, const FlatCall* reader) const {
    const auto found = makers_.find(value);
    return found == makers_.end() || found->second >= reader ? nullptr : found->second;
  }
  /// Returns the field whose values `reader` gets as `value`, through calls that each read one tensor and
  /// make one. `calls` gets them in order. Null: it gets others.
  const FieldSpec* source(std::string value, const FlatCall* reader,
                          std::vector<const FlatCall*>& calls) const {
    while (!field(value)) {
      reader = maker(value, reader);
      const std::vector<std::string> reads = reader ? reader->reads() : std::vector<std::string>();
      if (reads.size() != 1 || reader->makes().size() != 1) return nullptr;
      calls.insert(calls.begin(), reader);
      value = reads.front();
    }
    return field(value);
  }
  /// Returns where the labels of a cross-entropy may be ignored ones.
  IgnoredLabels ignored_by(const FlatCall& loss) const {
    IgnoredLabels found{.label = integer_of(loss, "ignore_index", kIgnored)};
    std::vector<std::pair<std::string, const FlatCall*>> left;
    const auto follow = [&](const std::string& value, const FlatCall* reader) {
      const auto tensor = flat_.tensors.find(value);
      const bool labels =
          tensor != flat_.tensors.end() && at::isIntegralType(scalar_type_of(tensor->second), false);
      if (labels) left.emplace_back(value, reader);  // others are masks and shares
    };
    if (const ExportedArgument* target = loss.argument("target")) follow(target->text, &loss);
    std::set<std::string> seen;
    while (!left.empty()) {
      const auto [value, reader] = left.back();
      left.pop_back();
      if (!seen.insert(value).second) continue;
      const FlatCall* made = maker(value, reader);
      if (field(value))
        found.fields.push_back(value);
      else if (!made)
        found.made = found.made || flat_.tensors.at(value).sizes.empty();  // a constant number
      else
        for (const std::string& read : made->reads()) follow(read, made);
      found.made = found.made || flat_.written_with(value) || (made && writes(*made, found.label));
    }
    return found;
  }

 private:
  /// Returns whether the call may put this number among its results.
  static bool writes(const FlatCall& call, std::int64_t number) {
    if (kKeeps.contains(call.op)) return false;  // padding adds as many labels to each sample
    if (number == 0 && call.op.find("zeros") != std::string::npos) return true;
    return std::ranges::any_of(
        std::array{"value", "fill_value", "other", "self", "s"}, [&](const char* name) {
          const ExportedArgument* argument = call.argument(name);
          return argument && (integer_of(call, name, number + 1) == number ||
                              (!argument->numbers.empty() && argument->numbers[0] == double(number)));
        });
  }

  const FlatProgram& flat_;
  const std::vector<FieldSpec>& fields_;
  std::map<std::string, const FlatCall*> makers_;
};

/// Finds the least bound of the integers in each user input, and its padding, from the calls that read it.
class Limits {
 public:
  Limits(const FlatProgram& flat, std::vector<FieldSpec>& fields)
      : flat_(flat), fields_(fields), origins_(flat, fields) {
    for (const FlatCall& call : flat.calls) look_at(call);
  }

 private:
  void look_at(const FlatCall& call) {
    if (call.op == "aten::embedding") return bound(call, "indices", rows_of(call, "weight", 0), 0);
    if (is_cross_entropy(call))
      return bound(call, "target", rows_of(call, "self", 1), integer_of(call, "ignore_index", kIgnored));
    if (call.op == "aten::one_hot") return bound(call, "self", integer_of(call, "num_classes", 0), 0);
  }

  /// Returns the size of an argument along a dimension; 0: it is not fixed.
  std::int64_t rows_of(const FlatCall& call, const char* name, std::size_t dimension) const {
    const ExportedArgument* argument = call.argument(name);
    const auto tensor = argument ? flat_.tensors.find(argument->text) : flat_.tensors.end();
    if (tensor == flat_.tensors.end()) return 0;
    const auto& sizes = tensor->second.sizes;
    return sizes.size() > dimension && sizes[dimension].is_number() ? sizes[dimension].number() : 0;
  }

  void bound(const FlatCall& call, const char* name, std::int64_t limit, std::int64_t padding) {
    const ExportedArgument* argument = call.argument(name);
    std::vector<const FlatCall*> calls;
    const FieldSpec* source = argument ? origins_.source(argument->text, &call, calls) : nullptr;
    if (!source || at::isFloatingType(source->dtype) || limit <= 0 ||
        !std::ranges::all_of(calls, [](const FlatCall* one) { return kKeeps.contains(one->op); }))
      return;
    FieldSpec& field = fields_[static_cast<std::size_t>(source - fields_.data())];
    field.limit = field.limit == 0 ? limit : std::min(field.limit, limit);
    if (padding != 0) field.padding = padding;
  }

  const FlatProgram& flat_;
  std::vector<FieldSpec>& fields_;
  Origins origins_;
};

/// Follows labels from a field through the calls that shape them.
class LabelPath {
 public:
  LabelPath(CountedLabels labels, const FieldSpec& field) : labels_(std::move(labels)), field_(field) {
    labels_.field = field.name;
    labels_.cut.resize(field.shape.size());
  }
  const CountedLabels& labels() const { return labels_; }

  /// Returns whether the call is known to keep the labels that count, but for some that it cuts off.
  bool take(const FlatCall& call) {
    const auto keeps = kKeeps.find(call.op);
    if (keeps == kKeeps.end()) return false;
    if (keeps->second == Keeps::All) return true;
    if (keeps->second == Keeps::AllReshaped) return reshaped_ = true;
    if (reshaped_) return false;  // its dimensions are no longer the field's
    return keeps->second == Keeps::Slice ? slice(call) : keeps->second == Keeps::AllAndPadding && pad(call);
  }

 private:
  using Cut = std::pair<std::int64_t, std::int64_t>;
  /// Returns what is cut off in a dimension of the tensor; null: it is the batch's, or there is none.
  Cut* cut_of(std::int64_t d) {
    const std::int64_t batch = field_.batch_dimension, dimensions = std::ssize(field_.shape) + 1;
    if (d < 0) d += dimensions;
    if (d == batch || d < 0 || d >= dimensions) return nullptr;
    return &labels_.cut[static_cast<std::size_t>(d < batch ? d : d - 1)];
  }
  bool slice(const FlatCall& call) {
    constexpr std::int64_t kUnknown = INT64_MIN, kEnd = std::int64_t{1} << 62;
    const auto bound = [&](const char* name, std::int64_t otherwise) {
      const ExportedArgument* argument = call.argument(name);
      const bool none = !argument || argument->kind == ExportedArgument::Kind::None;
      return none ? otherwise : integer_of(call, name, kUnknown);
    };
    const std::int64_t start = bound("start", 0), end = bound("end", kEnd);
    if (start < 0 || end == kUnknown || integer_of(call, "step", 1) != 1) return false;
    Cut* cut = cut_of(integer_of(call, "dim", 0));
    if (start == 0 && end >= kEnd) return true;
    if (!cut) return false;
    const std::int64_t length = field_.shape[static_cast<std::size_t>(cut - labels_.cut.data())];
    if (end >= 0 && end < kEnd && length < 0) return false;
    if (end < 0)
      cut->second -= end;
    else if (end < kEnd)
      cut->second += std::max<std::int64_t>(0, length - cut->first - cut->second - end);
    cut->first += start;
    return true;
  }
  /// Labels that are added are ignored. Nothing may be cut off there before.
  bool pad(const FlatCall& call) {
    const ExportedArgument *sizes = call.argument("pad"), *value = call.argument("value");
    const double filled = !value || value->kind == ExportedArgument::Kind::None ? 0
                          : !value->numbers.empty()
                              ? value->numbers[0]
                              : static_cast<double>(integer_of(call, "value", INT64_MIN));
    if (!sizes || filled != static_cast<double>(labels_.ignored)) return false;
    for (std::size_t i = 0; i < sizes->sizes.size(); ++i) {
      if (!sizes->sizes[i].is_number() || sizes->sizes[i].number() < 0) return false;
      const std::int64_t more = sizes->sizes[i].number();
      Cut* cut = cut_of(-1 - static_cast<std::int64_t>(i / 2));
      if (more == 0) continue;
      if (!cut) return false;
      std::int64_t& side = i % 2 == 0 ? cut->first : cut->second;
      if (side > 0) return false;
      side -= more;
    }
    return true;
  }

  CountedLabels labels_;
  const FieldSpec& field_;
  bool reshaped_ = false;
};

}  // namespace

at::ScalarType scalar_type_of(const ExportedTensor& tensor) {
  return torch_type(tensor.scalar_type);
}

Result<ExportedFields> find_fields(const ExportedProgram& program, const FlatProgram& flat,
                                   const std::string& archive) {
  std::vector<UserInput> inputs;
  for (const ExportedInput& input : program.inputs)
    if (input.kind == ExportedInput::Kind::User)
      inputs.push_back({input.value, &program.graph.tensors.at(input.value)});
  if (inputs.empty()) return Problem{archive, "takes no tensors: there is nothing to train on", {}};
  ExportedFields result{.symbols = std::make_shared<SymbolTable>()};
  SymbolTable& symbols = *result.symbols;
  symbols.ranges = program.ranges;
  symbols.advice = advice_for(inputs);
  const std::optional<int> batch = common_batch_dimension(program, inputs);
  if (!batch) {
    std::string shapes;
    for (const UserInput& input : inputs) {
      std::string sizes;
      for (const SizeExpression& size : input.tensor->sizes)
        sizes += (sizes.empty() ? "" : ", ") + size.text();
      shapes += (shapes.empty() ? "" : ", ") + escaped(input.name) + " [" + sizes + "]";
    }
    return Problem{archive, "its inputs " + shapes + " have no batch dimension in common", symbols.advice};
  }
  result.batch_dimension = *batch;
  std::vector<std::string> of_batch;
  std::map<std::int64_t, std::vector<std::string>>
      lengths;  // key: the length in the example; value: its symbols
  std::vector<std::int64_t> order;
  Problems problems;
  for (const UserInput& input : inputs) {
    const SizeExpression& rows = input.tensor->sizes[*batch];
    if (rows.is_symbol()) of_batch.push_back(rows.symbol());
  }
  for (const UserInput& input : inputs) {
    FieldSpec field{.name = input.name, .dtype = scalar_type_of(*input.tensor), .batch_dimension = *batch};
    if (field.dtype != at::kFloat && field.dtype != at::kBool && !(at::isIntegralType(field.dtype, false)))
      problems.push_back(
          {archive, "input " + escaped(input.name) + " is of " + scalar_type_name(input.tensor->scalar_type),
           "export with float32, integers or bool"});
    for (std::size_t d = 0; d < input.tensor->sizes.size(); ++d) {
      if (static_cast<int>(d) == *batch) continue;
      const SizeExpression& size = input.tensor->sizes[d];
      const auto hint = program.hints.find(size.symbol());
      const bool known = size.is_symbol() && hint != program.hints.end();
      const std::int64_t length = known ? hint->second : size.number();
      const bool frozen = (known || size.is_number()) && is_frozen(program, inputs, d, length);
      if (frozen && !is_named(flat, length)) symbols.frozen.insert(length);
      if ((frozen && !symbols.frozen.contains(length)) || (size.is_number() && !frozen)) {
        field.shape.push_back(length);
        continue;
      }
      if (!known && !frozen) {
        problems.push_back({archive,
                            "dimension " + std::to_string(d) + " of input " + escaped(input.name) + " is " +
                                size.text() + ", which is no length of its own",
                            "export it as a dynamic dimension by itself, or as a fixed one"});
        continue;
      }
      if (known && std::ranges::count(of_batch, size.symbol())) {
        problems.push_back({archive,
                            "dimension " + std::to_string(d) + " of input " + escaped(input.name) +
                                " is the batch's length too",
                            "give them different sizes in the example"});
        continue;
      }
      auto number = static_cast<std::size_t>(std::ranges::find(order, length) - order.begin());
      if (number == order.size()) {
        order.push_back(length);
        result.dimensions.push_back({input.name + "." + std::to_string(d), length});
      }
      if (known) lengths[length].push_back(size.symbol());
      field.shape.push_back(dimension(static_cast<int>(number)));
    }
    result.fields.push_back(std::move(field));
  }
  if (!problems.empty()) return problems;
  const auto join = [&](const std::vector<std::string>& same) {
    for (const std::string& symbol : same) symbols.same[symbol] = same;
  };
  join(of_batch);
  for (const auto& [hint, same] : lengths) join(same);
  Limits(flat, result.fields);
  return result;
}

std::optional<CountedLabels> counted_labels(const FlatProgram& flat, const ExportedFields& fields,
                                            const std::string& loss) {
  static const std::set<std::string> kPassOn{"aten::to", "aten::_to_copy", "aten::clone", "aten::alias"};
  const Origins origins(flat, fields.fields);
  const FlatCall* call = origins.maker(loss, flat.calls.data() + flat.calls.size());
  std::string value = loss;
  while (call && kPassOn.contains(call->op) && call->reads().size() == 1 && !flat.written_with(value)) {
    value = call->reads().front();
    call = origins.maker(value, call);
  }
  constexpr std::int64_t kMean = 1;  // at::Reduction::Mean
  const ExportedArgument *weight = call ? call->argument("weight") : nullptr,
                         *target = call ? call->argument("target") : nullptr;
  if (!target || flat.written_with(value) || !is_cross_entropy(*call) ||
      integer_of(*call, "reduction", kMean) != kMean ||
      (weight && weight->kind != ExportedArgument::Kind::None))
    return std::nullopt;
  std::vector<const FlatCall*> calls;
  const FieldSpec* field = origins.source(target->text, call, calls);
  if (!field || field->dtype != at::kLong || flat.written_with(field->name)) return std::nullopt;
  LabelPath path({.ignored = integer_of(*call, "ignore_index", kIgnored)}, *field);
  for (const FlatCall* one : calls)
    if (flat.written_with(one->makes().front()) || !path.take(*one)) return std::nullopt;
  CountedLabels found = path.labels();
  for (auto& [front, behind] : found.cut) {  // what was only added does not count
    front = std::max<std::int64_t>(0, front);
    behind = std::max<std::int64_t>(0, behind);
  }
  return found;
}

std::vector<IgnoredLabels> ignored_labels(const FlatProgram& flat, const ExportedFields& fields) {
  const Origins origins(flat, fields.fields);
  std::vector<IgnoredLabels> all;
  for (const FlatCall& call : flat.calls)
    if (is_cross_entropy(call)) all.push_back(origins.ignored_by(call));
  return all;
}

}  // namespace millrace
