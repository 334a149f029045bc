#include "models/exported/exported_model.h"

#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>

#include "models/exported/cast_policy.h"
#include "models/exported/exported_layer.h"
#include "models/exported/fields.h"
#include "models/exported/flat_program.h"
#include "models/exported/fused_calls.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/layers/head.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {
namespace {

constexpr int kEnoughLayers = 16;  // gives a planner enough cut points for a handful of stages

/// Returns a tensor that refers to the archive's memory and keeps the archive alive.
at::Tensor tensor_of(const std::shared_ptr<const ExportedArchive>& archive, const StoredTensor& stored) {
  const std::string_view storage = archive->storage(stored);
  const auto width = element_bytes(stored.scalar_type);
  auto* data = const_cast<char*>(storage.data()) + stored.offset * width;
  return at::from_blob(
      data, stored.sizes, stored.strides, [archive](void*) {},
      at::TensorOptions(torch_type(stored.scalar_type)));
}

/// The calls of a future layer.
struct Segment {
  std::string path;
  std::vector<FlatCall> calls;
};

class ModelBuilder {
 public:
  ModelBuilder(std::shared_ptr<const ExportedArchive> archive, const ExportedOptions& options)
      : archive_(std::move(archive)), options_(options), program_(archive_->program()) {}

  Result<LayeredModel> build() {
    Result<FlatProgram> flat = flatten(program_, archive_->name());
    if (!flat) return flat.problems();
    flat_ = *std::move(flat);
    model_.name = std::filesystem::path(archive_->name()).filename().string();
    use_one_name_for_shared_parameters();
    for (const ExportedInput& input : program_.inputs) {
      if (input.kind == ExportedInput::Kind::Buffer) buffers_.insert(input.value);
      if (input.kind != ExportedInput::Kind::User && !in_state_dict(input)) passing_.insert(input.value);
    }
    Result<ExportedFields> fields = find_fields(program_, flat_, archive_->name());
    if (!fields) return fields.problems();
    fields_ = *std::move(fields);
    model_.fields = fields_.fields;
    model_.dimensions = fields_.dimensions;
    if (Status head = choose_head(); !head) return head.problems();
    drop_unneeded_calls(flat_, {result_}, buffers_);
    if (head_ == "loss") ignored_labels_ = ignored_labels(flat_, fields_);
    find_trainable();
    fuse_calls(flat_, result_, differentiable_);
    if (Status segments = make_segments(); !segments) return segments.problems();
    if (Status layers = make_layers(); !layers) return layers.problems();
    add_head();
    return std::move(model_);
  }

 private:
  Problem problem(std::string what, std::string hint) const {
    return {archive_->name(), std::move(what), std::move(hint)};
  }

  // ---- parameters ----

  void use_one_name_for_shared_parameters() {
    std::vector<std::pair<StoredTensor, std::string>> known;
    std::map<std::string, std::string> renamed;
    for (const ExportedInput& input : program_.inputs) {
      inputs_.emplace(input.value, &input);
      if (input.kind != ExportedInput::Kind::Parameter) continue;
      const StoredTensor& stored = program_.stored.at(input.target);
      const auto same = std::ranges::find(known, stored, &std::pair<StoredTensor, std::string>::first);
      const std::string& owner = same == known.end() ? input.value : same->second;
      if (same == known.end()) known.emplace_back(stored, input.value);
      renamed[input.value] = owner;
      shared_[owner].push_back(input.target);
    }
    for (FlatCall& call : flat_.calls) {
      for (auto& [name, argument] : call.arguments) {
        if (const auto found = renamed.find(argument.text);
            argument.kind == ExportedArgument::Kind::Tensor && found != renamed.end())
          argument.text = found->second;
        for (std::string& value : argument.names)
          if (const auto found = renamed.find(value); found != renamed.end()) value = found->second;
      }
    }
  }

  const ExportedTensor* tensor(const std::string& value) const {
    const auto found = flat_.tensors.find(value);
    return found == flat_.tensors.end() ? nullptr : &found->second;
  }

  at::ScalarType type_of(const std::string& value) const {
    const ExportedTensor* t = tensor(value);
    return t ? scalar_type_of(*t) : at::ScalarType::Undefined;
  }
  bool is_complex(const std::string& value) const { return at::isComplexType(type_of(value)); }
  /// Returns whether the value may have a gradient: it is floating or complex.
  bool has_gradients(const std::string& value) const {
    return at::isFloatingType(type_of(value)) || is_complex(value);
  }

