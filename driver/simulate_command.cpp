#include "driver/simulate_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "driver/command_support.h"
#include "optimizer/cost_model.h"
#include "optimizer/predicted_costs.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/schedule/gantt.h"
#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

constexpr std::int64_t kMostRanks = 4096;
constexpr std::int64_t kMostMicrobatches = 1 << 20;
constexpr long kMostActions = 20'000'000;
constexpr const char* kShapeFlags[] = {"stages", "replicas", "forward", "backward", "transfer"};

// What is simulated, whichever way it was given.
struct Subject {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  PipelineShape shape;
  ScheduleCosts costs;
};

void append(Problems& to, const Problems& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// One value for every stage, or one for each.
std::vector<double> per_stage(Arguments& arguments, const char* flag, std::size_t stages,
                              Problems& problems) {
  std::vector<double> values = arguments.numbers(flag);
  if (values.size() == 1) values.resize(stages, values.front());
  for (double value : values) {
    if (!(value >= 0)) problems.push_back({long_name(flag), "a number is below 0", ""});
  }
  if (values.size() != stages) {
    problems.push_back({long_name(flag),
                        std::to_string(values.size()) + " values for " + std::to_string(stages) + " stages",
                        "give one value, or one for each stage"});
    values.resize(stages, 0);
  }
  return values;
}

Subject subject_from_flags(Arguments& arguments, Problems& problems) {
  Subject subject;
  const auto stages = static_cast<std::size_t>(arguments.integer("stages", 1, kMostRanks));
  subject.shape.microbatches = static_cast<int>(arguments.integer("microbatches", 1, kMostMicrobatches));
  int rank = 0;
  for (double replicas : per_stage(arguments, "replicas", stages, problems)) {
    if (replicas < 1 || replicas != std::floor(replicas) || replicas > static_cast<double>(kMostRanks)) {
      problems.push_back({"--replicas", "a stage needs a whole number of ranks, at least 1", ""});
      replicas = 1;
    }
    auto& ranks = subject.shape.ranks_of_stage.emplace_back();
    for (int r = 0; r < static_cast<int>(replicas); ++r) ranks.push_back(RankId(rank++));
  }
  subject.costs.forward = per_stage(arguments, "forward", stages, problems);
  for (double backward : per_stage(arguments, "backward", stages, problems)) {
    subject.costs.backward_input.push_back(backward / 2);
    subject.costs.backward_weight.push_back(backward / 2);
  }
  const double transfer = arguments.number("transfer", 0, 1e9);
  subject.costs.transfer.assign(subject.shape.all_links().size(), transfer);
  return subject;
}

Result<Subject> subject_from_plan(Arguments& arguments, const Plan& plan, const LayerGraph* graph) {
  Problems problems = graph == nullptr ? validate(plan) : validate(plan, *graph);
  if (graph == nullptr && !has_predicted_times(plan)) {
    problems.push_back(
        {arguments.string("plan"), "has no predicted times", "give the profile with --profile"});
  }
  const Result<ClusterSpec> cluster = cluster_of(arguments, std::max(1, plan.num_ranks()));
  if (!cluster) append(problems, cluster.problems());
  if (cluster && cluster->num_ranks() < plan.num_ranks()) {
    problems.push_back({"--cluster",
                        "has " + std::to_string(cluster->num_ranks()) + " ranks, the plan needs " +
                            std::to_string(plan.num_ranks()),
                        ""});
  }
  Subject subject;
  subject.kind = plan.schedule;
  int microbatches = plan.microbatches;
  if (arguments.has("microbatches")) {
    microbatches = static_cast<int>(arguments.integer("microbatches", 1, kMostMicrobatches));
  }
  append(problems, arguments.problems());
  if (!problems.empty()) return problems;
  if (graph != nullptr) {
    const CostModel model(*graph, *cluster);
    const std::vector<CutStage> stages = model.stages_of(plan);
    subject.shape = model.shape_of(stages, microbatches);
    subject.costs = model.costs_of(stages, subject.shape);
  } else {
    subject.shape = shape_of(plan, microbatches);
    subject.costs = predicted_costs(plan, subject.shape, *cluster);
  }
  return subject;
}

int stage_of_rank(const PipelineShape& shape, int rank) {
  for (int s = 0; s < shape.num_stages(); ++s) {
    for (RankId r : shape.ranks_of_stage[s]) {
      if (r.value == rank) return s;
    }
  }
  return -1;
}

void print_text(const Subject& subject, const Simulation& simulation) {
  std::printf("%s, %d stages, %d microbatches: makespan %.9g s\n", to_string(subject.kind).c_str(),
              subject.shape.num_stages(), subject.shape.microbatches, simulation.makespan);
  std::printf("%-6s %-6s %14s %9s %10s %8s\n", "rank", "stage", "busy s", "bubble", "peak stash", "versions");
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    std::printf("%-6zu %-6d %14.9g %8.1f%% %10d %8d\n", r, stage_of_rank(subject.shape, static_cast<int>(r)),
                simulation.busy[r], simulation.bubble_fraction[r] * 100, simulation.peak_stash[r],
                simulation.peak_versions[r]);
  }
  std::printf("\n%s", draw_text(simulation).c_str());
}

