#include "driver/simulate/simulate_command.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "driver/cli/command_support.h"
#include "driver/simulate/simulate_subject.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"
#include "runtime/drawing/gantt.h"
#include "runtime/schedule/csv.h"
#include "runtime/schedule/list_schedule.h"

namespace millrace {
namespace {

constexpr long kMostActions = 20'000'000;
constexpr std::size_t kMostDrawnRanks = 64;  // in a terminal
constexpr std::size_t kMostCauses = 8;       // of the makespan, in text

std::string names_of(const std::vector<StageId>& stages) {
  std::string text;
  for (StageId s : stages) text += (text.empty() ? "" : ",") + std::to_string(s.value);
  return text;
}

// ---- one schedule
// ----------------------------------------------------------------------------------------------

Result<Schedule> buffered_schedule_of(const SimulationSubject& subject) {
  if (subject.schedule) return *subject.schedule;
  if (subject.kind == ScheduleKind::AutoOrder)
    return list_schedule(subject.shape, subject.costs, subject.stash_cap);
  return make_schedule(subject.kind, subject.shape);
}

Result<Schedule> schedule_of(const SimulationSubject& subject) {
  const long actions = 6L * subject.shape.num_stages() * subject.shape.microbatches;
  if (actions > kMostActions)
    return Problem{"--microbatches", "stages x microbatches is too large to simulate",
                   "at most " + std::to_string(kMostActions / 6)};
  Result<Schedule> schedule = buffered_schedule_of(subject);
  if (!schedule || subject.options.transport == Transport::Buffered) return schedule;
  schedule = for_rendezvous(*std::move(schedule), subject.shape);
  if (const Problems stuck = check(*schedule, subject.shape, Transport::Rendezvous); !stuck.empty()) {
    Problems problems{{"--sends", "the schedule does not work this way", "use overlap or block"}};
    append(problems, stuck);
    return problems;
  }
  return schedule;
}

constexpr long kMostRepeatedActions = 2'000'000;  // a run of several steps takes as much memory

/// Seconds of a step when others come before and after it, without a barrier; asynchronous: of as many
/// minibatches once the pipeline is full. Nothing for very large schedules.
std::optional<double> step_in_a_run(const SimulationSubject& subject, const Schedule& schedule) {
  if (6L * subject.shape.num_stages() * subject.shape.microbatches > kMostRepeatedActions) return {};
  if (!is_asynchronous(schedule.kind))
    return steady_step(schedule, subject.shape, subject.costs, subject.options);
  std::array<double, 2> makespans{};
  for (int run = 0; run < 2; ++run) {
    PipelineShape longer = subject.shape;
    longer.microbatches *= 3 + run;
    const Result<Schedule> made = make_schedule(schedule.kind, longer, subject.options.transport);
    if (!made) return {};
    makespans[run] = simulate(*made, longer, subject.costs, subject.options).makespan;
  }
  return makespans[1] - makespans[0];
}

/// A part of the chain of waits that ends at the makespan. Parts are printed longest first.
struct Cause {
  std::string what;
  double seconds = 0;
};

std::vector<Cause> causes_of(const SimulationSubject& subject, const Simulation& simulation) {
  static const char* const names[] = {"forward", "backward", "input gradient", "weight gradient", "", "",
                                      "",        "",         "reduce",         "update"};
  const std::vector<StageLink> links = subject.shape.all_links();
  std::map<std::string, double> seconds;
  for (const CriticalStep& step : critical_path(simulation, subject.shape, subject.options.transport)) {
    std::string what;
    if (step.link >= 0) {
      const StageLink& link = links[step.link];
      what = "transfer between stages " + std::to_string(link.from.value) + " and " +
             std::to_string(link.to.value);
    } else {
      what = std::string(names[static_cast<std::size_t>(step.action.op)]) + " of stage " +
             std::to_string(step.action.stage.value);
    }
    seconds[what] += step.end - step.start;
  }
  std::vector<Cause> causes;
  for (const auto& [what, s] : seconds) causes.push_back({what, s});
  std::ranges::stable_sort(causes, std::greater<>(), &Cause::seconds);
  return causes;
}

std::string microbatches_of(const PipelineShape& shape) {
  const std::string of_each = std::to_string(shape.microbatches / shape.arrays) + " microbatches";
  return shape.arrays == 1 ? of_each : std::to_string(shape.arrays) + " arrays of " + of_each;
}

/// The most that each rank keeps, in microbatches of its layers: a chunk counts as its share of them.
std::vector<double> peak_microbatches(const PipelineShape& shape, const Simulation& simulation) {
  const auto stages = shape.stages_of_ranks();
  std::vector<double> peaks;
  for (std::size_t r = 0; r < stages.size(); ++r)
    peaks.push_back(simulation.peak_stash[r] / std::max(1.0, static_cast<double>(stages[r].size())));
  return peaks;
}

void print_text(const SimulationSubject& subject, const Simulation& simulation,
                std::optional<double> in_a_run, bool critical) {
  std::printf("%s, %d stages, %s: makespan %.9g s", to_string(subject.kind).c_str(),
              subject.shape.num_stages(), microbatches_of(subject.shape).c_str(), simulation.makespan);
  if (in_a_run) std::printf(", %.9g s in a run of many", *in_a_run);
  std::printf("\n");
  if (subject.spread > 0)
    std::printf("%s\n", interval_text(in_a_run.value_or(simulation.makespan), subject.spread).c_str());
  const bool bytes = !simulation.peak_bytes.empty();
  std::printf("%-6s %-8s %14s %9s %9s %10s %8s%s\n", "rank", "stage", "busy s", "bubble", "in span",
              "peak stash", "versions", bytes ? "      peak MiB" : "");
  const auto stages = subject.shape.stages_of_ranks();
  const std::vector<double> peaks = peak_microbatches(subject.shape, simulation);
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    std::printf("%-6zu %-8s %14.9g %8.1f%% %8.1f%% %10.4g %8d", r, names_of(stages[r]).c_str(),
                simulation.busy[r], simulation.bubble_fraction[r] * 100,
                simulation.span_bubble_fraction[r] * 100, peaks[r], simulation.peak_versions[r]);
    if (bytes) std::printf(" %13.1f", simulation.peak_bytes[r] / (1 << 20));
    std::printf("\n");
  }
  if (!simulation.link_bytes.empty()) {
    std::printf("\n%-12s %14s\n", "link", "MiB, both ways");
    const std::vector<StageLink> links = subject.shape.all_links();
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::string name =
          std::to_string(links[i].from.value) + " to " + std::to_string(links[i].to.value);
      std::printf("%-12s %14.3f\n", name.c_str(), simulation.link_bytes[i] / (1 << 20));
    }
  }
  if (critical) {
    std::printf("\nThe makespan is bound by\n");
    const std::vector<Cause> causes = causes_of(subject, simulation);
    for (std::size_t i = 0; i < std::min(causes.size(), kMostCauses); ++i) {
      std::printf("  %5.1f%%  %.6g s  %s\n", causes[i].seconds / simulation.makespan * 100, causes[i].seconds,
                  causes[i].what.c_str());
    }
    if (causes.size() > kMostCauses) std::printf("  and %zu more\n", causes.size() - kMostCauses);
  }
  if (simulation.ranks.size() <= kMostDrawnRanks) {
    std::printf("\n%s", draw_text(simulation).c_str());
  } else {
    std::printf("\n%zu ranks are too many for a terminal: --draw FILE.svg\n", simulation.ranks.size());
  }
}

