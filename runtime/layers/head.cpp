#include "runtime/layers/head.h"

#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/sums_on_device.h"

namespace millrace {

at::Tensor Head::forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const {
  std::vector<at::Tensor> here;
  for (const at::Tensor& input : inputs) here.push_back(input.cpu());
  std::vector<double> sums(num_sums(), 0.0);
  forward(here, saved, sums);
  if (saved) {
    for (at::Tensor& tensor : saved->tensors) tensor = tensor.to(inputs[0].device());
  }
  return at::tensor(sums, at::kDouble).to(inputs[0].device());
}

NamedValues Head::values(std::span<const double> sums) const {
  const std::vector<std::string> names = metrics();
  MILLRACE_CHECK(sums.size() == names.size() + 1);
  NamedValues result;
  for (std::size_t i = 0; i < names.size(); ++i)
    result.emplace_back(names[i], sums.back() != 0 ? sums[i] / sums.back() : 0.0);
  return result;
}

namespace {

class MeanSquaredError final : public Head {
 public:
  std::string kind() const override { return "mean_squared_error"; }
  std::vector<std::string> metrics() const override { return {"loss"}; }
  void check(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() == 2 && inputs[0].shape == inputs[1].shape && !inputs[0].shape.empty() &&
        at::isFloatingType(inputs[0].dtype) && at::isFloatingType(inputs[1].dtype))
      return;
    throw ConfigError("mean_squared_error needs a prediction and a target of one floating shape [B, ...]");
  }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    at::Tensor difference = at::sub(inputs[0], inputs[1]);  // [B, ...]
    const auto samples = static_cast<double>(difference.size(0));
    sums[0] += at::mean(at::mul(difference, difference)).item<double>() * samples;
    sums[1] += samples;
    if (saved) saved->tensors = {std::move(difference)};
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor difference = at::sub(inputs[0], inputs[1]);
    if (saved) saved->tensors = {difference};
    return sums_on_device({at::mean(at::mul(difference, difference))}, double(difference.size(0)));
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale,
                                   std::span<const bool> needs) const override {
    const at::Tensor& difference = saved.tensors[0];
    at::Tensor grad = at::mul(difference, 2 * scale.share / double(difference.numel()));
    return {grad, needs.size() > 1 && needs[1] ? grad.neg() : at::Tensor()};
  }
};

}  // namespace

HeadPtr mean_squared_error_head() {
  return std::make_shared<MeanSquaredError>();
}

}  // namespace millrace
