#include "experiments/io/trace/app_log.h"

#include <algorithm>
#include <set>

#include "experiments/io/trace/civil_time.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr std::string_view kToken = ":::MLLOG ";
constexpr std::int64_t kMillisecond = 1'000'000;

/// "epoch_stop" -> ("epoch", false). Nothing for keys that open or close no interval.
struct Border {
  std::string_view name;
  bool start;
};
std::optional<Border> border_of(std::string_view key) {
  const std::size_t bar = key.find('_');
  if (bar == std::string_view::npos) return std::nullopt;
  const std::string_view side = key.substr(bar + 1);
  if (side != "start" && side != "stop") return std::nullopt;
  return Border{key.substr(0, bar), side == "start"};
}

/// Returns the phase of an interval that makes the timeline of a workload. Other intervals lie around or
/// inside these.
std::optional<Phase> phase_of(TracedWorkload workload, std::string_view name) {
  if (name == "init") return Phase::Init;
  if (name == "eval") return Phase::Eval;
  if (name == "checkpoint") return Phase::Checkpoint;
  const bool training = workload == TracedWorkload::Unet3d ? name == "epoch"
                        : workload == TracedWorkload::Bert ? name == "block"
                        : workload == TracedWorkload::Dlrm ? name == "training"
                        : workload == TracedWorkload::Any  ? name == "training" || name == "epoch"
                                                           : name == "training" || name == "block";
  return training ? std::optional(Phase::Training) : std::nullopt;
}

/// The workload of mllog whose training is told by this name.
std::optional<TracedWorkload> workload_that_trains_in(std::string_view name) {
  for (const TracedWorkload workload : {TracedWorkload::Unet3d, TracedWorkload::Bert, TracedWorkload::Dlrm}) {
    if (phase_of(workload, name) == Phase::Training) return workload;
  }
  return std::nullopt;
}

/// Pairs starts and stops. A start overwrites one that is open, as the kit's does.
class Pairing {
 public:
  explicit Pairing(AppLog& log) : log_(log) {}

  void start(Phase phase, std::int64_t time) {
    std::optional<std::int64_t>& open = open_[static_cast<std::size_t>(phase)];
    if (open) note(phase, *open, "starts and starts again: the first start is left out");
    open = time;
  }
  void stop(Phase phase, std::int64_t time) {
    std::optional<std::int64_t>& open = open_[static_cast<std::size_t>(phase)];
    if (!open) return note(phase, time, "ends without a start");
    if (time < *open) {
      note(phase, *open, "ends before it starts: the clock went back");
    } else {
      log_.phases.push_back({*open, time, phase});
    }
    open.reset();
  }
  bool is_open(Phase phase) const { return open_[static_cast<std::size_t>(phase)].has_value(); }
  void finish() {
    for (std::size_t p = 0; p < open_.size(); ++p) {
      if (open_[p])
        note(static_cast<Phase>(p), *open_[p], "has no end: the run was cut off, or is still running");
    }
  }

 private:
  void note(Phase phase, std::int64_t time, const std::string& what) {
    ++log_.dropped["phases without a start or an end"];
    if (log_.notes.size() < 20)
      log_.notes.push_back(std::string(kPhaseNames[static_cast<std::size_t>(phase)]) + " at " +
                           iso_text(time, log_.digits) + " " + what);
  }
  AppLog& log_;
  std::array<std::optional<std::int64_t>, kPhaseNames.size()> open_;
};

void take_time(AppLog& log, std::int64_t time) {
  if (log.lines++ == 0) log.first = log.last = time;
  if (time < log.last) {
    ++log.dropped["events whose clock went back (kept)"];
  }
  log.first = std::min(log.first, time);
  log.last = std::max(log.last, time);
}

/// `[3] ` before the token: horovod's rank.
bool is_other_rank(std::string_view before) {
  while (!before.empty() && is_blank(before.back())) before.remove_suffix(1);
  if (!before.ends_with(']')) return false;
  const std::size_t open = before.rfind('[');
  if (open == std::string_view::npos) return false;
  const std::optional<int> rank = number_of<int>(before.substr(open + 1, before.size() - open - 2));
  return rank && *rank != 0;
}