Json to_json(const SimulationSubject& subject, const Simulation& simulation, std::optional<double> in_a_run,
             bool critical) {
  Json ranks = Json::array();
  const auto stages = subject.shape.stages_of_ranks();
  const std::vector<double> peaks = peak_microbatches(subject.shape, simulation);
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    Json held = Json::array();
    for (StageId s : stages[r]) held.push_back(s.value);
    Json rank = Json::object({{"rank", static_cast<int>(r)},
                              {"stage", stages[r].empty() ? -1 : stages[r].front().value},
                              {"stages", held},
                              {"busy_s", simulation.busy[r]},
                              {"bubble_fraction", simulation.bubble_fraction[r]},
                              {"span_s", simulation.span[r]},
                              {"span_bubble_fraction", simulation.span_bubble_fraction[r]},
                              {"peak_stash", peaks[r]},
                              {"peak_versions", simulation.peak_versions[r]}});
    if (!simulation.peak_bytes.empty()) rank["peak_bytes"] = simulation.peak_bytes[r];
    ranks.push_back(std::move(rank));
  }
  Json json = Json::object({{"schedule", to_string(subject.kind)},
                            {"stages", subject.shape.num_stages()},
                            {"microbatches", subject.shape.microbatches},
                            {"makespan_s", simulation.makespan},
                            {"ranks", ranks}});
  if (subject.shape.arrays > 1) json["arrays"] = subject.shape.arrays;
  if (in_a_run) json["steady_step_s"] = *in_a_run;
  if (subject.spread > 0) json["profile_spread"] = subject.spread;
  if (!simulation.link_bytes.empty()) {
    Json links = Json::array();
    const std::vector<StageLink> all = subject.shape.all_links();
    for (std::size_t i = 0; i < all.size(); ++i) {
      links.push_back(Json::object(
          {{"from", all[i].from.value}, {"to", all[i].to.value}, {"bytes", simulation.link_bytes[i]}}));
    }
    json["links"] = links;
  }
  if (critical) {
    Json causes = Json::array();
    for (const Cause& cause : causes_of(subject, simulation))
      causes.push_back(Json::object({{"what", cause.what}, {"seconds", cause.seconds}}));
    json["critical_path"] = causes;
  }
  return json;
}

