#include "driver/hosts/heartbeats.h"

#include <algorithm>
#include <utility>

#include "driver/hosts/rank_process.h"
#include "runtime/base/json.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"

namespace millrace {
namespace {

/// The beat in a rank's status file; 0: there is none.
std::int64_t beat_of(const std::filesystem::path& status) {
  const Result<Json> json = read_json(status.string());
  const Json* beat = json && json->is_object() ? json->find("beat") : nullptr;
  return beat && beat->kind() == Json::Kind::Int ? beat->as_int() : 0;
}

}  // namespace

Heartbeats::Heartbeats(std::filesystem::path folder, std::chrono::milliseconds limit)
    : folder_(std::move(folder)),
      limit_(limit),
      every_(std::clamp(limit / 4, std::chrono::milliseconds(100), std::chrono::milliseconds(2000))) {}

std::optional<std::string> Heartbeats::silence(int rank, pid_t pid, TimePoint now) {
  if (limit_.count() == 0) return std::nullopt;
  Beat& beat = beats_[rank];
  if (now < beat.looked + every_) return std::nullopt;
  // A launcher that did not look for long was suspended itself, perhaps with the whole machine.
  const bool was_away = now > beat.looked + limit_;
  beat.looked = now;
  const std::int64_t value = beat_of(newest_round(folder_) / run_files::kStatus.of(rank));
  const bool gives_sign = value == 0 ? !is_suspended(pid) : value != beat.value;
  if (gives_sign || was_away) {
    beat.value = value;
    beat.changed = now;
    return std::nullopt;
  }
  if (now - beat.changed < limit_) return std::nullopt;
  return printed("no sign of life for %.1f s (limit %.1f s): ", Seconds(now - beat.changed).count(),
                 Seconds(limit_).count()) +
         (is_suspended(pid) ? "suspended (SIGSTOP or a debugger)"
                            : "its host does not run it, or its disk takes nothing");
}

}  // namespace millrace
