// Faults that tests plant at named places of a run. A place where none is planted costs one comparison.
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

/// A planted fault: what happens when a rank comes to a place for the hit-th time.
struct Failpoint {
  /// An action by its name ("forward", "update"), "meeting", "model", "evaluation", "checkpoint", "snapshot",
  /// "end", or "file": a system call that writes, syncs or renames a file. Its step is that of the newest
  /// checkpoint.
  std::string place;
  std::optional<int> rank;           ///< unset: every rank
  std::optional<std::int64_t> step;  ///< unset: every step
  int hit = 1;                       ///< fires when the place is reached for this time, counted from 1
  FailpointAction action = FailpointAction::Throw;
  double seconds = 0;  ///< of Delay
};

/// Reads "update:rank=1:step=5:hit=2:action=nan", several separated by commas. `delay=SECONDS` stands for
/// action=delay.
Result<std::vector<Failpoint>> failpoints_from(const std::string& text);

/// The faults of one rank. Thread-safe.
class Failpoints {
 public:
  /// `clock` times delays, and must outlive the object. With a fault at "file" the object takes the file
  /// calls of the whole process: ranks that are threads share them.
  Failpoints(const std::vector<Failpoint>& planted, int rank, Clock& clock);
  Failpoints(const Failpoints&) = delete;
  Failpoints& operator=(const Failpoints&) = delete;
  /// Warns of each fault that did not fire.
  ~Failpoints();

  /// The rank comes to `place` in `step`. Logs each fault that fires, then does what it says. Returns true if
  /// the caller is to put a NaN there, or its call is to fail (`full`). Throws InternalError for `throw`.
  bool reach(std::string_view place, std::int64_t step);
  /// The same of a file call.
  bool reach_file();

 private:
  struct Planted {
    Failpoint what;
    int left = 1;  ///< times to come here until it fires; 0: it has fired
  };
  std::mutex mutex_;  ///< saves in the background come to "file"
  std::vector<Planted> planted_;
  Clock& clock_;
  std::int64_t saved_ = -1;  ///< step of the newest "checkpoint"
};

/// Code that changes files calls this before each write, fsync and rename: the place "file". Returns false,
/// with errno ENOSPC, if that call is to fail. Thread-safe.
bool reach_file_call();

}  // namespace millrace
