#include "experiments/export/event_log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "experiments/runs/run_counters.h"
#include "experiments/runs/run_data.h"
#include "runtime/base/files.h"
#include "runtime/base/json_number.h"
#include "runtime/base/numbers.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

bool digits(std::string_view text, std::size_t at, std::size_t count, int& value) {
  if (at + count > text.size()) return false;
  value = 0;
  for (std::size_t i = at; i < at + count; ++i) {
    if (text[i] < '0' || text[i] > '9') return false;
    value = value * 10 + (text[i] - '0');
  }
  return true;
}

std::int64_t nanoseconds(double seconds) {
  return static_cast<std::int64_t>(std::llround(seconds * 1e9));
}

// ---- our runs
// -------------------------------------------------------------------------------------------------

/// Joins the send of a message with its receive, where the receiver waits for it. The k-th send of a
/// microbatch from a to b belongs to the k-th such receive.
void join_messages(EventLog& log, const std::vector<std::pair<std::size_t, const Span*>>& spans) {
  using Key = std::tuple<std::int64_t, int, int>;
  std::map<Key, std::vector<std::size_t>> sent, received;
  for (const auto& [index, span] : spans) {
    const int rank = log.spans[index].rank;
    if (span->peer < 0 || span->microbatch < 0) continue;
    if (span->kind == SpanKind::Send) sent[{span->microbatch, rank, span->peer}].push_back(index);
    if (span->kind == SpanKind::Recv || span->kind == SpanKind::Wait)
      received[{span->microbatch, span->peer, rank}].push_back(index);
  }
  std::uint64_t flow = 0;
  for (const auto& [key, from] : sent) {
    const auto to = received.find(key);
    if (to == received.end()) continue;
    for (std::size_t i = 0; i < std::min(from.size(), to->second.size()); ++i) {
      log.spans[from[i]].flow_out = ++flow;
      log.spans[to->second[i]].flow_in = flow;
    }
  }
}

/// When each step of a rank ended, in the log's time.
std::map<std::int64_t, std::int64_t> ends_of(const EventLog& log, const RankRun& rank) {
  std::map<std::int64_t, std::int64_t> ends;
  double added_up = 0;  // of files that do not say
  for (const StepLine& s : rank.steps) {
    added_up += s.step_s;
    ends[s.step] = log.has_unix_time ? *s.unix_ns : nanoseconds(s.ended_s.value_or(added_up));
  }
  return ends;
}

void add_steps(EventLog& log, const RankRun& rank) {
  const std::map<std::int64_t, std::int64_t> ends = ends_of(log, rank);
  for (const StepLine& s : rank.steps) {
    for (const auto& [name, value] : s.all)
      log.values.push_back({rank.rank, name, s.step, ends.at(s.step), value});
  }
  if (rank.steps.empty()) return;
  const std::int64_t first = ends.begin()->second - nanoseconds(rank.steps.front().step_s);
  const std::int64_t opened = log.has_unix_time ? rank.opened_unix_ns.value_or(first) : first;
  log.phases.push_back({rank.rank, "init", std::min(opened, first), first});
  log.phases.push_back({rank.rank, "run", first, ends.rbegin()->second});
}

/// The epoch of a step. A run that has not ended does not say how long one is: all is the first then.
std::int64_t epoch_of(std::int64_t step, const Json& summary) {
  const Json* length = summary.find("steps_per_epoch");
  const bool known = length && length->kind() == Json::Kind::Int && length->as_int() > 0;
  return known ? step / length->as_int() + 1 : 1;
}

/// The spans between steps, as far as they were traced, in the epoch of the step before.
void add_pauses(EventLog& log, const RankRun& rank, std::int64_t offset, const Json& summary) {
  const std::map<std::int64_t, std::int64_t> ends = ends_of(log, rank);
  for (const Span& span : rank.spans) {
    if (span.kind != SpanKind::Eval && span.kind != SpanKind::Checkpoint) continue;
    std::int64_t before = 0;
    for (const auto& [step, end] : ends)
      if (end <= span.end + offset) before = step;
    log.phases.push_back({rank.rank, span.kind == SpanKind::Eval ? "eval" : "checkpoint", span.start + offset,
                          span.end + offset, epoch_of(before, summary)});
  }
}

