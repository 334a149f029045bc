// Durations that a workload draws: a number, mean and spread, or a named distribution.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/base/result.h"

namespace millrace {

/// Seconds. DLIO's families, and log-normal, mixtures and samples of measurements (`empirical`) beside them.
struct TimeSpec {
  enum class Kind { Constant, Normal, Uniform, Gamma, Exponential, Poisson, LogNormal, Empirical, Mixture };
  Kind kind = Kind::Constant;
  double a = 0;  ///< constant: value; normal: mean; uniform: min; gamma: shape; exponential: scale; poisson:
                 ///< lam; lognormal: mu of the logarithm
  double b = 0;  ///< normal: stdev; uniform: max; gamma: scale; lognormal: sigma
  std::vector<double> values;        ///< empirical
  std::vector<double> weights;       ///< mixture: sum to one
  std::vector<TimeSpec> components;  ///< mixture

  bool is_zero() const { return kind == Kind::Constant && a == 0; }
  double mean() const;
};

/// Never negative: DLIO takes the absolute value of what it draws, and so does this.
double draw(const TimeSpec& spec, RandomStream& random);

/// A number, `{mean, stdev}`, or `{type: ..., parameters}`. Problems name the key.
Result<TimeSpec> parse_time_spec(const Json& json, const std::string& key);

/// Waits by sleeping until shortly before the time and spinning the rest. How shortly, it learns from how
/// late the sleeps ended: a fair part of them, at most `longest_spin`. One thread.
class PreciseWait {
 public:
  explicit PreciseWait(std::chrono::nanoseconds longest_spin) : longest_spin_(longest_spin) {}
  void until(TimePoint when);

 private:
  std::chrono::nanoseconds longest_spin_;
  double lateness_ns_ = 60'000;  // of a sleep, decaying maximum
};

}  // namespace millrace