  /// Finds the differentiable values, and the parameters from which they lead to the loss. Other parameters
  /// keep their values: PyTorch's optimizers, too, skip a parameter without a gradient.
  void find_trainable() {
    std::set<std::string> candidates;
    for (const auto& [value, input] : inputs_)
      if (input->kind == ExportedInput::Kind::Parameter && program_.stored.at(input->target).requires_grad)
        candidates.insert(value);
    const auto acts = [&](const std::string& v) {
      return candidates.contains(v) || differentiable_.contains(v);
    };
    for (const FlatCall& call : flat_.calls) {
      if (call.without_gradient || call.op == "aten::detach") continue;
      if (!std::ranges::any_of(call.reads(), acts)) continue;
      for (const std::string& made : call.makes())
        if (has_gradients(made)) differentiable_.insert(made);
      for (const std::string& written : call.writes)  // a view of the value, or the value under another name
        if (const auto* together = flat_.written_with(written))
          for (const std::string& value : *together)
            if (has_gradients(value)) differentiable_.insert(value);
    }
    std::set<std::string> reached{result_};
    for (bool changed = true; changed;) {
      const std::size_t before = reached.size();
      for (auto call = flat_.calls.rbegin(); call != flat_.calls.rend(); ++call) {
        std::vector<std::string> made = call->makes();
        for (const std::string& written : call->writes)
          if (const auto* together = flat_.written_with(written))
            made.insert(made.end(), together->begin(), together->end());
        const bool leads = std::ranges::any_of(
            made, [&](const auto& v) { return reached.contains(v) && differentiable_.contains(v); });
        if (!leads || call->without_gradient) continue;
        for (const std::string& read : call->reads())
          if (acts(read)) reached.insert(read);
      }
      changed = reached.size() != before;
    }
    for (const std::string& value : reached)
      if (candidates.contains(value)) trainable_.insert(value);
  }

  // ---- the end ----

  Status choose_head() {
    const std::string& wanted = options_.head;
    std::string loss, scores;
    for (const std::string& result : flat_.results) {
      const ExportedTensor* t = tensor(result);
      if (!t || !at::isFloatingType(scalar_type_of(*t))) continue;
      if (t->sizes.empty() && loss.empty()) loss = result;
      if (!t->sizes.empty() && scores.empty()) scores = result;
    }
    if (wanted == "cross-entropy" && take_cross_entropy_of(loss)) return Ok{};
    if ((wanted == "auto" && !loss.empty()) || wanted == "loss") {
      if (loss.empty())
        return problem("none of its results is a loss: one floating number",
                       "--head cross-entropy, or return the loss");
      result_ = loss;
      head_ = "loss";
      counted_ = counted_labels(flat_, fields_, loss);
      return Ok{};
    }
    if (scores.empty() && !loss.empty())
      return problem(
          "its loss is not the mean cross-entropy of scores [batch, classes] and labels that it takes",
          "leave --head out to train by the loss, or return the scores too");
    if (scores.empty())
      return problem("none of its results is a floating tensor", "return the loss or scores");
    const std::vector<SizeExpression>& sizes = tensor(scores)->sizes;
    result_ = scores;
    FieldSpec target{.name = "target", .batch_dimension = fields_.batch_dimension};
    while (model_.field(target.name)) target.name += "_";
    if (wanted == "auto" || wanted == "cross-entropy") {
      if (sizes.size() != 2 || !sizes[1].is_number())
        return problem("its first result is no loss and has " + std::to_string(sizes.size()) +
                           " dimensions; cross-entropy takes scores [batch, classes]",
                       "compute the loss inside the model, from labels that it takes, and return it");
      head_ = "cross-entropy";
      target.dtype = at::kLong;
      target.limit = sizes[1].number();
      target.batch_dimension = 0;
    } else if (wanted == "mean-squared-error") {
      head_ = wanted;
      for (std::size_t d = 1; d < sizes.size(); ++d) {
        if (!sizes[d].is_number())
          return problem("its first result has a dynamic dimension besides the batch",
                         "compute the loss inside the model and return it");
        target.shape.push_back(sizes[d].number());
      }
      target.batch_dimension = 0;
    } else {
      return Problem{"--head", "'" + escaped(wanted) + "' is no head",
                     "one of: auto, loss, cross-entropy, mean-squared-error"};
    }
    model_.fields.push_back(target);
    target_ = target.name;
    return Ok{};
  }

