// Faults that tests inject at named points of a run. A point without a fault costs one comparison.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace millrace {

enum class FailpointAction { Kill, Stop, Abort, Segv, Throw, Delay, Nan, Full };
constexpr auto names_of(FailpointAction) {
  return std::to_array<std::string_view>({"kill", "stop", "abort", "segv", "throw", "delay", "nan", "full"});
}

/// An injected fault: the action when a rank reaches a point for the hit-th time.
struct Failpoint {
  /// An action's name ("forward", "update"), "meeting", "model", "evaluation", "checkpoint", "snapshot",
  /// "end", or "file": a system call that writes, syncs or renames a file. The step of a file call is that of
  /// the newest checkpoint.
  std::string place;
  std::optional<int> rank;           ///< unset: every rank
  std::optional<std::int64_t> step;  ///< unset: every step
  int hit = 1;                       ///< fires when the point is reached for the N-th time, counted from 1
  FailpointAction action = FailpointAction::Throw;
  double seconds = 0;  ///< duration of a Delay
};

/// Parses "update:rank=1:step=5:hit=2:action=nan"; several faults are comma-separated. `delay=SECONDS` is
/// short for action=delay with that duration.
Result<std::vector<Failpoint>> failpoints_from(const std::string& text);

/// The faults of one rank. Thread-safe.
class Failpoints {
 public:
  /// `clock` times delays, and must outlive the object. With a fault at "file" the object intercepts the file
  /// calls of the whole process, which ranks that are threads share.
  Failpoints(const std::vector<Failpoint>& planted, int rank, Clock& clock);
  Failpoints(const Failpoints&) = delete;
  Failpoints& operator=(const Failpoints&) = delete;
  /// Warns of each fault that did not fire.
  ~Failpoints();

  /// Called when the rank reaches `place` in `step`. Logs each fault that fires, then performs its action.
  /// Returns true if the caller must insert a NaN, or must fail its call (`full`). Throws InternalError for
  /// `throw`.
  bool reach(std::string_view place, std::int64_t step);
  /// Does the same for a file call.
  bool reach_file();

 private:
  struct Planted {
    Failpoint what;
    int left = 1;  ///< visits until the fault fires; 0: it has fired
  };
  std::mutex mutex_;  ///< background saves reach "file" from another thread
  std::vector<Planted> planted_;
  Clock& clock_;
  std::int64_t saved_ = -1;  ///< step of the newest "checkpoint"
};

/// Must be called before each write, fsync and rename: the point "file". Returns false, with errno ENOSPC, if
/// that call must fail. Thread-safe.
bool reach_file_call();

}  // namespace millrace
