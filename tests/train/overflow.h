// Models with numbers that are not finite: gradients in chosen steps of chosen jobs, activations of a
// microbatch.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/full_like.h>
#include <ATen/ops/sum.h>

#include "runtime/base/random.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {

/// Passes on; what goes back is infinite for one microbatch of the run.
class Overflow final : public Layer {
 public:
  explicit Overflow(std::vector<std::uint64_t> seeds) : seeds_(std::move(seeds)) {}
  std::string kind() const override { return "overflow"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool draws() const override { return true; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "bias", .shape = {16}, .init = Init::Ones}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved* saved) const override {
    if (saved) saved->numbers = {std::ranges::find(seeds_, context.random_seed) != seeds_.end()};
    return inputs[0];
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }
  void backward_weight(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> grads) const override {
    grads[0].add_(grad.sum({0}));
    if (saved.numbers[0]) grads[0][3].fill_(std::numeric_limits<double>::infinity());
  }

 private:
  std::vector<std::uint64_t> seeds_;
};

/// small_model() whose layer "i" overflows in these steps of 4 microbatches, in one microbatch each, where
/// the seed is `seed`.
inline LayeredModel overflowing_where(
    const std::vector<std::pair<std::uint64_t, std::int64_t>>& seeds_and_steps) {
  LayeredModel model = small_model();
  std::vector<std::uint64_t> seeds;
  for (const auto& [seed, step] : seeds_and_steps)
    seeds.push_back(derive_seed(seed, "i", static_cast<std::uint64_t>(step * 4 + 2)));
  model.layers[8].layer = std::make_shared<Overflow>(std::move(seeds));
  return model;
}
inline LayeredModel overflowing(const std::vector<std::int64_t>& steps) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> of_seed;
  for (const std::int64_t step : steps) of_seed.emplace_back(11, step);
  return overflowing_where(of_seed);
}

/// Passes on, but for one microbatch of the run, whose activations are NaN.
class NanForward final : public Layer {
 public:
  explicit NanForward(std::uint64_t seed) : seed_(seed) {}
  std::string kind() const override { return "nan"; }
  bool draws() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved*) const override {
    if (!context.training || context.random_seed != seed_) return inputs[0];
    return at::full_like(inputs[0], std::numeric_limits<double>::quiet_NaN());
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }

 private:
  std::uint64_t seed_;
};

}  // namespace millrace