/// Epochs, and the blocks of training between evaluations: those that have steps. They end with their last
/// step.
void add_epochs(EventLog& log, const RankRun& rank, const RunData& run) {
  const std::map<std::int64_t, std::int64_t> ends = ends_of(log, rank);
  std::set<std::int64_t> evaluated;  // after so many steps
  for (const Json& evaluation : run.evaluations.items())
    if (const Json* step = evaluation.find("step"); step && step->kind() == Json::Kind::Int)
      evaluated.insert(step->as_int());
  for (const Span& span : rank.spans)  // a sleeping run has no results of them
    if (span.kind == SpanKind::Eval) evaluated.insert(span.step + 1);
  std::vector<LoggedPhase> epochs, blocks;
  std::ptrdiff_t last_block = -1;
  std::int64_t before = INT64_MIN;  // end of the step before
  for (const StepLine& s : rank.steps) {
    const std::int64_t epoch = epoch_of(s.step, run.summary), end = ends.at(s.step);
    const std::ptrdiff_t block =
        std::ranges::count_if(evaluated, [&](auto after) { return after <= s.step; });
    // A step begins no earlier than the one before has ended: lengths are rounded.
    const std::int64_t start = std::max(end - nanoseconds(s.step_s), before);
    const LoggedPhase begins{rank.rank, "epoch", start, end, epoch};
    before = end;
    if (epochs.empty() || epochs.back().number != epoch) epochs.push_back(begins);
    if (std::exchange(last_block, block) != block) {
      blocks.push_back(begins);
      blocks.back().name = "block";
    }
    epochs.back().end = blocks.back().end = end;
    blocks.back().epochs = epoch - blocks.back().number + 1;
  }
  log.phases.insert(log.phases.end(), epochs.begin(), epochs.end());
  log.phases.insert(log.phases.end(), blocks.begin(), blocks.end());
  if (!run.plan || run.plan->model != "dlrm") return;
  for (LoggedPhase& block : blocks) {
    block.name = "training";
    block.number = -1;
    log.phases.push_back(std::move(block));
  }
}

/// Counters, each with its time: rates of what counts up, else the value. Cores and packets are left out.
void add_counters(EventLog& log, const std::string& folder) {
  if (!log.has_unix_time) return;
  for (const ProcessCounters& process : read_counters(folder)) {
    for (const auto& [name, values] : process.values) {
      const bool is_level = name.ends_with("resident_bytes") || name == "process.threads" ||
                            name.starts_with("memory.") || name.starts_with("gpus.");
      if (name.starts_with("cores.") || name.ends_with("_packets")) continue;
      for (std::size_t i = is_level ? 0 : 1; i < values.size(); ++i) {
        double value = values[i];
        if (!is_level) {
          const std::int64_t ns = process.unix_ns[i] - process.unix_ns[i - 1];
          value = ns > 0 ? (value - values[i - 1]) * 1e9 / static_cast<double>(ns) : NAN;
        }
        if (std::isfinite(value) && value >= 0)
          log.values.push_back(
              {process.rank, is_level ? name : name + " per s", -1, process.unix_ns[i], value});
      }
    }
  }
}

/// Evaluations and BLEU, at the end of the step that they follow.
void add_scores(EventLog& log, const RunData& run) {
  const RankRun* rank = loss_rank(run);
  if (!rank) return;
  const std::map<std::int64_t, std::int64_t> ends = ends_of(log, *rank);
  const auto add = [&](const std::string& name, std::int64_t after, double value) {
    if (const auto end = ends.find(after - 1); end != ends.end())
      log.values.push_back({rank->rank, name, after - 1, end->second, value});
  };
  for (const Json& evaluation : run.evaluations.items()) {
    const Json* step = evaluation.find("step");
    if (!step || step->kind() != Json::Kind::Int) continue;
    for (const auto& [name, value] : evaluation.members()) {
      const std::optional<double> number = number_in(value);
      if (number && name != "step" && name != "after_step" && name != "samples")
        add("evaluation_" + name, step->as_int(), *number);
    }
  }
  for (const RunScore& score : run.scores) add("bleu", score.after_step, score.bleu);
}