Json to_json(const Subject& subject, const Simulation& simulation) {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    ranks.push_back(Json::object({{"rank", rank},
                                  {"stage", stage_of_rank(subject.shape, rank)},
                                  {"busy_s", simulation.busy[r]},
                                  {"bubble_fraction", simulation.bubble_fraction[r]},
                                  {"peak_stash", simulation.peak_stash[r]},
                                  {"peak_versions", simulation.peak_versions[r]}}));
  }
  return Json::object({{"schedule", to_string(subject.kind)},
                       {"stages", subject.shape.num_stages()},
                       {"microbatches", subject.shape.microbatches},
                       {"makespan_s", simulation.makespan},
                       {"ranks", ranks}});
}

int simulate_subject(Arguments& arguments, const Subject& subject, OutputFormat format) {
  const long actions = 6L * subject.shape.num_stages() * subject.shape.microbatches;
  if (actions > kMostActions) {
    return exit_with(ExitCode::Usage,
                     {{"--microbatches", "stages x microbatches is too large to simulate", ""}});
  }
  const Result<Schedule> schedule = make_schedule(subject.kind, subject.shape);
  if (!schedule) return exit_with(ExitCode::Usage, schedule.problems());
  const Simulation simulation = simulate(*schedule, subject.shape, subject.costs);
  if (arguments.has("draw")) {
    const std::string title =
        to_string(subject.kind) + ", " + std::to_string(subject.shape.microbatches) + " microbatches";
    const Status drawn =
        write_file_atomically(arguments.string("draw"), draw_svg(simulation, subject.shape, title));
    if (!drawn) return exit_with(ExitCode::Usage, drawn.problems());
  }
  const bool print_schedule = arguments.boolean("print-schedule");
  if (format == OutputFormat::Json) {
    Json json = to_json(subject, simulation);
    if (print_schedule) json["schedule_text"] = to_string(*schedule);
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  print_text(subject, simulation);
  if (print_schedule) std::printf("\n%s\n", to_string(*schedule).c_str());
  return 0;
}

int simulate_plan(Arguments& arguments, OutputFormat format, Problems problems) {
  for (const char* flag : kShapeFlags) {
    if (arguments.has(flag)) problems.push_back({long_name(flag), "the plan says it", "leave it out"});
  }
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  Result<Plan> plan = Plan::load(arguments.string("plan"));
  if (!plan) return exit_with(ExitCode::Usage, plan.problems());
  if (arguments.has("schedule")) {
    const Result<ScheduleKind> kind = parse_schedule_kind(arguments.string("schedule"), "--schedule");
    if (!kind) return exit_with(ExitCode::Usage, kind.problems());
    plan->schedule = *kind;
    plan->versions = *kind == ScheduleKind::PipeDream ? VersionPolicy::Stash : VersionPolicy::Flush;
  }
  std::optional<LayerGraph> graph;
  if (arguments.has("profile")) {
    Result<LayerGraph> loaded = LayerGraph::load(arguments.string("profile"));
    if (!loaded) return exit_with(ExitCode::InputData, loaded.problems());
    graph = std::move(*loaded);
  }
  const Result<Subject> subject = subject_from_plan(arguments, *plan, graph ? &*graph : nullptr);
  if (!subject) return exit_with(ExitCode::Usage, subject.problems());
  return simulate_subject(arguments, *subject, format);
}

int simulate_shape(Arguments& arguments, OutputFormat format, Problems problems) {
  for (const char* flag : {"profile", "cluster"}) {
    if (arguments.has(flag)) problems.push_back({long_name(flag), "needs --plan", ""});
  }
  Subject subject = subject_from_flags(arguments, problems);
  const Result<ScheduleKind> kind = parse_schedule_kind(arguments.string("schedule"), "--schedule");
  if (kind) {
    subject.kind = *kind;
  } else {
    append(problems, kind.problems());
  }
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  return simulate_subject(arguments, subject, format);
}

}  // namespace