  /// Ends the model in the scores of a loss that is what a cross-entropy head computes of them and of an
  /// input. The head then also knows the best classes. Returns false where the loss is made otherwise.
  bool take_cross_entropy_of(const std::string& loss) {
    const auto made = std::ranges::find_if(flat_.calls, [&](const FlatCall& call) {
      return call.op == "aten::cross_entropy_loss" && call.makes() == std::vector{loss};
    });
    if (made == flat_.calls.end()) return false;
    const auto integer = [&](const char* name, std::int64_t otherwise) {
      const ExportedArgument* argument = made->argument(name);
      return argument && !argument->sizes.empty() ? argument->sizes[0].number() : otherwise;
    };
    const ExportedArgument *scores = made->argument("self"), *labels = made->argument("target"),
                           *weight = made->argument("weight"), *smoothing = made->argument("label_smoothing");
    const ExportedTensor* of_scores = scores ? tensor(scores->text) : nullptr;
    const FieldSpec* field = labels ? model_.field(labels->text) : nullptr;
    const bool fits = of_scores && of_scores->sizes.size() == 2 && of_scores->sizes[1].is_number() && field &&
                      field->shape.empty() && field->dtype == at::kLong &&
                      (!weight || weight->kind == ExportedArgument::Kind::None) &&
                      integer("reduction", at::Reduction::Mean) == at::Reduction::Mean;
    if (!fits) return false;
    ignored_ = integer("ignore_index", -100);
    result_ = scores->text;
    target_ = field->name;
    head_ = "cross-entropy";
    smoothing_ = smoothing && !smoothing->numbers.empty() ? smoothing->numbers[0] : 0;
    return true;
  }

  void add_head() {
    if (head_ == "loss") {
      // The last stage usually reads the last field anyway: labels.
      const std::string field = counted_ ? counted_->field : model_.fields.back().name;
      model_.heads.push_back(
          {"loss", graph_loss_head(fields_.batch_dimension, counted_, ignored_labels_), {result_, field}});
      return;
    }
    HeadPtr head =
        head_ == "cross-entropy" ? smoothed_cross_entropy_head(smoothing_) : mean_squared_error_head();
    if (ignored_) head = ignoring_labels(std::move(head), *ignored_);
    model_.heads.push_back({"loss", std::move(head), {result_, target_}});
  }

  // ---- layers ----

  static std::vector<Segment> cut_at(const std::vector<FlatCall>& calls, std::size_t depth) {
    std::vector<Segment> segments;
    for (const FlatCall& call : calls) {
      const std::string path = !call.modules.empty() ? call.modules[std::min(depth, call.modules.size() - 1)]
                               : segments.empty()    ? ""
                                                     : segments.back().path;
      if (segments.empty() || segments.back().path != path) segments.push_back({.path = path});
      segments.back().calls.push_back(call);
    }
    return segments;
  }

  bool has_parameters(const Segment& segment) const {
    return std::ranges::any_of(segment.calls, [&](const FlatCall& call) {
      return std::ranges::any_of(call.reads(), [&](const std::string& v) { return trainable_.contains(v); });
    });
  }

  static void move_into(Segment& into, Segment& from, bool takes_path) {
    into.calls.insert(into.calls.end(), std::make_move_iterator(from.calls.begin()),
                      std::make_move_iterator(from.calls.end()));
    if (takes_path) into.path = from.path;
  }

  /// Joins segments without parameters with the segment before them.
  std::vector<Segment> with_parameters_each(std::vector<Segment> segments) const {
    std::vector<Segment> result;
    bool last_has = true;
    for (Segment& segment : segments) {
      const bool has = has_parameters(segment);
      if (!result.empty() && (!has || !last_has)) {
        move_into(result.back(), segment, has && !last_has);
        last_has = last_has || has;
      } else {
        result.push_back(std::move(segment));
        last_has = has;
      }
    }
    return result;
  }

