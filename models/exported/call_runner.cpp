#include "models/exported/call_runner.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/device/failures.h"
#include "runtime/layers/dropout_mask.h"
#include "runtime/layers/seeded_draws.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

/// The grouped product of Hugging Face's mixtures of experts, which only their Python defines. `input` [S,
/// in] has the rows of expert 0, then those of expert 1, and so on. `weight` is [experts, in, out], `offs`
/// [experts] the row at which each expert ends. Returns [S, out]; rows behind the last expert's are zero.
at::Tensor grouped_product(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offs) {
  TORCH_CHECK(input.dim() == 2 && weight.dim() == 3 && offs.dim() == 1 && offs.size(0) == weight.size(0),
              "grouped_mm takes input [rows, in], weight [experts, in, out] and offs [experts]");
  const at::Tensor ends = offs.to(at::TensorOptions(at::kCPU).dtype(at::kLong)).contiguous();
  std::vector<std::int64_t> sizes;
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < ends.numel(); ++i) {
    const std::int64_t end = ends.const_data_ptr<std::int64_t>()[i];
    TORCH_CHECK(row <= end && end <= input.size(0), "expert ", i, " has rows ", row, " to ", end, " of ",
                input.size(0));
    sizes.push_back(end - row);
    row = end;
  }
  sizes.push_back(input.size(0) - row);
  const std::vector<at::Tensor> rows = input.split_with_sizes(sizes), experts = weight.unbind(0);
  std::vector<at::Tensor> products;
  for (std::size_t i = 0; i < experts.size(); ++i)
    if (sizes[i] > 0) products.push_back(rows[i].mm(experts[i]));
  products.push_back(at::zeros({sizes.back(), weight.size(2)}, input.options()));
  return at::cat(products);
}

TORCH_LIBRARY_FRAGMENT(transformers, library) {
  library.def("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor", grouped_product);
}

using Kind = ExportedArgument::Kind;

/// The source of a formal argument's value.
struct Operand {
  enum class From { Constant, Place, Places, Sizes, Device };
  From from = From::Constant;
  c10::IValue constant;
  int place = -1;
  std::vector<int> places;  ///< -1: none
  bool optional = false;    ///< a list of optional tensors
  ExportedArgument sizes;   ///< sizes with symbols
  c10::TypePtr type;
  std::size_t length = 0;  ///< length of a list of fixed length, which may be given as one number
};

c10::TypePtr without_optional(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType)
    type = type->castRaw<c10::OptionalType>()->getElementType();
  return type;
}

bool is_integer(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::IntType || type->kind() == c10::TypeKind::SymIntType;
}

