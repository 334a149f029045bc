#include "models/exported/fused_calls.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

namespace millrace {
namespace {

using Kind = ExportedArgument::Kind;

bool is_near(std::optional<double> value, double expected) {
  return value && std::abs(*value - expected) <= 1e-6 * std::abs(expected);
}

ExportedArgument number(double value) {
  return {.kind = Kind::Float, .numbers = {value}};
}

class CallFuser {
 public:
  CallFuser(FlatProgram& program, const std::string& result, const std::set<std::string>& differentiable)
      : program_(program), differentiable_(differentiable) {
    ++uses_[result];
    for (std::size_t i = 0; i < program_.calls.size(); ++i) {
      for (const std::string& value : program_.calls[i].reads()) ++uses_[value];
      for (const std::string& value : program_.calls[i].makes()) maker_.emplace(value, i);
    }
  }

  void run() {
    for (FlatCall& call : program_.calls) {
      within_.clear();
      if (std::optional<FlatCall> fused = call.op == "aten::mul" ? gelu(call) : attention(call)) {
        for (const FlatCall* part : within_) gone_.insert(part->name);
        call = *std::move(fused);
      }
    }
    std::erase_if(program_.calls, [&](const FlatCall& call) { return gone_.contains(call.name); });
  }

 private:
  // ---- arguments of calls ----

  static const std::string& value_of(const FlatCall* call, const char* argument) {
    static const std::string kNone;
    const ExportedArgument* found = call ? call->argument(argument) : nullptr;
    return found && found->kind == Kind::Tensor ? found->text : kNone;
  }
  static std::optional<double> number_of(const FlatCall* call, const char* argument) {
    const ExportedArgument* found = call ? call->argument(argument) : nullptr;
    if (found && found->kind == Kind::Float) return found->numbers[0];
    if (found && found->kind == Kind::Int && found->sizes[0].is_number())
      return static_cast<double>(found->sizes[0].number());
    return std::nullopt;
  }
  bool is_untouched(const std::string& value) const {
    return !value.empty() && !program_.written_with(value);
  }
  const ExportedTensor* tensor(const std::string& value) const {
    const auto found = program_.tensors.find(value);
    return found == program_.tensors.end() ? nullptr : &found->second;
  }
  bool has_rank(const std::string& value, std::size_t rank) const {
    return tensor(value) && tensor(value)->sizes.size() == rank;
  }
  bool is_real(const std::string& value) const {
    return tensor(value) && at::isFloatingType(torch_type(tensor(value)->scalar_type));
  }
  bool same_type(const std::string& a, const std::string& b) const {
    return tensor(a) && tensor(b) && tensor(a)->scalar_type == tensor(b)->scalar_type;
  }

  /// Returns the call of `op` that makes `value` for a single reader, and adds it to the calls being matched.
  const FlatCall* part(const std::string& value, std::string_view op) {
    const auto found = maker_.find(value);
    if (found == maker_.end() || !is_untouched(value)) return nullptr;
    const FlatCall& call = program_.calls[found->second];
    if (call.op != op || !call.writes.empty() || uses_.at(value) != 1 || gone_.contains(call.name))
      return nullptr;
    within_.push_back(&call);
    return &call;
  }
  /// Returns the call x + y without a factor. The caller must try x and y in both orders.
  const FlatCall* plain_sum(const std::string& value) {
    const FlatCall* sum = part(value, "aten::add");
    return sum && (!sum->argument("alpha") || number_of(sum, "alpha") == 1) ? sum : nullptr;
  }
  const FlatCall* times(const std::string& value, double factor) {
    const FlatCall* product = part(value, "aten::mul");
    return product && is_near(number_of(product, "other"), factor) ? product : nullptr;
  }
  bool under_one_mode(const FlatCall& last) const {
    return std::ranges::all_of(
        within_, [&](const FlatCall* call) { return call->without_gradient == last.without_gradient; });
  }
  static FlatCall replaced(const FlatCall& last, std::string op,
                           std::vector<std::pair<std::string, ExportedArgument>> arguments) {
    FlatCall call = last;
    call.op = std::move(op);
    call.overload.clear();
    call.arguments = std::move(arguments);
    return call;
  }

  // ---- GELU ----