/// The members of an object; none of anything else.
const Json::Object& members_of(const Json& json) {
  static const Json::Object none;
  return json.is_object() ? json.members() : none;
}

/// Adds the lines that MLPerf's checker asks of any log. A run is no submission: whoever submits writes them
/// anew.
void add_submission(EventLog& log, const RunData& run) {
  const std::string& model = run.plan->model;
  const std::string benchmark = model.starts_with("bert")     ? "bert"
                                : model.starts_with("resnet") ? "resnet"
                                                              : model;
  for (const auto& [key, value] : {std::pair<const char*, std::string>{"submission_benchmark", benchmark},
                                   {"submission_division", "open"},
                                   {"submission_org", "none"},
                                   {"submission_platform", "millrace"},
                                   {"submission_status", "research"}})
    log.facts.emplace_back(key, value);
  log.facts.emplace_back("cache_clear", false);
  const Json* precision = run.summary.find("precision");
  if (!precision || !precision->is_string()) return;
  const std::string& name = precision->as_string();
  const std::string lowest = name == "float32" ? "fp32" : name == "float16" ? "fp16" : name;
  for (const char* of : {"linear", "attn", "comm"})
    log.facts.emplace_back(std::string("lowest_numerical_precision_in_") + of, lowest);
}

void add_facts(EventLog& log, const RunData& run) {
  for (const auto& [key, value] : members_of(run.summary)) {
    if (value.is_number() || value.is_string()) log.facts.emplace_back(key, value);
  }
  const Json *samples = run.summary.find("microbatch"), *count = run.summary.find("microbatches");
  if (samples && count && samples->kind() == Json::Kind::Int && count->kind() == Json::Kind::Int)
    log.facts.emplace_back("global_batch_size", samples->as_int() * count->as_int());
  if (!run.plan) return;
  const auto replicas = static_cast<std::int64_t>(run.plan->stages.front().ranks.size());
  if (count && count->kind() == Json::Kind::Int)
    log.facts.emplace_back("gradient_accumulation_steps",
                           std::max<std::int64_t>(1, count->as_int() / replicas));
  if (samples) log.facts.emplace_back("micro_batch_size", *samples);
  log.facts.emplace_back("pipeline_parallelism", static_cast<int>(run.plan->stages.size()));
  for (const char* none : {"tensor_parallelism", "context_parallelism", "expert_parallelism"})
    log.facts.emplace_back(none, 1);
  log.facts.emplace_back("model", run.plan->model);
  add_submission(log, run);
}

Result<EventLog> from_run(const std::string& folder) {
  const Result<RunData> run = read_run(folder, StepValues::All);
  if (!run) return run.problems();
  EventLog log{.source = folder, .kind = "run", .backend = "millrace", .notes = run->notes};
  log.succeeded = run->end.state == RunEnd::State::Done;
  log.has_unix_time = std::ranges::all_of(run->ranks, [](const RankRun& rank) {
    return rank.unix_offset_ns &&
           std::ranges::all_of(rank.steps, [](const StepLine& s) { return s.unix_ns.has_value(); });
  });
  if (!log.has_unix_time)
    log.notes.push_back(
        "the run's files do not say the time of day (an older version wrote them): times count "
        "from a moment that is not known");
  std::vector<std::pair<std::size_t, const Span*>> spans;
  for (const RankRun& rank : run->ranks) {
    log.world_size = std::max(log.world_size, rank.rank + 1);
    const std::int64_t offset = log.has_unix_time ? *rank.unix_offset_ns : 0;
    for (const Span& span : rank.spans) {
      const std::string kind = to_string(span.kind);
      spans.emplace_back(log.spans.size(), &span);
      log.spans.push_back({.rank = rank.rank,
                           .lane = is_communication(span.kind) ? "communication"
                                   : span.kind == SpanKind::Load || span.kind == SpanKind::Preprocess
                                       ? "loader"
                                       : "compute",
                           .name = span.microbatch >= 0 ? kind + " " + std::to_string(span.microbatch) : kind,
                           .category = kind,
                           .start = span.start + offset,
                           .end = std::max(span.start, span.end) + offset,
                           .step = span.step,
                           .microbatch = span.microbatch,
                           .stage = span.stage});
    }
    add_steps(log, rank);
    add_pauses(log, rank, offset, run->summary);
    add_epochs(log, rank, *run);
  }
  join_messages(log, spans);
  add_scores(log, *run);
  add_counters(log, folder);
  add_facts(log, *run);
  return log;
}