/// Returns a number as a tensor, for an argument that is a tensor.
at::Tensor wrapped(const at::Scalar& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

std::optional<c10::IValue> number_as(double real, std::optional<std::int64_t> whole,
                                     const c10::TypePtr& type) {
  if (is_integer(type)) return whole ? std::optional(c10::IValue(*whole)) : std::nullopt;
  switch (type->kind()) {
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return c10::IValue(real);
    case c10::TypeKind::BoolType:
      return whole ? std::optional(c10::IValue(*whole != 0)) : std::nullopt;
    case c10::TypeKind::NumberType:
      return whole ? c10::IValue(*whole) : c10::IValue(real);
    case c10::TypeKind::TensorType:
      return c10::IValue(wrapped(whole ? at::Scalar(*whole) : at::Scalar(real)));
    default:
      return std::nullopt;
  }
}

/// Converts an argument to the formal's type. Returns nothing if the operator does not take it. All sizes
/// must be numbers.
std::optional<c10::IValue> constant_as(const ExportedArgument& argument, const c10::TypePtr& formal,
                                       std::size_t length) {
  if (argument.kind == Kind::None)
    return formal->kind() == c10::TypeKind::OptionalType ? std::optional(c10::IValue()) : std::nullopt;
  const c10::TypePtr type = without_optional(formal);
  if (type->kind() == c10::TypeKind::ListType) {
    const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
    const std::size_t count = argument.sizes.size() + argument.numbers.size() + argument.codes.size();
    const std::size_t times = count == 1 && (argument.kind == Kind::Int || argument.kind == Kind::Float)
                                  ? std::max<std::size_t>(1, length)
                                  : 1;
    if (is_integer(element)) {
      c10::List<std::int64_t> list;
      if (!argument.numbers.empty() || !argument.names.empty()) return std::nullopt;
      for (std::size_t t = 0; t < times; ++t)
        for (const SizeExpression& size : argument.sizes) list.push_back(size.number());
      return c10::IValue(std::move(list));
    }
    if (element->kind() == c10::TypeKind::FloatType) {
      c10::List<double> list;
      for (std::size_t t = 0; t < times; ++t) {
        for (const SizeExpression& size : argument.sizes) list.push_back(static_cast<double>(size.number()));
        for (double number : argument.numbers) list.push_back(number);
      }
      return c10::IValue(std::move(list));
    }
    if (element->kind() == c10::TypeKind::BoolType) {
      c10::List<bool> list;
      for (std::int64_t code : argument.codes) list.push_back(code != 0);
      return c10::IValue(std::move(list));
    }
    if (element->kind() == c10::TypeKind::TensorType && count == 0)
      return c10::IValue(c10::List<at::Tensor>());
    return std::nullopt;
  }
  switch (argument.kind) {
    case Kind::Int:
      return number_as(static_cast<double>(argument.sizes[0].number()), argument.sizes[0].number(), type);
    case Kind::Float:
      return number_as(argument.numbers[0], std::nullopt, type);
    case Kind::Bool:
      if (type->kind() == c10::TypeKind::NumberType) return c10::IValue(argument.codes[0] != 0);
      return number_as(static_cast<double>(argument.codes[0]), argument.codes[0], type);
    case Kind::String:
      return type->kind() == c10::TypeKind::StringType ? std::optional(c10::IValue(argument.text))
                                                       : std::nullopt;
    case Kind::ScalarType: {
      const at::ScalarType scalar = torch_type(argument.codes[0]);
      if (!is_integer(type) || scalar == at::ScalarType::Undefined) return std::nullopt;
      return c10::IValue(static_cast<std::int64_t>(scalar));
    }
    case Kind::MemoryFormat: {
      static constexpr at::MemoryFormat kFormats[] = {
          at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d,
          at::MemoryFormat::Preserve};
      const std::int64_t code = argument.codes[0] - 1;
      if (!is_integer(type) || code < 0 || code >= 4) return std::nullopt;
      return c10::IValue(static_cast<std::int64_t>(kFormats[code]));
    }
    case Kind::Layout:  // 7: strided
      if (!is_integer(type) || argument.codes[0] != 7) return std::nullopt;
      return c10::IValue(static_cast<std::int64_t>(at::kStrided));
    default:
      return std::nullopt;
  }
}

}  // namespace

struct CallRunner::Call {
  enum class Form { Plain, Dropout, Linear, Addmm, Convolution, Embedding };
  std::string name;
  std::string module{};  ///< path of the module whose forward makes the call
  std::optional<c10::OperatorHandle> op;
  Form form = Form::Plain;
  std::vector<Operand> operands;                                ///< one for each of the operator's arguments
  std::vector<std::pair<std::size_t, c10::IValue>> evaluation;  ///< operands with another value in evaluation
  std::vector<std::vector<int>> outputs;  ///< places of each result; -1: nobody reads it
  std::vector<char> output_is_list;
  bool without_gradient = false;
  bool draws = false;
  std::vector<int> writes;        ///< places it writes to; evaluation skips a call that writes to a buffer
  bool draws_bernoulli = false;   ///< evaluation takes the expected value instead
  bool normalises_batch = false;  ///< batch normalisation by the statistics of its input
  WeightPlaces weights;
  std::vector<int> read_last;
};

