// The launcher's decision when a job has failed: start it again from its newest checkpoint, on other hosts
// where some are lost, or end.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver/launch/job_spec.h"
#include "driver/launch/launcher.h"

namespace millrace {

/// Exit code of a job that failed again and again without getting on: a scheduler must not start it anew.
inline constexpr int kBreakerExit = 93;

/// One job's restarts. The delay before a restart doubles from 1 s to 60 s while the job does not get on.
/// There is none where the job has got on and ranks are kept: they have the model, and only wait. Three
/// restarts in a row without a further step open the breaker.
class Restarts {
 public:
  explicit Restarts(const JobSpec& job);

  struct Again {
    std::chrono::milliseconds delay{0};
    std::vector<JobOverride> overrides;  ///< on top of all that were given so far
    std::string text;                    ///< one line for the user
  };
  /// Says what to do after a run that has ended. Nothing: it is done, was stopped, cannot be mended by
  /// another try, or has no restarts left. A run that failed while it was stopped may be mended, too.
  std::optional<Again> after(const LaunchOutcome& outcome, const JobSpec& job);
  /// The same where hosts, by position, could not start their ranks at all.
  std::optional<Again> after_failed_start(const JobSpec& job, const std::vector<std::size_t>& unready);

  /// Why a job that may have restarts left is not started again; empty: there is no such reason.
  const std::string& why_not() const { return why_not_; }
  /// The exit code of the whole: `code` of the last run, or kBreakerExit.
  int exit_code(int code) const { return breaker_ ? kBreakerExit : code; }

 private:
  std::optional<Again> again(const JobSpec& job, const std::vector<std::size_t>& lost, int kept = 0);
  /// Puts spare hosts in the places of lost ones. Where there are too few, the job takes a plan for fewer
  /// ranks, if it has one that fits; else the lost hosts are tried again.
  void replace(const JobSpec& job, const std::vector<std::size_t>& lost, Again& again);

  std::optional<double> time_limit_;  ///< seconds, of all runs together, from this process's start
  std::vector<HostEntry> spares_;
  int made_ = 0;
  int fruitless_ = 0;           ///< restarts in a row that came no further
  std::int64_t furthest_ = -1;  ///< step that some run has reached
  bool breaker_ = false;
  std::string why_not_;
};

/// Joins what the ranks that are left had (runtime/saved/rescued.h) into the newest checkpoint, if the job is
/// one that restarts. Returns its step; nothing: they did not have all.
std::optional<std::int64_t> keep_what_is_left(const LaunchOutcome& outcome, const JobSpec& job);

}  // namespace millrace
