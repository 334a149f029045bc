#include "runtime/stage/update_rule.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/base/check.h"

namespace millrace {
namespace {

class Sgd final : public UpdateRule {
 public:
  Sgd(const RuleOptions& options, const at::Tensor& like) : options_(options) {
    if (options.momentum != 0) momentum_ = at::zeros_like(like);
  }
  void apply_(at::Tensor weights, const at::Tensor& gradient, double lr) override {
    std::vector<at::Tensor> parameters{std::move(weights)}, gradients{gradient}, momenta;
    if (momentum_.defined()) momenta.push_back(momentum_);
    // With momentum buffers of zeros the first step gives momentum = gradient, as is_first_step does.
    at::_fused_sgd_(parameters, gradients, momenta, options_.weight_decay, options_.momentum, lr,
                    /*dampening=*/0,
                    /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false);
    count_update();
  }
  std::vector<std::pair<std::string, at::Tensor>> state() override {
    if (!momentum_.defined()) return {};
    return {{"momentum_buffer", momentum_}};
  }

 private:
  RuleOptions options_;
  at::Tensor momentum_;
};

class Adam final : public UpdateRule {
 public:
  Adam(const RuleOptions& options, const at::Tensor& like)
      : options_(options), average_(at::zeros_like(like)), square_(at::zeros_like(like)) {}
  void apply_(at::Tensor weights, const at::Tensor& gradient, double lr) override {
    count_update();
    // One call; where counts differ, with a part of the flat tensors for each.
    std::vector<at::Tensor> parameters, gradients, averages, squares, maxima, steps;
    for (std::size_t i = 0; i < counts().size(); ++i) {
      const std::int64_t begin = counts()[i].begin,
                         end = i + 1 < counts().size() ? counts()[i + 1].begin : weights.numel();
      const auto put = [&](std::vector<at::Tensor>& list, const at::Tensor& flat) {
        list.push_back(flat.narrow(0, begin, end - begin));
      };
      put(parameters, weights);
      put(gradients, gradient);
      put(averages, average_);
      put(squares, square_);
      steps.push_back(at::full({}, static_cast<double>(counts()[i].updates), weights.options()));
    }
    at::_fused_adam_(parameters, gradients, averages, squares, maxima, steps, lr, options_.beta1,
                     options_.beta2, options_.weight_decay, options_.epsilon, /*amsgrad=*/false,
                     /*maximize=*/false);
  }
  std::vector<std::pair<std::string, at::Tensor>> state() override {
    return {{"exp_avg", average_}, {"exp_avg_sq", square_}};
  }

 private:
  RuleOptions options_;
  at::Tensor average_, square_;
};

}  // namespace

std::int64_t UpdateRule::updates(std::int64_t element) const {
  const auto after = std::ranges::upper_bound(counts_, element, {}, &UpdateCount::begin);
  return std::prev(after)->updates;
}

void UpdateRule::set_updates(std::vector<UpdateCount> counts) {
  MILLRACE_CHECK(!counts.empty() && counts.front().begin == 0);
  counts_.clear();
  for (const UpdateCount& count : counts) {
    if (counts_.empty() || counts_.back().updates != count.updates) counts_.push_back(count);
  }
}

void UpdateRule::count_update() {
  for (UpdateCount& count : counts_) ++count.updates;
}

std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const at::Tensor& like) {
  if (options.kind == UpdateRuleKind::Adam) return std::make_unique<Adam>(options, like);
  return std::make_unique<Sgd>(options, like);
}

double learning_rate(const LearningRateOptions& options, std::int64_t step) {
  if (step < options.warmup_steps) return options.base * double(step + 1) / double(options.warmup_steps);
  const double progress =
      std::min(1.0, double(step) / double(std::max<std::int64_t>(1, options.total_steps)));
  switch (options.policy) {
    case RatePolicy::Constant:
      break;
    case RatePolicy::Step:
      return options.base * std::pow(options.gamma, double(step / options.step_size));
    case RatePolicy::Polynomial:
      return options.base * std::pow(1 - progress, options.power);
    case RatePolicy::Exponential:
      return options.base * std::pow(options.gamma, progress);
  }
  return options.base;
}

Problems validate(const LearningRateOptions& options) {
  Problems problems;
  if (options.policy == RatePolicy::Step && options.step_size < 1) {
    problems.push_back(
        {"--lr-step-size", "policy step needs a step size of at least 1", "give --lr-step-size N"});
  }
  return problems;
}

}  // namespace millrace