CallRunner::CallRunner() = default;
CallRunner::~CallRunner() = default;

class CallCompiler {
 public:
  CallCompiler(const FlatProgram& program, const std::vector<std::string>& given, std::size_t first_parameter,
               std::size_t trainable, const std::set<std::string>& buffers)
      : program_(program), first_parameter_(first_parameter), trainable_(trainable), buffers_(buffers) {
    for (const std::string& name : given) places_.emplace(name, static_cast<int>(places_.size()));
    given_ = static_cast<int>(places_.size());
  }

  Result<std::shared_ptr<const CallRunner>> compile(std::vector<FlatCall> calls,
                                                    const std::vector<std::string>& wanted) {
    std::shared_ptr<CallRunner> runner(new CallRunner);
    for (const FlatCall& call : calls) runner->calls_.push_back(compile(call));
    if (!problems_.empty()) return problems_;
    for (const std::string& name : wanted) runner->wanted_.push_back(places_.at(name));
    for (const auto& [name, place] : places_)
      if (place < given_ && buffers_.contains(name)) runner->buffers_.push_back(place);
    runner->num_places_ = places_.size();
    for (const auto& call : runner->calls_) runner->draws_ = runner->draws_ || call.draws;
    std::set<int> stays(runner->wanted_.begin(), runner->wanted_.end());
    for (auto call = runner->calls_.rbegin(); call != runner->calls_.rend(); ++call) {
      const auto reads = [&](int place) {
        if (place >= 0 && stays.insert(place).second) call->read_last.push_back(place);
      };
      for (const auto& places : call->outputs)
        for (int place : places) reads(place);
      for (const Operand& operand : call->operands) {
        reads(operand.place);
        for (int place : operand.places) reads(place);
      }
    }
    return std::shared_ptr<const CallRunner>(std::move(runner));
  }

 private:
  using Call = CallRunner::Call;

  Call compile(const FlatCall& call) {
    Call result{.name = call.name,
                .module = call.modules.empty() ? "" : call.modules.back(),
                .op = c10::Dispatcher::singleton().findSchema({call.op, call.overload}),
                .without_gradient = call.without_gradient};
    const c10::FunctionSchema& schema = result.op->schema();
    result.normalises_batch = normalises_batch(call);
    const std::size_t problems = problems_.size();
    std::size_t known = 0;
    for (const c10::Argument& formal : schema.arguments()) {
      const ExportedArgument* actual = call.argument(formal.name());
      known += actual != nullptr;
      result.operands.push_back(operand(call, formal, actual));
    }
    if (known != call.arguments.size())
      refuse(call, "has an argument that the operator does not take: " + c10::toString(schema));
    for (const ExportedArgument& output : call.outputs) {
      std::vector<int>& places = result.outputs.emplace_back();
      result.output_is_list.push_back(output.kind == Kind::Tensors);
      if (output.kind == Kind::Tensor) places.push_back(place(output.text));
      for (const std::string& name : output.names) places.push_back(name.empty() ? -1 : place(name));
    }
    if (result.outputs.size() > schema.returns().size())
      refuse(call, "makes more than the operator does: " + c10::toString(schema));
    if (problems_.size() > problems) return result;  // the rest needs arguments that the operator takes
    for (const std::string& value : call.writes)
      if (const auto found = places_.find(value); found != places_.end())
        result.writes.push_back(found->second);
    find_random(call, result);
    find_evaluation(result);
    find_form(call, result);
    return result;
  }

  int place(const std::string& name) {
    return places_.emplace(name, static_cast<int>(places_.size())).first->second;
  }

  int place_read(const FlatCall& call, const std::string& name) {
    const auto found = places_.find(name);
    if (found != places_.end()) return found->second;
    refuse(call, "reads " + escaped(name) + ", which nothing before it makes");
    return 0;
  }

