// Notices ranks that give no sign of life: suspended ones, and ones whose machine does not run them.
// LibTorch-free.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "runtime/base/clock.h"

namespace millrace {

/// A rank's status file has a beat, which changes every second while the process runs, whatever it waits for.
/// Before the first beat a rank loads its model and data, which may take long: then only a suspended process
/// is silent. Two beats are compared by the caller's clock, so that clocks need not agree. The folder must be
/// on this host: another one's mapped files arrive late. Not thread-safe.
class Heartbeats {
 public:
  /// `folder` is the run's output folder. A `limit` of 0 finds nobody silent.
  Heartbeats(std::filesystem::path folder, std::chrono::milliseconds limit);

  /// Says that the rank gave no sign of life beyond the limit, and whether its process is suspended; nothing
  /// if it did. The first call counts as a sign. Reads the file a few times per limit only, so it may be
  /// called often.
  std::optional<std::string> silence(int rank, pid_t pid, TimePoint now);
  /// How often to ask.
  std::chrono::milliseconds every() const { return every_; }

 private:
  struct Beat {
    std::int64_t value = 0;
    TimePoint changed{}, looked{};
  };
  std::filesystem::path folder_;
  std::chrono::milliseconds limit_, every_;
  std::map<int, Beat> beats_;
};

}  // namespace millrace
