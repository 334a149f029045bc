// AR and TAR, the terms that AWD-LSTM adds to the loss.
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/base/error.h"
#include "runtime/layers/head.h"

namespace millrace {
namespace {

class ActivationPenalty final : public Head {
 public:
  explicit ActivationPenalty(const ActivationPenaltyOptions& options) : o_(options) {}
  std::string kind() const override { return "activation_penalty"; }
  bool like(const Head& other) const override {
    const ActivationPenaltyOptions& o = static_cast<const ActivationPenalty&>(other).o_;
    return o_.activation == o.activation && o_.change == o.change;
  }
  std::vector<std::string> metrics() const override { return {"loss", "activation", "change"}; }
  std::string weight() const override { return "tokens"; }

  void check(std::span<const TensorSpec> inputs) const override {
    const bool fits = (inputs.size() == 1 || inputs.size() == 2) && inputs.front().shape.size() == 3 &&
                      inputs.front().shape == inputs.back().shape &&
                      at::isFloatingType(inputs.front().dtype) && at::isFloatingType(inputs.back().dtype);
    if (!fits) throw ConfigError("activation_penalty needs one or two tensors [T, B, F]");
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const at::Tensor all = forward_on_device(inputs, saved);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += all.const_data_ptr<double>()[i];
  }

  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor &read = inputs.front(), &made = inputs.back();
    const std::int64_t steps = made.size(0);
    at::Tensor sums = at::zeros({4}, read.options().dtype(at::kDouble));
    const double tokens = double(steps) * double(made.size(1));
    sums[3].fill_(tokens);
    if (!saved) return sums;
    at::Tensor changes = at::sub(made.narrow(0, 1, steps - 1), made.narrow(0, 0, steps - 1));
    const auto mean_square = [](const at::Tensor& t) { return t.to(at::kDouble).square().mean(); };
    sums[1].copy_(mean_square(read));
    if (steps > 1) sums[2].copy_(mean_square(changes));
    sums[0].copy_(sums[1].mul(o_.activation).add(sums[2], o_.change));
    sums.narrow(0, 0, 3).mul_(tokens);
    saved->numbers = {static_cast<std::int64_t>(inputs.size())};
    saved->tensors = {read, std::move(changes)};
    return sums;
  }

  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &read = saved.tensors[0], &changes = saved.tensors[1];
    at::Tensor of_read = at::mul(read, 2 * o_.activation * scale.share / double(read.numel()));
    at::Tensor of_made = at::zeros_like(read);
    if (const std::int64_t differences = changes.size(0); differences > 0) {
      const at::Tensor step = at::mul(changes, 2 * o_.change * scale.share / double(changes.numel()));
      of_made.narrow(0, 1, differences).add_(step);
      of_made.narrow(0, 0, differences).sub_(step);
    }
    if (saved.numbers[0] == 1) return {of_read.add_(of_made)};
    return {std::move(of_read), std::move(of_made)};
  }

 private:
  ActivationPenaltyOptions o_;
};

}  // namespace

HeadPtr activation_penalty_head(const ActivationPenaltyOptions& options) {
  return std::make_shared<ActivationPenalty>(options);
}

}  // namespace millrace