  Operand operand(const FlatCall& call, const c10::Argument& formal, const ExportedArgument* actual) {
    Operand result{.type = formal.type(), .length = static_cast<std::size_t>(formal.N().value_or(0))};
    const auto wrong = [&] {
      refuse(call, "passes as " + formal.name() + " what the operator does not take (" +
                       formal.type()->str() + ")");
      return result;
    };
    if (!actual) {
      if (formal.default_value())
        result.constant = *formal.default_value();
      else if (formal.type()->kind() != c10::TypeKind::OptionalType)
        refuse(call, "lacks the argument " + formal.name() + " (" + formal.type()->str() + ")");
      return result;
    }
    const c10::TypePtr type = without_optional(formal.type());
    switch (actual->kind) {
      case Kind::Tensor:
        if (type->kind() != c10::TypeKind::TensorType) return wrong();
        result.from = Operand::From::Place;
        result.place = place_read(call, actual->text);
        return result;
      case Kind::Tensors: {
        if (type->kind() != c10::TypeKind::ListType) return wrong();
        const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
        if (without_optional(element)->kind() != c10::TypeKind::TensorType) return wrong();
        result.from = Operand::From::Places;
        result.optional = element->kind() == c10::TypeKind::OptionalType;
        for (const std::string& name : actual->names) {
          if (name.empty() && !result.optional) return wrong();
          result.places.push_back(name.empty() ? -1 : place_read(call, name));
        }
        return result;
      }
      case Kind::Device:
        if (actual->text != "cpu" && actual->text != "cuda")
          refuse(call, "computes on the device " + escaped(actual->text));
        result.from = Operand::From::Device;
        return result;
      default:
        break;
    }
    if (!std::ranges::all_of(actual->sizes, &SizeExpression::is_number)) {
      result.from = Operand::From::Sizes;
      result.sizes = *actual;
      return result;
    }
    const auto constant = constant_as(*actual, formal.type(), result.length);
    if (!constant) return wrong();
    result.constant = *constant;
    return result;
  }

