#include "runtime/layers/layer.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace millrace {

std::vector<TensorSpec> Layer::outputs(std::span<const TensorSpec> inputs) const {
  std::vector<Shape> shapes;
  for (const TensorSpec& input : inputs) shapes.push_back(input.shape);
  const auto floating =
      std::ranges::find_if(inputs, [](const TensorSpec& t) { return at::isFloatingType(t.dtype); });
  const bool trains = std::ranges::any_of(parameters(), [](const ParameterSpec& p) { return !p.is_buffer; });
  return {{.shape = output_shape(shapes),
           .dtype = floating == inputs.end() ? at::kFloat : floating->dtype,
           .differentiable = trains || std::ranges::any_of(inputs, &TensorSpec::differentiable)}};
}

at::ScalarType compute_dtype(CastPolicy policy, std::span<const TensorSpec> inputs, at::ScalarType lower) {
  const auto is_floating = [](const TensorSpec& t) { return at::isFloatingType(t.dtype); };
  if (std::ranges::none_of(inputs, is_floating)) return at::ScalarType::Undefined;
  if (policy == CastPolicy::Lower) return lower;
  const bool all_lower =
      std::ranges::all_of(inputs, [&](const TensorSpec& t) { return !is_floating(t) || t.dtype == lower; });
  return policy == CastPolicy::Promote && all_lower ? lower : at::kFloat;
}

at::Tensor widened(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf ? t.to(at::kFloat) : t;
}

Shape MultiLayer::output_shape(std::span<const Shape> inputs) const {
  std::vector<TensorSpec> specs;
  for (const Shape& shape : inputs) specs.push_back({.shape = shape});
  return outputs(specs).front().shape;
}

at::Tensor MultiLayer::forward(std::span<const at::Tensor>, std::span<const at::Tensor>,
                               std::span<at::Tensor>, const CallContext&, Saved*) const {
  MILLRACE_CHECK(false, kind() << " has several outputs");
  return {};
}

std::vector<at::Tensor> MultiLayer::backward_input(const at::Tensor&, std::span<const at::Tensor>, Saved&,
                                                   std::span<const bool>) const {
  MILLRACE_CHECK(false, kind() << " has several outputs");
  return {};
}

}  // namespace millrace