/// Returns where the value of the object's own "time_ms" begins, not that of an object inside it.
std::size_t time_value_at(std::string_view object) {
  constexpr std::string_view kKey = "\"time_ms\"";
  int depth = 0;
  for (std::size_t i = 0; i < object.size(); ++i) {
    if (object[i] == '{' || object[i] == '[') ++depth;
    if (object[i] == '}' || object[i] == ']') --depth;
    if (object[i] != '"') continue;
    const std::size_t after = object.find_first_not_of(" \t", i + kKey.size());
    if (depth == 1 && object.substr(i).starts_with(kKey) && after < object.size() && object[after] == ':')
      return object.find_first_not_of(" \t", after + 1);
    for (++i; i < object.size() && object[i] != '"'; ++i) i += object[i] == '\\' ? 1 : 0;
  }
  return std::string_view::npos;  // the key is written with escapes
}

/// The line's object with the number behind "time_ms" replaced: nothing else of the text changes.
std::optional<std::string> with_iso_time(std::string_view object, std::int64_t time) {
  const std::size_t start = time_value_at(object);
  if (start == std::string_view::npos) return std::nullopt;
  const std::size_t end = object.find_first_of(",} \t", start);
  std::string result(object.substr(0, start));
  return result.append("\"").append(iso_text(time, 3)).append("\"").append(object.substr(end));
}