// ---- DLIO
// -----------------------------------------------------------------------------------------------------

std::vector<double> numbers(const Json* list) {
  std::vector<double> values;
  if (!list || !list->is_array()) return values;
  for (const Json& item : list->items()) values.push_back(item.is_number() ? item.as_double() : 0);
  return values;
}

const Json* member(const Json* json, std::string_view key) {
  return json ? json->find(key) : nullptr;
}

bool interval(const Json* json, std::int64_t& start, std::int64_t& end) {
  const Json *from = member(json, "start"), *to = member(json, "end");
  return from && to && from->is_string() && to->is_string() && parse_time(from->as_string(), start) &&
         parse_time(to->as_string(), end);
}

void add_dlio_steps(EventLog& log, int rank, const Json& epoch, const std::string& phase, std::int64_t start,
                    std::int64_t& step) {
  const std::vector<double> load = numbers(member(epoch.find("load"), phase)),
                            compute = numbers(member(epoch.find("compute"), phase));
  const std::vector<double> barrier = numbers(member(member(epoch.find("millrace"), phase), "barrier"));
  const bool eval = phase == "eval";
  std::int64_t now = start;
  for (std::size_t i = 0; i < load.size() && i < compute.size(); ++i, ++step) {
    const std::pair<const char*, double> parts[] = {
        {eval ? "eval_load_batch_mem" : "load_batch_mem", load[i]},
        {eval ? "eval_compute" : "all_compute", compute[i]},
        {"barrier", i < barrier.size() ? barrier[i] : 0}};
    const std::int64_t began = now;
    for (const auto& [name, seconds] : parts) {
      const std::int64_t end = now + nanoseconds(seconds);
      if (seconds > 0)
        log.spans.push_back({.rank = rank,
                             .lane = "step",
                             .name = name,
                             .category = name,
                             .start = now,
                             .end = end,
                             .step = step});
      log.values.push_back({rank, name, step, end, seconds});
      now = end;
    }
    log.values.push_back(
        {rank, eval ? "eval_step_end" : "step_end", step, now, static_cast<double>(now - began) * 1e-9});
  }
}