  static const Operand* operand_of(const Call& call, std::string_view name, std::size_t* index = nullptr) {
    const auto& arguments = call.op->schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != name) continue;
      if (index) *index = i;
      return &call.operands[i];
    }
    return nullptr;
  }
  static bool is_zero(const Operand* operand) {
    return operand && operand->from == Operand::From::Constant && operand->constant.isDouble() &&
           operand->constant.toDouble() == 0;
  }

  static bool normalises_batch(const FlatCall& call) {
    const ExportedArgument* training = call.op == "aten::batch_norm" ? call.argument("training") : nullptr;
    return training && training->kind == ExportedArgument::Kind::Bool && training->codes.front() != 0;
  }

  void find_random(const FlatCall& call, Call& result) const {
    static const std::set<std::string> kDrawInside{"aten::scaled_dot_product_attention", "aten::lstm",
                                                   "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"};
    result.draws = result.op->hasTag(at::Tag::nondeterministic_seeded) || kDrawInside.contains(call.op);
    for (const char* name : {"p", "dropout_p", "dropout"})
      if (is_zero(operand_of(result, name)) && call.op != "aten::bernoulli_") result.draws = false;
    result.draws_bernoulli =
        call.op == "aten::bernoulli_" && call.overload == "float" && result.operands[1].constant.isDouble();
  }

  static void find_evaluation(Call& call) {
    std::size_t index = 0;
    for (const char* name : {"train", "training", "use_input_stats"})
      if (operand_of(call, name, &index)) call.evaluation.emplace_back(index, c10::IValue(false));
    if (operand_of(call, "dropout_p", &index)) call.evaluation.emplace_back(index, c10::IValue(0.0));
  }

  /// Returns the index of an operand among the trainable parameters; -1: it is none.
  int parameter(const Operand* operand) const {
    if (!operand || operand->from != Operand::From::Place) return -1;
    const auto first = static_cast<int>(first_parameter_);
    const bool is = operand->place >= first && operand->place < first + static_cast<int>(trainable_);
    return is ? operand->place - first : -1;
  }

  void find_form(const FlatCall& call, Call& result) const {
    using Form = Call::Form;
    if (call.op == "aten::dropout" && result.draws && result.operands[1].constant.isDouble())
      result.form = Form::Dropout;
    if (call.without_gradient) return;
    const auto is_written = [&](const std::string& value) { return program_.written_with(value); };
    if (std::ranges::any_of(call.reads(), is_written) || std::ranges::any_of(call.makes(), is_written))
      return;
    const Operand *weight = operand_of(result, "weight"), *bias = operand_of(result, "bias");
    WeightPlaces places{parameter(weight), parameter(bias)};
    // If the bias is computed from something else, autograd computes its gradient.
    const auto bias_is_plain = [&](const Operand* b) {
      return !b || b->from == Operand::From::Constant || parameter(b) >= 0;
    };
    if (call.op == "aten::linear" && places.weight >= 0 && bias_is_plain(bias)) {
      result.form = Form::Linear;
    } else if (call.op == "aten::addmm" && call.overload.empty()) {
      const Operand *b = operand_of(result, "self"), *w = operand_of(result, "mat2");
      places = {parameter(w), parameter(b)};
      const auto is_one = [&](const char* name) {
        const c10::IValue& v = operand_of(result, name)->constant;
        return v.isScalar() && v.toScalar().equal(1);
      };
      const auto rank =
          program_.tensors.find(b->from == Operand::From::Place ? call.argument("self")->text : "");
      const bool is_vector = rank != program_.tensors.end() && rank->second.sizes.size() == 1;
      if (places.weight < 0 || places.bias < 0 || !is_one("beta") || !is_one("alpha") || !is_vector) return;
      result.form = Form::Addmm;
    } else if (call.op == "aten::embedding" && places.weight >= 0) {
      const c10::IValue& scaled = operand_of(result, "scale_grad_by_freq")->constant;
      const c10::IValue& sparse = operand_of(result, "sparse")->constant;
      if (operand_of(result, "padding_idx")->from != Operand::From::Constant || scaled.toBool() ||
          sparse.toBool())
        return;
      result.form = Form::Embedding;
    } else if ((call.op == "aten::conv1d" || call.op == "aten::conv2d" || call.op == "aten::conv3d") &&
               call.overload.empty() && places.weight >= 0 && bias_is_plain(bias)) {
      const auto input = program_.tensors.find(call.argument("input")->text);
      const std::size_t rank = static_cast<std::size_t>(call.op[call.op.size() - 2] - '0') + 2;
      if (input == program_.tensors.end() || input->second.sizes.size() != rank) return;
      for (const char* name : {"stride", "padding", "dilation", "groups"})
        if (operand_of(result, name)->from != Operand::From::Constant) return;
      result.form = Form::Convolution;
    }
    result.weights = places;
  }

  void refuse(const FlatCall& call, const std::string& why) {
    if (problems_.size() < 20)
      problems_.push_back({"call " + escaped(call.name) + ", " + call.op, why,
                           "the archive may be of another torch: export it again with torch 2.11"});
  }

  const FlatProgram& program_;
  std::size_t first_parameter_, trainable_;
  const std::set<std::string>& buffers_;
  std::unordered_map<std::string, int> places_;
  int given_ = 0;  ///< number of places of given values
  Problems problems_;
};

Result<std::shared_ptr<const CallRunner>> CallRunner::compile(
    std::vector<FlatCall> calls, const FlatProgram& program, const std::vector<std::string>& given,
    std::size_t first_parameter, std::size_t trainable, const std::set<std::string>& buffers,
    const std::vector<std::string>& wanted) {
  return CallCompiler(program, given, first_parameter, trainable, buffers).compile(std::move(calls), wanted);
}