  Status make_segments() {
    const std::string& wanted = options_.granularity;
    if (flat_.calls.empty()) return problem("computes nothing that its loss depends on", {});
    if (wanted == "call") {
      for (FlatCall& call : flat_.calls) {
        const std::string path = call.modules.empty() ? "" : call.modules.back();
        segments_.push_back({path, {std::move(call)}});
      }
    } else {
      std::size_t deepest = 0, depth = 0;
      for (const FlatCall& call : flat_.calls) deepest = std::max(deepest, call.modules.size());
      if (wanted == "auto") {
        do {
          segments_ = with_parameters_each(cut_at(flat_.calls, ++depth));
        } while (segments_.size() < kEnoughLayers && depth < deepest);
      } else {
        const auto given = number_of<decltype(depth)>(wanted);
        if (!given)
          return Problem{"--granularity", "'" + escaped(wanted) + "' is no depth",
                         "a whole number (0: one layer), auto or call"};
        segments_ = with_parameters_each(cut_at(flat_.calls, *given));
      }
    }
    join_what_writes_together();
    return Ok{};
  }

  /// Joins segments so that memory that is written to, and each buffer that changes, belongs to one layer.
  void join_what_writes_together() {
    std::map<std::string, std::pair<std::size_t, std::size_t>>
        ranges;  // first and last segment that uses a value
    std::set<std::string> changed;
    for (const Segment& segment : segments_)
      for (const FlatCall& call : segment.calls)
        if (changes_a_buffer(call, buffers_))
          for (const std::string& value : call.reads())
            if (buffers_.contains(value)) changed.insert(value);
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for (const FlatCall& call : segments_[s].calls) {
        std::vector<std::string> values = call.reads();
        for (const std::string& made : call.makes()) values.push_back(made);
        for (const std::string& value : values) {
          const auto* together = flat_.written_with(value);
          if (!together && !changed.contains(value)) continue;
          auto& range = ranges.try_emplace(together ? *together->begin() : value, s, s).first->second;
          range.second = s;
        }
      }
    }
    std::vector<std::size_t> joined_to(segments_.size());
    for (std::size_t s = 0; s < segments_.size(); ++s) joined_to[s] = s;
    for (const auto& [value, range] : ranges)
      for (std::size_t s = range.first + 1; s <= range.second; ++s)
        joined_to[s] = std::min(joined_to[s], s - 1);
    std::vector<Segment> result;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (joined_to[s] == s)
        result.push_back(std::move(segments_[s]));
      else
        move_into(result.back(), segments_[s], false);
    }
    segments_ = std::move(result);
  }

  std::string unique_name(const Segment& segment) {
    std::string name = segment.path.empty() ? segment.calls.front().name : segment.path;
    if (!names_.insert(name).second) {
      name += (segment.path.empty() ? "" : "/") + segment.calls.front().name;
      while (!names_.insert(name).second) name += "'";
    }
    return name;
  }

  Status make_layers() {
    std::unordered_map<std::string, std::size_t> last_reader;
    for (std::size_t s = 0; s < segments_.size(); ++s)
      for (const FlatCall& call : segments_[s].calls)
        for (const std::string& value : call.reads()) last_reader[value] = s;
    last_reader[result_] = segments_.size();
    Problems problems;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      if (Status made = make_layer(segments_[s], s, last_reader); !made) append(problems, made.problems());
      if (problems.size() > 20) break;
    }
    return problems.empty() ? Status(Ok{}) : Status(problems);
  }

  static ParameterKind kind_of(const FlatCall& call, const std::string& target, std::size_t rank) {
    if (call.op == "aten::embedding") return ParameterKind::Embedding;
    if (call.op.ends_with("_norm")) return ParameterKind::Norm;
    return target.ends_with("bias") && rank == 1 ? ParameterKind::Bias : ParameterKind::Weight;
  }

  ParameterSpec spec_of(const std::string& target, bool is_buffer) const {
    const StoredTensor& stored = program_.stored.at(target);
    return {.name = target,
            .shape = stored.sizes,
            .is_buffer = is_buffer,
            .is_counter = is_buffer && !at::isFloatingType(torch_type(stored.scalar_type)),
            .value = tensor_of(archive_, stored)};
  }

  Status make_layer(Segment& segment, std::size_t number,
                    const std::unordered_map<std::string, std::size_t>& last_reader) {
    NamedLayer named{.name = unique_name(segment), .full_names = true};
    ExportedLayerParts parts{.symbols = fields_.symbols, .draws = options_.draws};
    std::vector<std::string> inputs, weights, buffers, constants;
    std::vector<ParameterSpec> buffer_specs;
    std::set<std::string> known, made;
    Problems problems;
    for (const FlatCall& call : segment.calls) {
      for (const std::string& value : call.reads()) {
        if (made.contains(value) || !known.insert(value).second) continue;
        const auto input = inputs_.find(value);
        if (input == inputs_.end() || input->second->kind == ExportedInput::Kind::User) {
          inputs.push_back(value);
          continue;
        }
        const std::string& target = input->second->target;
        if (trainable_.contains(value)) {
          if (Status added = add_weight(call, value, named, parts); !added)
            append(problems, added.problems());
          weights.push_back(value);
        } else if (in_state_dict(*input->second) && written_.insert(target).second) {
          if (Status saved = can_be_saved(target); !saved) append(problems, saved.problems());
          buffer_specs.push_back(spec_of(target, true));
          buffers.push_back(value);
          if (is_unreached(*input->second)) named.unreached.push_back(target);
        } else {
          parts.constants.push_back(tensor_of(archive_, program_.stored.at(target)));
          constants.push_back(value);
        }
      }
      if (const std::string* changed = changed_buffer(call, passing_))
        problems.push_back(problem("call " + escaped(call.name) + " changes " +
                                       escaped(inputs_.at(*changed)->target) +
                                       ", which is not part of the state_dict",
                                   "register that buffer as persistent"));
      for (const std::string& value : call.makes()) made.insert(value);
    }
    if (number + 1 == segments_.size()) add_unused(buffers, buffer_specs, named.unreached);
    std::vector<std::string> outputs;
    for (const FlatCall& call : segment.calls)
      for (const std::string& value : call.makes())
        if (const auto reader = last_reader.find(value);
            reader != last_reader.end() && reader->second > number)
          outputs.push_back(value);
    if (outputs.empty() && !made.empty()) outputs.push_back(*made.begin());
    if (outputs.empty()) problems.push_back(problem("layer " + escaped(named.name) + " makes no tensor", {}));
    for (const std::string& value : outputs) {
      if (const at::ScalarType type = type_of(value);
          type == at::ScalarType::Undefined || type == at::kComplexHalf) {
        problems.push_back(problem("value " + escaped(value) + " between two layers is no plain tensor", {}));
        continue;
      }
      parts.outputs.push_back(port_of(value));
      parts.outputs.back().differentiable = differentiable_.contains(value);
    }
    if (!problems.empty()) return problems;
    if (Status bound = add_inputs_for_sizes(segment, parts, inputs); !bound) return bound;
    for (const std::string& value : inputs) {
      parts.inputs.push_back(port_of(value));
      parts.inputs.back().is_field = model_.field(value) != nullptr;
    }
    parts.kind = kind_of_layer(segment);
    const auto is_floating_tensor = [](const at::Tensor& t) { return t.is_floating_point(); };
    const bool constants_float = std::ranges::any_of(parts.constants, is_floating_tensor) ||
                                 std::ranges::any_of(buffer_specs, is_floating_tensor, &ParameterSpec::value);
    parts.cast_policy = cast_policy_of(segment.calls, constants_float);
    // A layer that passes on its input's type but has parameters stays float32. So does a layer of complex
    // numbers, which have no lower type.
    const bool complex = std::ranges::any_of(segment.calls, [&](const FlatCall& call) {
      const auto is = [&](const std::string& value) { return is_complex(value); };
      return std::ranges::any_of(call.reads(), is) || std::ranges::any_of(call.makes(), is);
    });
    if (complex || (parts.cast_policy == CastPolicy::Promote && !parts.parameters.empty()))
      parts.cast_policy = CastPolicy::Float32;
    parts.parameters.insert(parts.parameters.end(), buffer_specs.begin(), buffer_specs.end());
    std::vector<std::string> given = inputs;
    for (const auto* names : {&weights, &buffers, &constants})
      given.insert(given.end(), names->begin(), names->end());
    Result<std::shared_ptr<const CallRunner>> calls = CallRunner::compile(
        std::move(segment.calls), flat_, given, inputs.size(), weights.size(), buffers_, outputs);
    if (!calls) {
      Problems wrong = calls.problems();
      for (Problem& p : wrong) p.where = archive_->name() + ": " + p.where;
      return wrong;
    }
    parts.calls = *calls;
    named.inputs = inputs;
    named.outputs = outputs;
    named.layer = exported_layer(std::move(parts));
    model_.layers.push_back(std::move(named));
    return Ok{};
  }

  /// Returns the port of a value. Outside their layer complex numbers are pairs of real ones, since
  /// transports and sums of tensors take only those.
  ExportedPort port_of(const std::string& value) const {
    ExportedPort port{.name = value, .sizes = tensor(value)->sizes, .dtype = type_of(value)};
    if (at::isComplexType(port.dtype)) {
      port.is_complex = true;
      port.dtype = c10::toRealValueType(port.dtype);
      port.sizes.emplace_back(2);
    }
    return port;
  }

  static bool in_state_dict(const ExportedInput& input) {
    return input.kind == ExportedInput::Kind::Parameter ||
           (input.kind == ExportedInput::Kind::Buffer && input.persistent);
  }

  /// Returns whether a parameter requires a gradient. It is called for parameters that are not trained.
  bool is_unreached(const ExportedInput& input) const {
    return input.kind == ExportedInput::Kind::Parameter && program_.stored.at(input.target).requires_grad;
  }

  Status add_weight(const FlatCall& call, const std::string& value, NamedLayer& named,
                    ExportedLayerParts& parts) {
    const std::vector<std::string>& names = shared_.at(value);
    ParameterSpec spec = spec_of(names[0], false);
    if (spec.value.scalar_type() != at::kFloat)
      return problem("parameter " + escaped(names[0]) + " is of " +
                         scalar_type_name(program_.stored.at(names[0]).scalar_type),
                     spec.value.is_complex()
                         ? "hold it as pairs of real numbers: torch.nn.Parameter(torch.view_as_real(w)) and "
                           "torch.view_as_complex(...) in forward"
                         : "export the model in float32: model.float()");
    spec.kind = kind_of(call, names[0], spec.shape.size());
    const auto [owner, first] = owners_.emplace(value, names[0]);
    if (first) {
      spec.also.assign(names.begin() + 1, names.end());
      for (const std::string& name : names) written_.insert(name);
    } else {
      // A tied parameter's own name must differ from its owner's.
      spec.name = named.name + "/" + names[0];
      named.tied.emplace_back(spec.name, owner->second);
    }
    parts.parameters.push_back(std::move(spec));
    return Ok{};
  }

  Status can_be_saved(const std::string& target) const {
    const std::int64_t type = program_.stored.at(target).scalar_type;
    if (safetensors_name(torch_type(type))) return Ok{};
    return problem(escaped(target) + " is of " + scalar_type_name(type) + ", which safetensors does not hold",
                   "keep it in complex64, or register it with persistent=False");
  }

  /// Keeps tensors that no call reads, so that the state_dict stays complete.
  void add_unused(std::vector<std::string>& buffers, std::vector<ParameterSpec>& specs,
                  std::vector<std::string>& unreached) {
    for (const ExportedInput& input : program_.inputs) {
      if (!in_state_dict(input) || !written_.insert(input.target).second) continue;
      specs.push_back(spec_of(input.target, true));
      buffers.push_back(input.value + "/unused");
      if (is_unreached(input)) unreached.push_back(input.target);
    }
  }

  /// Adds a field to the inputs of a layer if its sizes do not follow from its other inputs.
  Status add_inputs_for_sizes(const Segment& segment, const ExportedLayerParts& parts,
                              std::vector<std::string>& inputs) {
    std::set<std::string> needed, bound;
    for (const FlatCall& call : segment.calls)
      for (const auto& [name, argument] : call.arguments)
        for (const SizeExpression& size : argument.sizes) size.collect_symbols(needed);
    for (const ExportedPort& output : parts.outputs)
      for (const SizeExpression& size : output.sizes) size.collect_symbols(needed);
    const auto bind = [&](const std::string& value) {
      for (const SizeExpression& size : tensor(value)->sizes) {
        if (!size.is_symbol()) continue;
        bound.insert(size.symbol());
        if (const auto same = fields_.symbols->same.find(size.symbol()); same != fields_.symbols->same.end())
          bound.insert(same->second.begin(), same->second.end());
      }
    };
    for (const std::string& value : inputs) {
      if (!tensor(value)) return problem("value " + escaped(value) + " is not described", {});
      bind(value);
    }
    for (const std::string& symbol : needed) {
      if (bound.contains(symbol)) continue;
      const FieldSpec* smallest = nullptr;
      const auto elements = [](const FieldSpec& field) {
        std::int64_t n = 1;
        for (std::int64_t d : field.shape) n *= d < 0 ? 1 : d;
        return n;
      };
      for (const FieldSpec& field : fields_.fields) {
        const auto& sizes = tensor(field.name)->sizes;
        const bool has = std::ranges::any_of(sizes, [&](const SizeExpression& size) {
          if (!size.is_symbol()) return false;
          const auto same = fields_.symbols->same.find(size.symbol());
          return size.symbol() == symbol ||
                 (same != fields_.symbols->same.end() && std::ranges::count(same->second, symbol));
        });
        if (has && (!smallest || elements(field) < elements(*smallest))) smallest = &field;
      }
      if (!smallest)
        return problem("the size " + escaped(symbol) + " in layer " +
                           (segment.path.empty() ? "of the root" : escaped(segment.path)) +
                           " depends on values, not on the inputs' sizes",
                       "write that part of the model without .item(), nonzero or masks that select");
      inputs.push_back(smallest->name);
      bind(smallest->name);
    }
    return Ok{};
  }

  std::string kind_of_layer(const Segment& segment) const {
    const auto plain = [](const FlatCall& call) { return call.op.substr(call.op.find("::") + 2); };
    for (const FlatCall& call : segment.calls)
      for (const std::string& value : call.reads())
        if (trainable_.contains(value)) return plain(call);
    return plain(segment.calls.back());
  }

  std::shared_ptr<const ExportedArchive> archive_;
  ExportedOptions options_;
  const ExportedProgram& program_;
  FlatProgram flat_;
  ExportedFields fields_;
  LayeredModel model_;
  std::map<std::string, const ExportedInput*> inputs_;      ///< key: value
  std::map<std::string, std::vector<std::string>> shared_;  ///< owner's value -> all its state_dict names
  std::set<std::string> buffers_, passing_, differentiable_, trainable_;  ///< values; passing: not saved
  std::map<std::string, std::string> owners_;  ///< value -> name of the parameter that owns it
  std::set<std::string> written_;              ///< state_dict names that some layer holds
  std::string result_, head_, target_;
  double smoothing_ = 0;                  // of the labels, as the graph's loss has it
  std::optional<std::int64_t> ignored_;   // label of the graph's cross-entropy that does not count
  std::optional<CountedLabels> counted_;  // by the loss of the graph
  std::vector<IgnoredLabels> ignored_labels_;
  std::vector<Segment> segments_;
  std::set<std::string> names_;  ///< names of layers
};

}  // namespace

