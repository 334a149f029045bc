// Durations that a workload draws: a number, mean and spread, or a named distribution.
#pragma once

#include <algorithm>
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

/// Plans the waits of one rank or thread, so that their sum does not drift: a wait that ended late makes the
/// next one end as much earlier. Work between two waits counts as it was measured.
class WaitPlan {
 public:
  /// Returns the time from which a wait counts that begins now.
  TimePoint begin(TimePoint now) const { return now - late_; }
  /// The wait that was planned to end at `planned` ended now.
  void ended(TimePoint planned, TimePoint now) { late_ = std::max(TimePoint::duration{}, now - planned); }

 private:
  TimePoint::duration late_{};
};

/// Waits by sleeping until shortly before the time and spinning the rest. How shortly, it learns from how
/// late the sleeps ended: a fair part of them, at most `longest_spin`. One thread.
class PreciseWait {
 public:
  explicit PreciseWait(std::chrono::nanoseconds longest_spin, Clock& clock = steady_clock())
      : longest_spin_(longest_spin), clock_(clock) {}
  void until(TimePoint when);
  /// Returns the time from which the thread's next wait counts: now, less what its last one was too long.
  TimePoint begin() const { return plan_.begin(clock_.now()); }

 private:
  std::chrono::nanoseconds longest_spin_;
  Clock& clock_;
  WaitPlan plan_;
  double lateness_ns_ = 60'000;  // of a sleep, decaying maximum
};

}  // namespace millrace