namespace {

std::vector<std::int64_t> sizes_of(const c10::IValue& value, std::size_t length) {
  std::vector<std::int64_t> sizes =
      value.isInt() ? std::vector<std::int64_t>{value.toInt()} : value.toIntVector();
  if (sizes.size() == 1) sizes.resize(length, sizes[0]);
  return sizes;
}

ExportedArgument with_values(const ExportedArgument& argument, const SymbolValues& symbols,
                             const std::string& call) {
  ExportedArgument result = argument;
  for (SizeExpression& size : result.sizes) {
    const auto value = size.value(symbols);
    if (!value) throw InternalError("call " + call + ": the size " + size.text() + " is not known");
    size = *value;
  }
  return result;
}

/// Returns the input after dropout.
at::Tensor dropped(const at::Tensor& input, double p, const CallPass& pass, const std::string& call) {
  if (p >= 1) return input.mul(at::zeros_like(input));
  return input.mul(dropout_mask(input, p, derive_seed(pass.random_seed, call), pass.masks));
}

}  // namespace

/// Returns a text for messages: "call conv2d_1 in encoder.conv (aten::conv2d) of [8, 3, 32, 32]: ".
std::string CallRunner::place_of(const Call& call, const std::vector<at::Tensor>& values) {
  std::string shapes;
  const auto add = [&](int place) {
    if (place < 0 || !values[place].defined()) return;
    shapes += (shapes.empty() ? "" : ", ") + text_of(values[place].sizes().vec());
  };
  for (const Operand& operand : call.operands) {
    if (operand.from == Operand::From::Place) add(operand.place);
    for (int place : operand.places) add(place);
  }
  return "call " + call.name + (call.module.empty() ? "" : " in " + call.module) + " (" +
         call.op->operator_name().name + ")" + (shapes.empty() ? "" : " of ") + shapes + ": ";
}

std::vector<at::Tensor> CallRunner::run(std::vector<at::Tensor> values, const CallPass& pass) const {
  const Call* running = nullptr;
  try {
    return run_calls(values, pass, running);
  } catch (...) {
    if (!running) throw;
    rethrow_with(place_of(*running, values));
  }
}