std::string title_of(const SimulationSubject& subject) {
  const int ranks = subject.shape.num_ranks();
  return to_string(subject.kind) + " · " + std::to_string(subject.shape.num_stages()) + " stages on " +
         std::to_string(ranks) + (ranks == 1 ? " rank · " : " ranks · ") + microbatches_of(subject.shape);
}

/// --write-csv, if given.
Problems write_csv(const SimulateFlags& flags, const SimulationSubject& subject, const Schedule& schedule) {
  const bool transfers = flags.csv_transfers;
  if (!flags.write_csv)
    return transfers ? Problems{{"--csv-transfers", "needs --write-csv", ""}} : Problems{};
  const Result<std::string> text =
      schedule_csv(schedule, subject.shape, transfers ? CsvContent::Transfers : CsvContent::Computations);
  if (!text) {
    Problems problems = text.problems();
    problems.front().where = "--write-csv";
    return problems;
  }
  const Status written = write_file_atomically(*flags.write_csv, *text);
  return written ? Problems{} : written.problems();
}

int simulate_subject(const SimulateFlags& flags, const SimulationSubject& subject) {
  const Result<Schedule> schedule = schedule_of(subject);
  if (!schedule) return exit_with(ExitCode::Usage, schedule.problems());
  for (const std::string& note : subject.notes)
    std::fprintf(stderr, "note: %s: %s\n",
                 flags.schedule_file.value_or(flags.plan.value_or("simulate")).c_str(), note.c_str());
  if (Problems problems = write_csv(flags, subject, *schedule); !problems.empty())
    return exit_with(ExitCode::Usage, problems);
  const Simulation simulation = simulate(*schedule, subject.shape, subject.costs, subject.options);
  if (flags.draw) {
    Status drawn = make_place_for_file(*flags.draw);
    if (drawn)
      drawn = write_file_atomically(*flags.draw, draw_svg(simulation, subject.shape, title_of(subject)));
    if (!drawn) return exit_with(ExitCode::Usage, drawn.problems());
  }
  const std::optional<double> in_a_run = step_in_a_run(subject, *schedule);
  if (flags.format == OutputFormat::Json) {
    Json json = to_json(subject, simulation, in_a_run, flags.critical_path);
    if (flags.print_schedule) json["schedule_text"] = to_string(*schedule);
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  print_text(subject, simulation, in_a_run, flags.critical_path);
  if (flags.print_schedule) std::printf("\n%s\n", to_string(*schedule).c_str());
  return 0;
}

// ---- many
// ------------------------------------------------------------------------------------------------------

struct SweepRow {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  int stages = 0, microbatches = 0;
  Problems problems;  ///< why there are no figures
  double makespan = 0, steady = 0, bubble = 0, span_bubble = 0;
  double stash = 0;  ///< microbatches of a rank's layers
  int versions = 0;
  bool best = false;  ///< of its stages and microbatches
};

SweepRow sweep_one(const SimulateFlags& flags, const Arguments& given, ScheduleKind kind, int stages,
                   int microbatches, Problems& problems) {
  SweepRow row{.kind = kind, .stages = stages, .microbatches = microbatches};
  const SimulationSubject subject = subject_from_flags(flags, given, kind, stages, microbatches, problems);
  if (!problems.empty()) return row;
  const Result<Schedule> schedule = schedule_of(subject);
  if (!schedule) {
    row.problems = schedule.problems();
    return row;
  }
  const Simulation simulation = simulate(*schedule, subject.shape, subject.costs, subject.options);
  row.makespan = simulation.makespan;
  row.steady = step_in_a_run(subject, *schedule).value_or(simulation.makespan);
  row.bubble = std::ranges::min(simulation.bubble_fraction);
  row.span_bubble = std::ranges::max(simulation.span_bubble_fraction);
  row.stash = std::ranges::max(peak_microbatches(subject.shape, simulation));
  row.versions = std::ranges::max(simulation.peak_versions);
  return row;
}

void mark_best(std::vector<SweepRow>& rows) {
  for (SweepRow& row : rows) {
    row.best = row.problems.empty() && std::ranges::none_of(rows, [&](const SweepRow& other) {
                 return other.problems.empty() && other.stages == row.stages &&
                        other.microbatches == row.microbatches && other.steady < row.steady * (1 - 1e-9);
               });
  }
}

void print_sweep(const std::vector<SweepRow>& rows) {
  std::printf("%6s %6s  %-17s %12s %12s %8s %8s %10s %8s\n", "stages", "microb", "schedule", "makespan s",
              "in a run", "bubble", "in span", "peak stash", "versions");
  const SweepRow* last = nullptr;
  for (const SweepRow& row : rows) {
    if (last != nullptr && (last->stages != row.stages || last->microbatches != row.microbatches))
      std::printf("\n");
    std::printf("%6d %6d  %-15s %c ", row.stages, row.microbatches, to_string(row.kind).c_str(),
                row.best ? '*' : ' ');
    if (row.problems.empty()) {
      std::printf("%12.6g %12.6g %7.1f%% %7.1f%% %10.4g %8d\n", row.makespan, row.steady, row.bubble * 100,
                  row.span_bubble * 100, row.stash, row.versions);
    } else {
      std::printf("%s\n", row.problems.front().what.c_str());
    }
    last = &row;
  }
  std::printf(
      "\nin a run: seconds of the step among others, without a barrier (* fastest of its stages and "
      "microbatches);\nbubble: of the busiest rank, in one step; in span: the largest between a rank's first "
      "and last computation;\npeak stash: microbatches of a rank's layers\n");
}

Json to_json(const std::vector<SweepRow>& rows) {
  Json list = Json::array();
  for (const SweepRow& row : rows) {
    Json json = Json::object(
        {{"schedule", to_string(row.kind)}, {"stages", row.stages}, {"microbatches", row.microbatches}});
    if (row.problems.empty()) {
      json["makespan_s"] = row.makespan;
      json["steady_step_s"] = row.steady;
      json["bubble_fraction"] = row.bubble;
      json["span_bubble_fraction"] = row.span_bubble;
      json["peak_microbatches"] = row.stash;
      json["peak_versions"] = row.versions;
      json["fastest"] = row.best;
    } else {
      json["problem"] = to_string(row.problems.front());
    }
    list.push_back(std::move(json));
  }
  return Json::object({{"sweep", list}});
}

int sweep(const SimulateFlags& flags, const Arguments& given, Problems problems) {
  for (const char* flag : {"draw", "print-schedule", "critical-path", "write-csv"}) {
    if (given.has(flag)) problems.push_back({long_name(flag), "shows one schedule", "leave out --sweep"});
  }
  const std::vector<ScheduleKind> kinds = given.has("schedule") ? flags.schedules : schedule_kinds(has_flag);
  const std::vector<int> stages = given.has("stages") ? flags.stages : std::vector{4, 8};
  const std::vector<int> microbatches = given.has("microbatches") ? flags.microbatches : std::vector{8, 32};
  std::vector<SweepRow> rows;
  SteadyClock clock;
  ProgressLine line(clock, "simulate");
  const auto total = static_cast<std::int64_t>(stages.size() * microbatches.size() * kinds.size());
  for (int s : stages) {
    for (int m : microbatches) {
      for (ScheduleKind kind : kinds) {
        if (!problems.empty()) break;
        rows.push_back(sweep_one(flags, given, kind, s, m, problems));
        line.show(static_cast<std::int64_t>(rows.size()), total, "schedules");
      }
    }
  }
  line.clear();
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  mark_best(rows);
  if (flags.format == OutputFormat::Json) {
    std::printf("%s\n", to_json(rows).dump(2).c_str());
  } else {
    print_sweep(rows);
  }
  return 0;
}

int simulate_plan(const SimulateFlags& flags, const Arguments& given, const CommandSpec& spec,
                  Problems problems) {
  append(problems, refused_group(spec, given, kShapeFlags, "the plan says it", "leave it out"));
  if (flags.sweep) problems.push_back({"--sweep", "the plan says it", "leave it out"});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  int code = 0;
  const Result<SimulationSubject> subject = subject_from_plan(flags, given, code);
  if (!subject) return exit_with(static_cast<ExitCode>(code), subject.problems());
  return simulate_subject(flags, *subject);
}

int simulate_file(const SimulateFlags& flags, const Arguments& given) {
  int code = 0;
  const Result<SimulationSubject> subject = subject_from_file(flags, given, code);
  if (!subject) return exit_with(static_cast<ExitCode>(code), subject.problems());
  return simulate_subject(flags, *subject);
}

int simulate_shape(const SimulateFlags& flags, const Arguments& given, Problems problems) {
  for (const char* flag : {"profile", "cluster"}) {
    if (given.has(flag)) problems.push_back({long_name(flag), "needs --plan", ""});
  }
  if (flags.schedule_file && problems.empty()) return simulate_file(flags, given);
  if (flags.sweep) return sweep(flags, given, std::move(problems));
  const std::string hint = "a list needs --sweep";
  const ScheduleKind kind = only(flags.schedules, "--schedule", hint, problems);
  const int stages = only(flags.stages, "--stages", hint, problems);
  const int microbatches = only(flags.microbatches, "--microbatches", hint, problems);
  const SimulationSubject subject = subject_from_flags(flags, given, kind, stages, microbatches, problems);
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  return simulate_subject(flags, subject);
}

Result<std::vector<ScheduleKind>> schedules_from(const std::string& list) {
  std::vector<ScheduleKind> kinds;
  for (const std::string& word : split(list, ',')) {
    const Result<ScheduleKind> kind = parse_schedule_kind(word, "--schedule");
    if (!kind) return kind.problems();
    kinds.push_back(*kind);
  }
  return kinds;
}

CommandSpec spec_of(SimulateFlags& f) {
  CommandSpec spec;
  spec.command = "simulate";
  spec.summary = "Run a schedule's actions against costs: makespan, bubbles, memory, and a picture.";
  spec.flags = {
      flag("", "schedule", "KIND",
           names_of(named_kinds(false)) + "; asynchronous: " + names_of(named_kinds(true)) +
               " (with --plan: the plan's).",
           into::parsed(f.schedules, schedules_from, to_string(f.schedules.front()))),
      flag("", "schedule-file", "FILE",
           "Simulate this PyTorch pipeline-schedule CSV, with or without its transfers.",
           into::text(f.schedule_file)),
      flag("", "microbatches", "N", "Microbatches of the step (with --plan: the plan's).",
           into::integers(f.microbatches, 1, kMostSimulatedMicrobatches), 'm'),
      flag("", "sweep",
           "Compare: --schedule, --stages and --microbatches may be lists (default: all schedules, 4,8 "
           "stages, 8,32 microbatches).",
           into::on(f.sweep)),
      flag("", "draw", "FILE", "Write the timeline as SVG.", into::svg_file(f.draw)),
      flag("", "write-csv", "FILE", "Write the schedule as PyTorch's CSV (compute only).",
           into::text(f.write_csv)),
      flag("", "csv-transfers", "In --write-csv, the SEND and RECV actions as well.",
           into::on(f.csv_transfers)),
      flag("", "stash-limit", "LIST",
           "Of auto-order: microbatches of its layers that a rank may hold, one value or one for each rank.",
           into::numbers(f.stash_limit)),
      flag("", "critical-path", "Say which actions and links bound the makespan.", into::on(f.critical_path)),
      flag("", "print-schedule", "Print the actions of each rank as well.", into::on(f.print_schedule)),
      flag("", "format", "text|json", "What to print.", into::choice(f.format, "format")),
  };
  for (Flag& flag : simulation_subject_flags(f)) spec.flags.push_back(std::move(flag));
  spec.first = {"schedule", "stages", "microbatches", "sweep",    "draw",     "plan",         "profile",
                "cluster",  "format", "forward",      "backward", "transfer", "critical-path"};
  spec.interrupted = "nothing was written";
  spec.examples = {
      "millrace simulate --schedule 1f1b --stages 4 --microbatches 8 --draw schedule.svg",
      "millrace simulate --schedule zb-v --stages 4 --microbatches 8 --write-csv zbv.csv",
      "millrace simulate --schedule-file zbv.csv --forward 1.2 --draw schedule.svg",
      "millrace simulate --schedule auto-order --stages 4 --microbatches 8 --forward 1,2,1,3 --stash-limit 5",
      "millrace simulate --sweep --stages 4,8 --microbatches 8,32 --latency 0.1",
      "millrace simulate --stages 4 --activation-bytes 8e6 --bandwidth 1e9 --ranks-per-host 2 --straggler "
      "1:1.5 --critical-path",
      "millrace simulate --plan plan.json --profile profile.json --draw schedule.svg"};
  return spec;
}

}  // namespace

CommandSpec simulate_spec() {
  return without_targets<SimulateFlags>(spec_of);
}

int simulate_command(const std::vector<std::string>& args) {
  SimulateFlags flags;
  const CommandSpec spec = spec_of(flags);
  return run_command(spec, args, [&](const Arguments& given, Problems problems) {
    return flags.plan ? simulate_plan(flags, given, spec, std::move(problems))
                      : simulate_shape(flags, given, std::move(problems));
  });
}

}  // namespace millrace