  std::optional<FlatCall> gelu(const FlatCall& last) {
    for (auto [half_side, tanh_side] : {std::pair("self", "other"), std::pair("other", "self")}) {
      within_.clear();
      const FlatCall* half = times(value_of(&last, half_side), 0.5);
      const std::string& x = value_of(half, "self");
      const FlatCall* one_more = half ? plain_sum(value_of(&last, tanh_side)) : nullptr;
      if (!is_untouched(x) || !is_real(x) || number_of(one_more, "other") != 1) continue;
      const FlatCall* tanh = part(value_of(one_more, "self"), "aten::tanh");
      const FlatCall* inside = times(value_of(tanh, "self"), std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
      const FlatCall* sum = plain_sum(value_of(inside, "self"));
      const bool x_first = value_of(sum, "self") == x;
      const FlatCall* cubic = times(value_of(sum, x_first ? "other" : "self"), 0.044715);
      const FlatCall* cube = part(value_of(cubic, "self"), "aten::pow");
      if (!cube || value_of(sum, x_first ? "self" : "other") != x || value_of(cube, "self") != x ||
          number_of(cube, "exponent") != 3 || !under_one_mode(last))
        continue;
      return replaced(last, "aten::gelu",
                      {{"self", {.kind = Kind::Tensor, .text = x}},
                       {"approximate", {.kind = Kind::String, .text = "tanh"}}});
    }
    return std::nullopt;
  }

  // ---- attention ----

  /// Returns the value before calls that change nothing, such as dropout of nothing or a cast to the same
  /// type.
  std::string past_no_operations(std::string value) {
    for (;;) {
      if (const FlatCall* dropout = part(value, "aten::dropout"); dropout && number_of(dropout, "p") == 0) {
        value = value_of(dropout, "input");
      } else if (const FlatCall* cast = part(value, "aten::to");
                 cast && cast->overload == "dtype" && same_type(value, value_of(cast, "self"))) {
        value = value_of(cast, "self");
      } else {
        return value;
      }
    }
  }
  const FlatCall* transposed(const std::string& value) {
    const FlatCall* call = part(value, "aten::transpose");
    const auto a = number_of(call, "dim0"), b = number_of(call, "dim1");
    if (!a || !b) return nullptr;
    const auto from_end = [](double d) { return d < 0 ? d : d - 4; };
    return std::min(from_end(*a), from_end(*b)) == -2 && std::max(from_end(*a), from_end(*b)) == -1 ? call
                                                                                                    : nullptr;
  }
  /// Returns whether all readers take a value with any strides. The fused operator's output has other strides
  /// than the product's.
  bool readers_take_any_strides(const std::string& value) const {
    static const std::set<std::string> kTake{"aten::transpose", "aten::permute", "aten::reshape",
                                             "aten::contiguous", "aten::clone"};
    return is_untouched(value) && std::ranges::all_of(program_.calls, [&](const FlatCall& call) {
             const std::vector<std::string> read = call.reads();
             return std::ranges::find(read, value) == read.end() || kTake.contains(call.op);
           });
  }

  std::optional<FlatCall> attention(const FlatCall& last) {
    if (last.op != "aten::matmul" || last.makes().empty()) return std::nullopt;
    const std::string weights = past_no_operations(value_of(&last, "self"));
    const FlatCall* softmax = part(weights, "aten::softmax");
    const std::string& softmax_of = value_of(softmax, "self");
    const auto dim = number_of(softmax, "dim");
    if (!softmax || !(dim == -1 || dim == 3) || !same_type(weights, softmax_of)) return std::nullopt;
    std::string scores = softmax_of, mask;
    if (const FlatCall* sum = plain_sum(scores)) {
      scores = value_of(sum, "self");
      mask = value_of(sum, "other");
      if (!is_untouched(mask) || differentiable_.contains(mask) || !has_rank(mask, 4) ||
          !same_type(mask, scores))
        return std::nullopt;
    }
    double scale = 1;
    for (const bool divides : {false, true}) {
      const FlatCall* scaled = part(scores, divides ? "aten::div" : "aten::mul");
      if (!scaled) continue;
      const auto factor = number_of(scaled, "other");
      if (!factor || *factor == 0 || scaled->argument("rounding_mode")) return std::nullopt;
      scale = divides ? 1 / *factor : *factor;
      scores = value_of(scaled, "self");
    }
    const FlatCall* product = part(scores, "aten::matmul");
    const std::string& query = value_of(product, "self");
    const FlatCall* turned = transposed(value_of(product, "other"));
    const std::string &key = value_of(turned, "self"), &value = value_of(&last, "other");
    if (!turned || !under_one_mode(last) || !readers_take_any_strides(last.makes().front()))
      return std::nullopt;
    for (const std::string* operand : {&query, &key, &value})
      if (!is_untouched(*operand) || !has_rank(*operand, 4) || !same_type(*operand, scores))
        return std::nullopt;
    std::vector<std::pair<std::string, ExportedArgument>> arguments{
        {"query", {.kind = Kind::Tensor, .text = query}},
        {"key", {.kind = Kind::Tensor, .text = key}},
        {"value", {.kind = Kind::Tensor, .text = value}}};
    if (!mask.empty()) arguments.push_back({"attn_mask", {.kind = Kind::Tensor, .text = mask}});
    arguments.push_back({"dropout_p", number(0)});
    arguments.push_back({"scale", number(scale)});
    return replaced(last, "aten::scaled_dot_product_attention", std::move(arguments));
  }

  FlatProgram& program_;
  const std::set<std::string>& differentiable_;
  std::map<std::string, std::size_t> maker_;
  std::map<std::string, int> uses_;
  std::vector<const FlatCall*> within_;  ///< the matched calls without the last one
  std::set<std::string> gone_;
};

}  // namespace

void fuse_calls(FlatProgram& program, const std::string& result,
                const std::set<std::string>& differentiable) {
  CallFuser(program, result, differentiable).run();
}

}  // namespace millrace
