#include "runtime/rules/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace millrace {
namespace {

/// The initial rate of an exponential warm-up, as a share of the base rate (MLPerf GNMT).
constexpr double kWarmUpStart = 0.01;

double warmup_steps(const LearningRateOptions& o) {
  return o.warmup_fraction > 0 ? o.warmup_fraction * double(o.total_steps) : double(o.warmup_steps);
}

double gnmt_rate(const LearningRateOptions& o, double t, double total) {
  // A share of the steps is rounded down to a whole step, as in the reference.
  const double remain = o.remain > 1 ? o.remain : std::floor(o.remain * total);
  if (t < remain) return o.base;
  const double interval = o.decay_interval > 0
                              ? double(o.decay_interval)
                              : std::max(1.0, std::floor((total - remain) / double(o.decays)));
  const double decays = std::min(double(o.decays), std::floor((t - remain) / interval) + 1);
  return o.base * std::pow(o.gamma, decays);
}

double policy_rate(const LearningRateOptions& o, double t, double total) {
  const double progress = std::clamp(t / std::max(1.0, total), 0.0, 1.0);
  const auto between = [&](double share) {
    return o.end == 0 ? o.base * share : o.base * (o.end + (1 - o.end) * share);
  };
  switch (o.policy) {
    case RatePolicy::Constant:
      break;
    case RatePolicy::Step:
      return o.base * std::pow(o.gamma, std::floor(std::max(0.0, t) / double(o.step_size)));
    case RatePolicy::MultiStep:
      return o.base * std::pow(o.gamma, double(std::ranges::count_if(
                                            o.milestones, [t](std::int64_t m) { return double(m) <= t; })));
    case RatePolicy::Polynomial:
      return between(std::pow(1 - progress, o.power));
    case RatePolicy::Linear:
      return between(1 - progress);
    case RatePolicy::Exponential:
      return o.base * std::pow(o.gamma, progress);
    case RatePolicy::Cosine:
      return between((1 + std::cos(std::numbers::pi * progress)) / 2);
    case RatePolicy::Gnmt:
      return gnmt_rate(o, t, total);
  }
  return o.base;
}

/// Returns the rate during warm-up; nothing afterwards.
std::optional<double> warmup_rate(const LearningRateOptions& o, std::int64_t step) {
  const double w = warmup_steps(o), from_one = double(step + 1);
  if (!o.count_from && o.warmup == WarmUp::Linear)
    return double(step) < w ? std::optional(o.base * from_one / w) : std::nullopt;
  const double t = o.count_from ? double(step + *o.count_from) : from_one;
  if (t >= w) return std::nullopt;
  return o.warmup == WarmUp::Linear ? o.base * t / w : o.base * std::pow(kWarmUpStart, (w - t) / w);
}

}  // namespace

double learning_rate(const LearningRateOptions& o, std::int64_t step) {
  if (const auto rate = warmup_rate(o, step)) return *rate;
  double t = double(step + o.count_from.value_or(0));
  if (o.steps_per_epoch > 0) t = double(step / o.steps_per_epoch * o.steps_per_epoch);
  double total = double(std::max<std::int64_t>(1, o.total_steps));
  if (const double before = o.after_warmup ? warmup_steps(o) : double(o.decay_start); before > 0) {
    t = std::max(0.0, t - before);
    total -= before;
  }
  return policy_rate(o, t, total);
}

bool needs_total(const LearningRateOptions& o) {
  switch (o.policy) {
    case RatePolicy::Constant:
    case RatePolicy::Step:
    case RatePolicy::MultiStep:
      return o.warmup_fraction > 0;
    default:
      return true;
  }
}

Problems validate(const LearningRateOptions& o) {
  Problems problems;
  const auto problem = [&](const char* where, const std::string& what, const std::string& hint) {
    problems.push_back({where, what, hint});
  };
  if (o.policy == RatePolicy::Step && o.step_size < 1)
    problem("--lr-step-size", "policy step needs a step size of at least 1", "give --lr-step-size N");
  if (o.policy == RatePolicy::MultiStep && o.milestones.empty())
    problem("--lr-milestones", "policy multistep needs steps at which the rate changes",
            "for example --lr-milestones 1450,1490");
  if (o.policy != RatePolicy::MultiStep && !o.milestones.empty())
    problem("--lr-milestones", "says nothing to policy " + to_string(o.policy), "give --lr-policy multistep");
  if (!std::ranges::is_sorted(o.milestones, std::ranges::less_equal()))
    problem("--lr-milestones", "are not ascending", "for example 1450,1490");
  if (o.warmup_fraction > 0 && o.warmup_steps > 0)
    problem("--warmup-fraction", "is given beside --warmup-steps", "give one of them");
  if (o.count_from && *o.count_from != 0 && *o.count_from != 1)
    problem("--lr-count-from", "is " + std::to_string(*o.count_from), "0 or 1");
  if (o.count_from && o.steps_per_epoch > 0)
    problem("--lr-count-from", "says nothing to a policy that sees whole epochs", "leave --lr-per-epoch out");
  if (o.decay_start > 0 && (o.after_warmup || !needs_total(o) || o.policy == RatePolicy::Gnmt))
    problem(
        "--lr-decay-start",
        o.after_warmup ? "is given beside --lr-after-warmup"
                       : "says nothing to policy " + to_string(o.policy),
        o.after_warmup ? "give one of them" : "give --lr-policy polynomial, linear, exponential or cosine");
  if (o.policy == RatePolicy::Gnmt && o.decays < 1)
    problem("--lr-decays", "must be at least 1", "4 in MLPerf");
  return problems;
}

}  // namespace millrace