CommandSpec simulate_spec() {
  CommandSpec spec;
  spec.command = "simulate";
  spec.summary = "Run a schedule's actions against costs: makespan, bubbles, stash, and a picture.";
  const char* const shape = "Shape";
  const char* const plan = "A plan";
  spec.flags = {
      {.name = "schedule",
       .value = "KIND",
       .help = "gpipe, 1f1b or pipedream (with --plan: the plan's).",
       .fallback = "1f1b"},
      {.name = "microbatches",
       .short_name = 'm',
       .value = "N",
       .help = "Microbatches of the step (with --plan: the plan's).",
       .fallback = "4"},
      {.name = "draw", .value = "FILE", .help = "Write the timeline as SVG."},
      {.name = "print-schedule", .help = "Print the actions of each rank as well."},
      {.name = "format", .value = "text|json", .help = "What to print.", .fallback = "text"},
      {.name = "stages", .value = "N", .help = "Number of stages.", .fallback = "4", .group = shape},
      {.name = "replicas",
       .value = "LIST",
       .help = "Ranks of each stage, e.g. 2,1.",
       .fallback = "1",
       .group = shape},
      {.name = "forward",
       .value = "LIST",
       .help = "Seconds of a forward, one value or one for each stage.",
       .fallback = "1",
       .group = shape},
      {.name = "backward",
       .value = "LIST",
       .help = "Seconds of a backward, one value or one for each stage.",
       .fallback = "2",
       .group = shape},
      {.name = "transfer",
       .value = "S",
       .help = "Seconds of a transfer between stages.",
       .fallback = "0",
       .group = shape},
      {.name = "plan", .value = "FILE", .help = "plan.json to simulate.", .group = plan},
      {.name = "profile",
       .value = "FILE",
       .help = "profile.json for the costs (default: the plan's predictions).",
       .group = plan},
      {.name = "cluster",
       .value = "FILE",
       .help = "cluster.yaml for the links (default: this host).",
       .group = plan},
  };
  spec.examples = {"millrace simulate --schedule 1f1b --stages 4 --microbatches 8",
                   "millrace simulate --plan plan.json --profile profile.json --draw schedule.svg"};
  return spec;
}

int simulate_command(const std::vector<std::string>& args) {
  const CommandSpec spec = simulate_spec();
  Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) {
    std::printf("%s", help_text(spec).c_str());
    return 0;
  }
  Problems problems;
  const OutputFormat format = output_format(*arguments, problems);
  return arguments->has("plan") ? simulate_plan(*arguments, format, std::move(problems))
                                : simulate_shape(*arguments, format, std::move(problems));
}

}  // namespace millrace