bool is_exported_model(const std::string& name) {
  return name.ends_with(".pt2");
}

Result<LayeredModel> make_exported_model(const std::string& path, const ExportedOptions& options) {
  Result<std::shared_ptr<const ExportedArchive>> archive = ExportedArchive::open(path);
  if (!archive) return archive.problems();
  return ModelBuilder(*archive, options).build();
}

Status write_trained_archive(const std::string& archive_path, const std::string& weights,
                             const std::string& path) {
  at::NoGradGuard no_grad;
  const Result<std::shared_ptr<const ExportedArchive>> archive = ExportedArchive::open(archive_path);
  if (!archive) return archive.problems();
  const Result<SafetensorsFile> file = SafetensorsFile::open(weights);
  if (!file) return file.problems();
  std::map<std::string, std::string> replaced;
  Problems problems;
  for (const ExportedInput& input : (*archive)->program().inputs) {
    if (input.kind == ExportedInput::Kind::User || !file->contains(input.target)) continue;
    const StoredTensor& stored = (*archive)->program().stored.at(input.target);
    if (file->shape(input.target) != stored.sizes) {
      problems.push_back({weights, escaped(input.target) + " has another shape than in " + archive_path,
                          "give weights of this model"});
      continue;
    }
    const std::string_view storage = (*archive)->storage(stored);
    std::string& bytes = replaced.try_emplace(stored.member, storage).first->second;
    at::from_blob(
        bytes.data() + stored.offset * element_bytes(stored.scalar_type), stored.sizes, stored.strides,
        [](void*) {}, at::TensorOptions(torch_type(stored.scalar_type)))
        .copy_(file->tensor(input.target));
  }
  if (!problems.empty()) return problems;
  (*archive)->write_with(path, replaced);
  return Ok{};
}

}  // namespace millrace
