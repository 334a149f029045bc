#include "runtime/base/failpoint.h"

#include <signal.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr const char* kForm =
    "PLACE[:rank=N][:step=N][:hit=N]:action=kill|stop|abort|segv|throw|nan|full, or :delay=S";

constexpr const char* kFile = "file";
std::atomic<Failpoints*> of_files{nullptr};

template <class Number, class Into>
bool take(std::string_view value, Into& into) {
  const std::optional<Number> number = number_of<Number>(value);
  if (!number || *number < 0 || !std::isfinite(static_cast<double>(*number))) return false;
  into = *number;
  return true;
}

bool take_word(std::string_view key, std::string_view value, Failpoint& point) {
  if (key == "rank") return take<int>(value, point.rank);
  if (key == "step") return take<std::int64_t>(value, point.step);
  if (key == "hit") return take<int>(value, point.hit) && point.hit > 0;
  if (key == "delay") {
    point.action = FailpointAction::Delay;
    return take<double>(value, point.seconds);
  }
  const std::optional<FailpointAction> action = value_named<FailpointAction>(value);
  if (key != "action" || !action || *action == FailpointAction::Delay) return false;
  point.action = *action;
  return true;
}

std::string text_of(const Failpoint& point) {
  std::string text = point.place;
  if (point.rank) text += ":rank=" + std::to_string(*point.rank);
  if (point.step) text += ":step=" + std::to_string(*point.step);
  return text + ":hit=" + std::to_string(point.hit) + ":action=" + to_string(point.action);
}

}  // namespace

Result<std::vector<Failpoint>> failpoints_from(const std::string& text) {
  std::vector<Failpoint> points;
  for (const std::string& one : split(text, ',')) {
    const std::vector<std::string> words = split(one, ':');
    Failpoint point{.place = words.front()};
    for (std::size_t w = 1; w < words.size(); ++w) {
      const std::size_t equals = words[w].find('=');
      if (equals == std::string::npos ||
          !take_word(words[w].substr(0, equals), words[w].substr(equals + 1), point))
        return Problem{"failpoint " + one, "'" + words[w] + "' cannot be read", kForm};
    }
    if (point.place.empty()) return Problem{"failpoint " + one, "names no place", kForm};
    points.push_back(std::move(point));
  }
  return points;
}

Failpoints::Failpoints(const std::vector<Failpoint>& planted, int rank, Clock& clock) : clock_(clock) {
  for (const Failpoint& point : planted)
    if (point.rank.value_or(rank) == rank) planted_.push_back({point, point.hit});
  for (const Planted& one : planted_)
    if (one.what.place == kFile) of_files = this;
}

Failpoints::~Failpoints() {
  if (Failpoints* self = this; of_files.compare_exchange_strong(self, nullptr)) {
    const std::lock_guard last(mutex_);
  }
  for (const Planted& one : planted_)
    if (one.left > 0) log_warning("failpoint " + text_of(one.what) + " did not fire");
}

bool Failpoints::reach(std::string_view place, std::int64_t step) {
  const std::lock_guard lock(mutex_);
  if (place == "checkpoint") saved_ = step;
  bool spoil = false;
  for (Planted& one : planted_) {
    const Failpoint& point = one.what;
    if (one.left == 0 || point.place != place || point.step.value_or(step) != step || --one.left > 0)
      continue;
    log_warning("failpoint " + text_of(point) + " fires in step " + std::to_string(step));
    switch (point.action) {
      case FailpointAction::Kill:
        ::raise(SIGKILL);
        break;
      case FailpointAction::Stop:
        ::raise(SIGSTOP);
        break;
      case FailpointAction::Abort:
        std::abort();
      case FailpointAction::Segv:
        ::raise(SIGSEGV);
        break;
      case FailpointAction::Throw:
        throw InternalError("failpoint " + text_of(point));
      case FailpointAction::Delay:
        clock_.sleep_until(clock_.now() + duration_of(point.seconds));
        break;
      case FailpointAction::Nan:
      case FailpointAction::Full:
        spoil = true;
        break;
    }
  }
  return spoil;
}

bool Failpoints::reach_file() {
  std::int64_t step = 0;
  {
    const std::lock_guard lock(mutex_);
    step = saved_;
  }
  return reach(kFile, step);
}

bool reach_file_call() {
  Failpoints* const faults = of_files.load();
  if (!faults || !faults->reach_file()) return true;
  errno = ENOSPC;
  return false;
}

}  // namespace millrace