Result<EventLog> from_dlio(const fs::path& folder) {
  EventLog log{.source = folder.string(), .kind = "dlio", .backend = "emulated", .has_unix_time = true};
  const Result<Json> summary = read_json((folder / "summary.json").string());
  if (!summary) {
    log.notes.push_back("summary.json is missing: the run has not finished, or it failed");
  } else if (const Json* metric = summary->find("metric")) {
    if (const Json* count = summary->find("num_accelerators"); count && count->kind() == Json::Kind::Int)
      log.world_size = static_cast<int>(std::clamp<std::int64_t>(count->as_int(), 1, 1 << 20));
    for (const auto& [key, value] : members_of(*metric)) {
      if (value.is_number() || value.is_string()) log.facts.emplace_back(key, value);
    }
  }
  int found = 0;
  for (int rank = 0; rank < log.world_size || fs::exists(folder / (std::to_string(rank) + "_output.json"));
       ++rank) {
    const Result<Json> output = read_json((folder / (std::to_string(rank) + "_output.json")).string());
    const Result<Json> stats =
        read_json((folder / (std::to_string(rank) + "_per_epoch_stats.json")).string());
    if (!output || !stats) {
      log.notes.push_back("rank " + std::to_string(rank) + ": " +
                          to_string((output ? stats : output).problems().front()));
      continue;
    }
    ++found;
    log.world_size = std::max(log.world_size, rank + 1);
    std::int64_t step = 0;
    for (const auto& [number, epoch] : members_of(*stats)) {
      std::int64_t start = 0, end = 0;
      const int index = number_of<int>(number).value_or(-1);
      if (interval(&epoch, start, end)) log.phases.push_back({rank, "epoch", start, end, index});
      const Json* times = output->find(number);
      for (const auto& [phase, place] : members_of(epoch)) {
        if (!place.is_object() || !interval(&place, start, end)) continue;
        const bool checkpoint = phase.find("ckpt") != std::string::npos;
        log.phases.push_back({rank,
                              phase == "eval" ? "eval"
                              : checkpoint    ? "checkpoint"
                                              : "block",
                              start, end, index});
        if (checkpoint)
          log.spans.push_back({.rank = rank,
                               .lane = "checkpoint",
                               .name = phase,
                               .category = "checkpoint",
                               .start = start,
                               .end = end});
        if (times && !checkpoint) add_dlio_steps(log, rank, *times, phase, start, step);
      }
    }
  }
  if (found == 0)
    return Problem{folder.string(), "has no rank's output that can be read",
                   to_string(Problem{{}, log.notes.empty() ? "" : log.notes.back(), {}})};
  return log;
}

// ---- preprocessed traces
// --------------------------------------------------------------------------------------

/// Calls row(fields) for each line; counts what it refuses.
template <class Row>
std::int64_t each_row(const std::string& text, std::size_t columns, Row row) {
  std::int64_t refused = 0;
  std::vector<std::string_view> fields;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    fields.clear();
    while (true) {
      const std::size_t comma = line.find(',');
      fields.push_back(line.substr(0, comma));
      if (comma == std::string_view::npos) break;
      line.remove_prefix(comma + 1);
    }
    refused += fields.size() < columns || !row(fields);
  }
  return refused;
}

void add_counters(EventLog& log, const fs::path& file, const char* prefix) {
  const Result<std::string> text = read_file(file);
  if (!text) return;
  std::vector<std::string> names;
  const std::int64_t refused = each_row(*text, 2, [&](const std::vector<std::string_view>& fields) {
    if (names.empty()) {
      names.assign(fields.begin(), fields.end());
      return true;
    }
    std::int64_t time = 0;
    if (fields.size() != names.size() || !parse_time(fields[0], time)) return false;
    for (std::size_t i = 1; i < fields.size(); ++i) {
      if (const auto value = number_of<double>(fields[i]))
        log.values.push_back({0, std::string(prefix) + names[i], -1, time, *value});
    }
    return true;
  });
  if (refused > 0)
    log.notes.push_back(file.filename().string() + ": " + std::to_string(refused) + " rows left out");
}