std::vector<at::Tensor> CallRunner::run_calls(std::vector<at::Tensor>& values, const CallPass& pass,
                                              const Call*& running) const {
  const at::Device device = values.empty() ? at::Device(at::kCPU) : values.front().device();
  values.resize(num_places_);
  std::vector<at::Tensor> buffers;  // set in evaluation, in which buffers keep their values
  if (!pass.training)
    for (int place : buffers_) buffers.push_back(values[place]);
  const auto lies_in_a_buffer = [&](const at::Tensor& written) {
    return std::ranges::any_of(buffers, [&](const at::Tensor& b) { return b.is_alias_of(written); });
  };
  const auto at_place = [&](int place) -> at::Tensor& { return values[place]; };
  torch::jit::Stack stack;
  for (const Call& call : calls_) {
    running = &call;
    at::AutoGradMode mode(at::GradMode::is_enabled() && !call.without_gradient);
    const auto finish = [&] {
      for (int place : call.read_last) at_place(place).reset();
    };
    const auto tensor = [&](std::size_t i) {
      const Operand& operand = call.operands[i];
      return operand.from == Operand::From::Place ? at_place(operand.place) : at::Tensor();
    };
    const auto give = [&](at::Tensor value) {
      if (!call.outputs.empty() && !call.outputs[0].empty() && call.outputs[0][0] >= 0)
        at_place(call.outputs[0][0]) = std::move(value);
      finish();
    };
    if (!pass.training &&
        std::ranges::any_of(call.writes, [&](int place) { return lies_in_a_buffer(at_place(place)); })) {
      give(at_place(call.writes.front()));
      continue;
    }
    using Form = Call::Form;
    const bool evaluates = !pass.training || (call.draws && !pass.draws);
    if (call.form == Form::Dropout && !evaluates) {
      give(dropped(tensor(0), call.operands[1].constant.toDouble(), pass, call.name));
      continue;
    }
    if (pass.pending && call.form != Form::Plain && call.form != Form::Dropout) {
      const auto constant = [&](std::size_t i) -> const c10::IValue& { return call.operands[i].constant; };
      if (call.form == Form::Linear) {
        const at::Tensor x = tensor(0);
        give(run_split(split_linear(x, tensor(1), tensor(2), call.weights), x, pass.pending));
      } else if (call.form == Form::Addmm) {
        const at::Tensor x = tensor(1);
        give(run_split(split_addmm(tensor(0), x, tensor(2), call.weights), x, pass.pending));
      } else if (call.form == Form::Embedding) {
        const at::Tensor indices = tensor(1);
        give(run_split(split_embedding(tensor(0), indices, constant(2).toInt(), call.weights), indices,
                       pass.pending));
      } else {
        const at::Tensor x = tensor(0);
        const auto length = static_cast<std::size_t>(x.dim() - 2);
        ConvolutionNumbers numbers{.stride = sizes_of(constant(3), length),
                                   .padding = sizes_of(constant(4), length),
                                   .dilation = sizes_of(constant(5), length),
                                   .groups = constant(6).toInt()};
        give(run_split(split_convolution(x, tensor(1), tensor(2), std::move(numbers), call.weights), x,
                       pass.pending));
      }
      continue;
    }
    stack.clear();
    for (const Operand& operand : call.operands) {
      switch (operand.from) {
        case Operand::From::Constant:
          stack.push_back(operand.constant);
          break;
        case Operand::From::Place:
          stack.emplace_back(at_place(operand.place));
          break;
        case Operand::From::Places:
          if (operand.optional) {
            c10::List<std::optional<at::Tensor>> list;
            for (int place : operand.places)
              list.push_back(place < 0 ? std::nullopt : std::optional(at_place(place)));
            stack.emplace_back(std::move(list));
          } else {
            c10::List<at::Tensor> list;
            for (int place : operand.places) list.push_back(at_place(place));
            stack.emplace_back(std::move(list));
          }
          break;
        case Operand::From::Sizes: {
          const auto value =
              constant_as(with_values(operand.sizes, *pass.symbols, call.name), operand.type, operand.length);
          if (!value) throw InternalError("call " + call.name + ": a size where none is taken");
          stack.push_back(*value);
          break;
        }
        case Operand::From::Device:
          stack.emplace_back(device);
          break;
      }
    }
    if (evaluates) {
      for (const auto& [index, value] : call.evaluation) stack[index] = value;
      if (call.draws_bernoulli) {  // takes the average of the draws
        give(tensor(0).fill_(call.operands[1].constant.toDouble()));
        continue;
      }
    }
    if (call.normalises_batch && pass.training) {
      const at::Tensor& x = stack.front().toTensor();
      if (const std::string problem = problem_of_statistics(x.sizes(), x.size(1)); !problem.empty())
        throw ConfigError(problem, kMoreValues);
    }
    if (call.draws && pass.training) {
      const SeededDraws seeded(device, derive_seed(pass.random_seed, call.name));
      call.op->callBoxed(stack);
    } else {
      call.op->callBoxed(stack);
    }
    for (std::size_t r = 0; r < call.outputs.size(); ++r) {
      const std::vector<int>& places = call.outputs[r];
      if (call.output_is_list[r]) {
        const c10::List<at::Tensor> list = stack[r].toTensorList();
        if (list.size() != places.size())
          throw ConfigError("call " + call.name + " makes " + std::to_string(list.size()) + " tensors, " +
                            std::to_string(places.size()) + " when it was exported");
        for (std::size_t k = 0; k < places.size(); ++k)
          if (places[k] >= 0) at_place(places[k]) = list.get(k);
      } else if (!places.empty() && places[0] >= 0) {
        at_place(places[0]) = stack[r].isTensor() ? stack[r].toTensor() : at::Tensor();
      }
    }
    finish();
  }
  running = nullptr;
  std::vector<at::Tensor> result;
  for (int place : wanted_) result.push_back(at_place(place));
  return result;
}

}  // namespace millrace