/// A kit log that was processed before has ISO text instead of milliseconds.
std::optional<std::int64_t> time_of(const Json& event) {
  const Json* time = event.find("time_ms");
  if (!time) return std::nullopt;
  if (time->kind() == Json::Kind::Int) {
    // Nanoseconds since 1970 reach until 2255.
    if (time->as_int() < 0 || time->as_int() > 9'000'000'000'000) return std::nullopt;
    return time->as_int() * kMillisecond;
  }
  return time->is_string() ? parse_iso(time->as_string()) : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> AppLog::init_start() const {
  std::optional<std::int64_t> first;
  for (const PhaseSpan& span : phases) {
    if (span.phase == Phase::Init && (!first || span.start < *first)) first = span.start;
  }
  return first;
}

Result<AppLog> read_mllog(std::string_view text, TracedWorkload workload, const std::string& name) {
  AppLog log;
  Pairing pairing(log);
  log.json = "[\n";
  bool whole = true, trains = false;
  std::set<std::string> other_training;
  while (!text.empty()) {
    const std::string_view line = next_line(text, whole);
    const std::size_t token = line.find(kToken);
    if (token == std::string_view::npos) continue;
    if (is_other_rank(line.substr(0, token))) {
      ++log.dropped["events of other ranks"];
      continue;
    }
    const std::string_view object = line.substr(token + kToken.size());
    const Result<Json> event = parse_json(object, name);
    const std::optional<std::int64_t> time = event && event->is_object() ? time_of(*event) : std::nullopt;
    const Json* key = time ? event->find("key") : nullptr;
    const std::optional<std::string> dated =
        !key || event->find("time_ms")->is_string() ? std::string(object) : with_iso_time(object, *time);
    if (!key || !key->is_string() || !dated) {
      ++log.dropped[whole ? "damaged events" : "a last event that is cut off"];
      continue;
    }
    take_time(log, *time);
    if (log.lines > 1) log.json += ",\n";
    log.json += *dated;
    const std::optional<Border> border = border_of(key->as_string());
    const std::optional<Phase> phase = border ? phase_of(workload, border->name) : std::nullopt;
    trains = trains || phase == Phase::Training;
    if (border && border->start && !phase && workload_that_trains_in(border->name))
      other_training.insert(key->as_string());
    if (!phase) continue;
    border->start ? pairing.start(*phase, *time) : pairing.stop(*phase, *time);
  }
  pairing.finish();
  log.json += "\n]\n";
  if (log.lines == 0)
    return Problem{name, "holds no event (`:::MLLOG {...}`)",
                   "is it the log of this workload, and not empty?"};
  if (!log.init_start())
    return Problem{name,
                   "has no initialisation (init_start and init_stop): where the run begins is not known",
                   "give the whole log, and the right --workload"};
  if (!trains && !other_training.empty()) {
    std::string found, whose;
    for (const std::string& start : other_training) {
      found += (found.empty() ? "" : ", ") + start;
      whose += (whose.empty() ? "--workload " : " or ") +
               to_string(*workload_that_trains_in(border_of(start)->name));
    }
    return Problem{name, "is no log of " + to_string(workload) + ": its training is told by " + found, whose};
  }
  return log;
}

namespace {

/// The meaning of a line of DLIO's log that opens or closes something.
struct DlioBorder {
  Phase phase;
  bool start;
};
std::optional<DlioBorder> dlio_border(std::string_view message) {
  const std::vector<std::string_view> words = words_of(message);
  if (words.size() < 2) return std::nullopt;
  const bool start = words[0] == "Starting";
  if (!start && words[0] != "Ending" && words[0] != "Finished") return std::nullopt;
  if (words[1] == "epoch" || words[1] == "block") return DlioBorder{Phase::Training, start};
  if (words[1] == "eval" || words[1] == "evaluation") return DlioBorder{Phase::Eval, start};
  const bool saving = words[1] == "saving" && words.size() > 2 && words[2] == "checkpoint";
  if (words[1] == "checkpoint" || saving) return DlioBorder{Phase::Checkpoint, start};
  return std::nullopt;
}

std::string json_text(std::string_view text) {
  return Json(std::string(text)).dump();
}

}  // namespace

Result<AppLog> read_dlio_log(std::string_view text, const std::string& name) {
  AppLog log;
  log.digits = 6;
  Pairing pairing(log);
  log.json = "[\n";
  bool initialised = false;
  while (!text.empty()) {
    bool whole = true;
    std::string_view line = next_line(text, whole);
    if (line.starts_with('[')) {  // [INFO], [OUTPUT]
      const std::size_t end = line.find("] ");
      if (end == std::string_view::npos) continue;
      line.remove_prefix(end + 2);
    }
    const std::size_t blank = line.find(' ');
    const std::optional<std::int64_t> time = parse_iso(line.substr(0, blank));
    if (!time || blank == std::string_view::npos) continue;
    if (!whole) {
      ++log.dropped["a last event that is cut off"];
      continue;
    }
    const std::string_view message = line.substr(blank + 1);
    if (log.lines == 0) pairing.start(Phase::Init, *time);
    take_time(log, *time);
    if (log.lines > 1) log.json += ",\n";
    log.json +=
        "{\"time_ms\": \"" + iso_text(*time, log.digits) + "\", \"message\": " + json_text(message) + "}";
    const std::optional<DlioBorder> border = dlio_border(message);
    if (!border) continue;
    if (!initialised && border->start) {
      pairing.stop(Phase::Init, *time);
      initialised = true;
    }
    // An epoch and its first block open one stretch of training, which the first end closes.
    if (border->start && !pairing.is_open(border->phase)) pairing.start(border->phase, *time);
    if (!border->start && (border->phase != Phase::Training || pairing.is_open(Phase::Training)))
      pairing.stop(border->phase, *time);
  }
  pairing.finish();
  log.json += "\n]\n";
  if (log.lines == 0)
    return Problem{name, "holds no event (`[INFO] 2023-02-11T13:00:00.000000 Starting epoch 1 ...`)",
                   "is it DLIO's dlio.log, and not empty?"};
  if (!initialised || !log.init_start())
    return Problem{name,
                   initialised
                       ? "its clock goes back before the first epoch: where the run begins is not known"
                       : "nothing starts in it (`Starting epoch 1 ...`): where the run begins is not known",
                   "give the whole log of the run"};
  return log;
}

std::string timeline_csv(const AppLog& log) {
  std::string text;
  for (const PhaseSpan& span : log.phases) {
    text += iso_text(span.start, log.digits) + "," + iso_text(span.end, log.digits) + "," +
            kPhaseNames[static_cast<std::size_t>(span.phase)] + "\n";
  }
  return text;
}

}  // namespace millrace