Result<EventLog> from_timeline(const fs::path& timeline) {
  EventLog log{.source = timeline.string(), .kind = "timeline", .backend = "traced", .has_unix_time = true};
  const Result<std::string> events = read_file(timeline / "timeline.csv");
  if (!events) return events.problems();
  const auto add_span = [&](int rank, const std::vector<std::string_view>& fields, const char* lane) {
    std::int64_t start = 0, end = 0;
    if (!parse_time(fields[0], start) || !parse_time(fields[1], end) || end < start) return false;
    const std::string name(fields[2]);
    log.spans.push_back({.rank = rank,
                         .lane = lane ? lane : name,
                         .name = name,
                         .category = name,
                         .start = start,
                         .end = end});
    return true;
  };
  const std::int64_t refused = each_row(*events, 3, [&](const std::vector<std::string_view>& fields) {
    if (!add_span(0, fields, "phases")) return false;
    const LoggedSpan& span = log.spans.back();
    std::string name = span.name;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    log.phases.push_back({0, name, span.start, span.end});
    return true;
  });
  if (refused > 0) log.notes.push_back("timeline.csv: " + std::to_string(refused) + " rows left out");
  // One file for each worker where they were told apart, else all in one.
  std::vector<fs::path> files;
  std::error_code error;
  for (const char* layout : {"each_parent", "all_combined"}) {
    for (const auto& entry : fs::directory_iterator(timeline / "pid" / layout, error)) {
      if (entry.path().extension() == ".log") files.push_back(entry.path());
    }
    if (!files.empty()) break;
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.string().size(), a) < std::pair(b.string().size(), b);
  });
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Result<std::string> text = read_file(files[i], 16 * kGiB);
    if (!text) return text.problems();
    const std::int64_t dropped = each_row(*text, 3, [&](const std::vector<std::string_view>& fields) {
      return add_span(static_cast<int>(i), fields, nullptr);
    });
    if (dropped > 0)
      log.notes.push_back(files[i].filename().string() + ": " + std::to_string(dropped) + " rows left out");
  }
  log.world_size = std::max(1, static_cast<int>(files.size()));
  add_counters(log, timeline / "cpu_all.csv", "cpu");
  add_counters(log, timeline / "gpu_avg.csv", "gpu ");
  return log;
}

}  // namespace

bool parse_time(std::string_view text, std::int64_t& nanoseconds) {
  int year, month, day, hour, minute, second;
  if (text.size() < 19 || text[4] != '-' || text[7] != '-' || (text[10] != 'T' && text[10] != ' ') ||
      text[13] != ':' || text[16] != ':')
    return false;
  if (!digits(text, 0, 4, year) || !digits(text, 5, 2, month) || !digits(text, 8, 2, day) ||
      !digits(text, 11, 2, hour) || !digits(text, 14, 2, minute) || !digits(text, 17, 2, second))
    return false;
  const std::chrono::year_month_day date{std::chrono::year(year),
                                         std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || year < 1970 || year > 2261 || hour > 23 || minute > 59 || second > 60) return false;
  const auto days = std::chrono::sys_days(date).time_since_epoch().count();
  nanoseconds =
      (static_cast<std::int64_t>(days) * 86400 + hour * 3600 + minute * 60 + second) * 1'000'000'000;
  std::string_view rest = text.substr(19);
  if (rest.ends_with('Z')) rest.remove_suffix(1);
  if (rest.empty()) return true;
  if (rest[0] != '.' || rest.size() > 10 || rest.size() < 2) return false;
  std::int64_t unit = 100'000'000;
  for (const char c : rest.substr(1)) {
    if (c < '0' || c > '9') return false;
    nanoseconds += (c - '0') * unit;
    unit /= 10;
  }
  return true;
}

Result<EventLog> read_event_log(const std::string& folder) {
  const fs::path path = folder;
  std::error_code error;
  if (!fs::is_directory(path, error))
    return Problem{folder, "is not a folder", "give the output folder of a run"};
  Result<EventLog> log = fs::exists(path / "timeline" / "timeline.csv", error)
                             ? from_timeline(path / "timeline")
                         : fs::exists(path / "timeline.csv", error)  ? from_timeline(path)
                         : fs::exists(path / "0_output.json", error) ? from_dlio(path)
                                                                     : from_run(folder);
  if (!log) {
    if (fs::exists(path / "trace_read.out", error))
      return Problem{folder, "holds raw traces", "`millrace trace preprocess` makes what can be converted"};
    return log;
  }
  if (log->spans.empty() && log->values.empty())
    return Problem{folder, "has no events and no values: there is nothing to convert",
                   log->notes.empty() ? "" : log->notes.back()};
  return log;
}

}  // namespace millrace
