#include "driver/plan/plan_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>

#include "driver/cli/command_support.h"
#include "driver/flags/planning_files.h"
#include "driver/plan/jobs_report.h"
#include "driver/plan/plan_explanation.h"
#include "driver/plan/run_profile.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/pipedream/pipedream_planner.h"
#include "optimizer/planner/objective.h"
#include "optimizer/planner/plan_jobs.h"
#include "optimizer/planner/planner.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/json.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"
#include "runtime/drawing/partition_drawing.h"
#include "runtime/plan/array_profiles.h"
#include "runtime/plan/device_presets.h"
#include "runtime/plan/limits.h"
#include "runtime/plan/smaller_plans.h"
#include "runtime/plan/spread_tables.h"
#include "runtime/rules/rule_table.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

constexpr std::int64_t kMostRanks = 16384;  // planning for more takes many minutes
constexpr std::int64_t kMostPlannedJobs = 1024;
constexpr int kLeastMicrobatches = 4;
constexpr double kWorthANote = 1.05;  // times less time a sample
constexpr double kMoreEffort = 4;     // times as much, where a limit of it was met
constexpr double kWorthAFlag = 0.01;  // of a step less
constexpr char kOurs[] = "Our profiles";
constexpr char kPipeDreams[] = "PipeDream profiles";

/// The values of the command's flags.
struct PlanFlags {
  std::optional<std::string> profile, cluster, from_run;
  std::optional<DevicePreset> device;
  std::optional<Bytes> memory;
  std::optional<int> ranks, microbatches, jobs;
  bool rule_given = false;
  std::optional<std::int64_t> batch;
  std::int64_t steps = 1;
  int smaller = 0;         ///< hosts that may be lost
  PlannerOptions options;  ///< without what has an optional here
  bool explain = false;
  std::vector<std::string> compare;
  std::optional<std::string> out, emit_conf, draw;
  bool pipedream = false;
  PipeDreamOptions original;  ///< of --pipedream
  OutputFormat format = OutputFormat::Text;
};

// ---- PipeDream mode
// ---------------------------------------------------------------------------------------------

PipeDreamOptions pipedream_options(const PlanFlags& flags) {
  PipeDreamOptions options = flags.original;
  options.straight = flags.options.straight;
  if (flags.memory) options.memory_bytes = static_cast<double>(*flags.memory);
  return options;
}

Json to_json(const PipeDreamAnswer& answer) {
  Json stages = Json::array();
  for (const PipeDreamStage& stage : answer.stages) {
    Json nodes = Json::array();
    for (const std::string& id : stage.nodes) nodes.push_back(id);
    Json workers = Json::array();
    for (const int worker : stage.workers) workers.push_back(worker);
    stages.push_back(Json::object({{"compute_time_s", stage.compute_time_s},
                                   {"replication", stage.replication},
                                   {"workers", workers},
                                   {"nodes", nodes}}));
  }
  return Json::object({{"single_machine_time_s", answer.single_machine_time_s},
                       {"data_parallel_time_s", answer.data_parallel_time_s},
                       {"pipeline_time_s", answer.pipeline_time_s},
                       {"stages", stages}});
}

// node2 before node10; the file's own order is that of creation, not of execution.
std::string node_range(const std::vector<std::string>& ids) {
  if (ids.empty()) return "no layer";
  const auto [first, last] = std::minmax_element(ids.begin(), ids.end(), [](const auto& a, const auto& b) {
    return std::pair(a.size(), std::string_view(a)) < std::pair(b.size(), std::string_view(b));
  });
  return ids.size() == 1 ? *first : *first + " .. " + *last;
}

void print_table(const PipeDreamAnswer& answer) {
  std::printf("%-6s %12s %12s %6s  %s\n", "stage", "compute ms", "replication", "nodes", "between");
  for (std::size_t s = 0; s < answer.stages.size(); ++s) {
    const PipeDreamStage& stage = answer.stages[s];
    std::printf("%-6zu %12.3f %12d %6zu  %s\n", s, stage.compute_time_s * 1e3, stage.replication,
                stage.nodes.size(), escaped(node_range(stage.nodes)).c_str());
  }
  const double single = answer.single_machine_time_s;
  std::printf("seconds per minibatch: pipeline %.6f, one machine %.6f (%.2fx), data parallel %.6f (%.2fx)\n",
              answer.pipeline_time_s, single, single / answer.pipeline_time_s, answer.data_parallel_time_s,
              answer.data_parallel_time_s / answer.pipeline_time_s);
}

int plan_for_pipedream(const PlanFlags& flags, Problems problems) {
  if (!flags.profile) problems.push_back({"--profile", "is required", "for example --profile graph.txt"});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<PipeDreamGraph> graph = read_pipedream_graph(*flags.profile);
  if (!graph) return exit_with(ExitCode::InputData, graph.problems());
  const Result<PipeDreamAnswer> answer = plan_pipedream(*graph, pipedream_options(flags));
  if (!answer) return exit_with(ExitCode::Usage, answer.problems());
  if (flags.format == OutputFormat::Json) {
    std::printf("%s\n", to_json(*answer).dump(2).c_str());
  } else {
    print_table(*answer);
  }
  return 0;
}

// ---- our profiles
// -----------------------------------------------------------------------------------------------

/// "sgd 0, momentum 1, ...".
std::string rule_help() {
  std::string text = "Update rule whose state counts as memory, in copies of the parameters:";
  for (const RuleMemory& memory : rule_memories())
    text += (text.back() == ':' ? " " : ", ") + memory.name + " " + std::to_string(memory.tensors);
  return text + ".";
}

Result<int> rule_copies(const std::string& rule) {
  std::vector<std::string> names;
  for (const RuleMemory& memory : rule_memories()) names.push_back(memory.name);
  const Result<std::size_t> place = choice_from(rule, "update rule", names);
  if (!place) return place.problems();
  return rule_memories()[*place].tensors;
}

std::string first_rule_with(int copies) {
  const std::vector<RuleMemory> memories = rule_memories();
  const auto found = std::ranges::find(memories, copies, &RuleMemory::tensors);
  return found == memories.end() ? "" : found->name;
}

/// Nothing: the planner chooses.
Result<std::optional<ScheduleKind>> planned_schedule(const std::string& text) {
  if (text == "auto") return std::optional<ScheduleKind>();
  const Result<ScheduleKind> kind = parse_schedule_kind(text, "--schedule");
  if (!kind) return kind.problems();
  if (*kind == ScheduleKind::Custom)
    return Problem{"", "a custom schedule is read from a file, not planned",
                   "`millrace simulate --schedule-file` runs it"};
  if (*kind == ScheduleKind::SpreadTables)
    return Problem{"", "spread-tables follows from the sizes of tables",
                   "leave --schedule out: such a plan is looked at where a model has tables; `millrace train "
                   "--spread-tables` makes it in any case"};
  return std::optional(*kind);
}

Result<DevicePreset> known_device(const std::string& name) {
  return device_preset(name, "--device");
}

/// But for the microbatches.
PlannerOptions planner_options(const PlanFlags& flags, Problems& problems) {
  PlannerOptions options = flags.options;
  if (flags.batch && flags.microbatches)
    problems.push_back({"--batch", "says how many microbatches there are", "give --batch or --microbatches"});
  if (flags.memory == Bytes{0}) problems.push_back({"--memory", "is 0", "leave it out for no limit"});
  if (flags.device) options.memory_per_rank = flags.device->memory;
  if (flags.memory) options.memory_per_rank = *flags.memory;
  if (flags.ranks && flags.cluster)
    problems.push_back({"--ranks", "the cluster file says how many ranks there are", "give one of the two"});
  if (flags.smaller > 0 && !flags.out)
    problems.push_back({"--smaller", "writes its plans beside the one of --out", "give --out plan.json"});
  if (flags.smaller > 0 && (flags.jobs || !flags.compare.empty()))
    problems.push_back({"--smaller", "does not go with " + std::string(flags.jobs ? "--jobs" : "--compare"),
                        "leave one of the two out"});
  return options;
}

double one_rank_step(const Plan& plan, const LayerGraph& graph) {
  std::vector<std::string> layers;
  for (const PlanStage& stage : plan.stages)
    layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
  const Plan single = uniform_plan(plan.model, layers, 1, 1, plan.microbatches, ScheduleKind::OneFOneB);
  return predict(single, graph, ClusterSpec::local(1)).predicted_step_s * plan.arrays;
}

std::string rank_list(const PlanStage& stage) {
  std::string text = ranks_text(stage.ranks);
  text = text.substr(text.find(' ') + 1);
  if (const std::size_t dash = text.find("–"); dash != std::string::npos) text.replace(dash, 3, "-");
  return text;
}

constexpr int kShownStages = 64;

void print_table(const Plan& plan, const LayerGraph& graph, const ClusterSpec& cluster,
                 const CostOptions& costs) {
  CostModel model(graph, cluster, costs);
  const Result<StepEstimate> estimate =
      model.estimate(plan.schedule, plan.microbatches * plan.arrays, model.stages_of(plan));
  MILLRACE_CHECK(estimate.has_value(), to_string(estimate.problems()));
  std::string arrays;
  if (!plan.rounds.empty())
    arrays = " for each of " + std::to_string(plan.arrays) + (plan.arrays == 1 ? " array" : " arrays") +
             " of " + std::to_string(graph.jobs) + (graph.jobs == 1 ? " job" : " jobs");
  std::printf("%s: %d stage%s on %d ranks, %s, %d microbatches of %d%s\n", escaped(plan.model).c_str(),
              plan.num_stages(), plan.num_stages() == 1 ? "" : "s", plan.num_ranks(),
              to_string(plan.schedule).c_str(), plan.microbatches, graph.microbatch, arrays.c_str());
  std::printf("%-6s %-8s %11s %12s %10s %10s %7s %14s %11s %7s  %s\n", "stage", "ranks", "forward ms",
              "backward ms", "reduce ms", "update ms", "bubble", "parameters MiB", "peak MiB", "layers",
              "first .. last");
  for (int s = 0; s < plan.num_stages() && s < kShownStages; ++s) {
    const PlanStage& stage = plan.stages[s];
    std::printf("%-6d %-8s %11.3f %12.3f %10.3f %10.3f %6.1f%% %14.3f %11.3f %7zu  %s .. %s%s\n", s,
                rank_list(stage).c_str(), stage.forward_s * 1e3, stage.backward_s * 1e3,
                estimate->reduce_s[s] * 1e3, estimate->update_s[s] * 1e3, estimate->bubble[s] * 100,
                static_cast<double>(stage.parameter_bytes) / kMiB,
                static_cast<double>(stage.peak_bytes) / kMiB, stage.layers.size(),
                escaped(stage.layers.front()).c_str(), escaped(stage.layers.back()).c_str(),
                stage.recompute ? "  (recomputes)" : "");
  }
  if (plan.schedule == ScheduleKind::SpreadTables)
    std::printf("%s\n", escaped(text_of_spread_tables(plan)).c_str());
  if (plan.num_stages() > kShownStages) std::printf("... %d more stages\n", plan.num_stages() - kShownStages);
  for (std::size_t c = 0; c < estimate->crossings.size() && c < kShownStages; ++c) {
    const PlanCrossing& crossing = estimate->crossings[c];
    std::printf(
        "link   %d -> %-4d %s each way for a microbatch, %s\n", crossing.from.value, crossing.to.value,
        bytes_text(crossing.bytes).c_str(),
        estimate->transfer_s[c] > 0 ? duration_text(estimate->transfer_s[c]).c_str() : "on the same ranks");
  }
  const double single = one_rank_step(plan, graph);
  std::printf("predicted step %.3f ms; one rank %.3f ms (%.2fx)\n", plan.predicted_step_s * 1e3, single * 1e3,
              single / plan.predicted_step_s);
  const double run = plan.predicted_run_step_s;
  if (run > 0 && run < plan.predicted_step_s * (1 - 1e-3))
    std::printf("in a run of many steps %.3f ms each: this schedule's ends overlap\n", run * 1e3);
  if (plan.predicted_spread > 0)
    std::printf("%s\n",
                interval_text(plan.predicted_step_s, plan.predicted_spread, graph.measured.blocks).c_str());
  if (const std::string origin = to_string(graph.measured.origin, utc_now()); !origin.empty())
    std::printf("%s\n", origin.c_str());
  if (const std::string doubt = doubt_of(graph.measured.origin, processor_name(), utc_now()); !doubt.empty())
    std::printf("note: %s\n", doubt.c_str());
  if (const std::string lengths = graph.lengths_text(); !lengths.empty())
    std::printf("the profile holds for microbatches of %s\n", lengths.c_str());
  if (graph.data_s > 0) {
    const double loading = graph.data_s * plan.microbatches;
    std::printf("loading: %.3f ms a microbatch, beside the computation and not in the step%s\n",
                graph.data_s * 1e3,
                loading > plan.predicted_step_s ? "; one loader is slower than the step" : "");
  }
}

/// One module for each stage and the criterion on the last one, as PipeDream's generator makes them.
PipeDreamConf conf_of(const Plan& plan) {
  PipeDreamConf conf;
  for (int s = 0; s < plan.num_stages(); ++s) {
    conf.module_to_stage_map.push_back(s);
    for (RankId rank : plan.stages[s].ranks) conf.stage_to_rank_map[s].push_back(rank.value);
  }
  conf.module_to_stage_map.push_back(plan.num_stages() - 1);
  return conf;
}

/// --out and the plans beside it, --emit-conf, --draw.
Problems write_files(const PlanFlags& flags, const Plan& plan, const LayerGraph& graph,
                     const std::vector<Plan>& smaller = {}) {
  Problems problems;
  std::size_t places = 0;
  for (const PlanStage& stage : plan.stages) places += stage.ranks.size();
  if (flags.emit_conf && static_cast<int>(places) != plan.num_ranks()) {
    return {{"--emit-conf",
             "the best plan has several stages on each rank (" + to_string(plan.schedule) +
                 "), PipeDream's conf has one",
             "--chunks 1"}};
  }
  const auto write = [&](const std::optional<std::string>& file, auto&& text) {
    if (!file) return;
    const Status place = make_place_for_file(*file);
    const Status written = place ? write_file_atomically(*file, text()) : place;
    if (!written) append(problems, written.problems());
  };
  if (flags.out) {
    if (const Status free = may_replace(*flags.out, "millrace-plan"); !free) return free.problems();
  }
  std::vector<std::string> beside;
  for (std::size_t lost = 1; lost <= smaller.size(); ++lost) {
    beside.push_back(smaller_plan_file(*flags.out, static_cast<int>(lost)));
    if (const Status free = may_replace(beside.back(), "millrace-plan"); !free) return free.problems();
  }
  write(flags.out, [&] { return plan.to_json(); });
  for (std::size_t i = 0; i < smaller.size(); ++i) write(beside[i], [&] { return smaller[i].to_json(); });
  write(flags.emit_conf, [&] { return to_json(conf_of(plan)); });
  write(flags.draw, [&] { return partition_svg(plan, graph); });
  return problems;
}

/// Two plan files under one profile and cluster.
int compare_plans(const std::vector<std::string>& names, const LayerGraph& graph,
                  const std::optional<ClusterSpec>& given, const CostOptions& costs, OutputFormat format) {
  std::vector<PlanCandidate> plans;
  Problems problems;
  for (const std::string& name : names) {
    Result<Plan> plan = Plan::load(name);
    Problems found = plan ? validate(*plan, graph) : plan.problems();
    if (plan && given && given->num_ranks() < plan->num_ranks()) {
      found.push_back({"",
                       "needs " + std::to_string(plan->num_ranks()) + " ranks, the cluster has " +
                           std::to_string(given->num_ranks()),
                       "give a larger --cluster or --ranks"});
    }
    for (Problem& problem : found) {
      if (plan) problem.where = name + (problem.where.empty() ? "" : ": " + problem.where);
      problems.push_back(std::move(problem));
    }
    if (!found.empty()) continue;
    const ClusterSpec cluster = given ? *given : ClusterSpec::local(plan->num_ranks());
    CostModel model(graph, cluster, costs);
    const Result<StepBreakdown> parts =
        model.breakdown(plan->schedule, plan->microbatches, model.stages_of(*plan));
    if (parts) {
      plans.push_back({predict(*plan, graph, cluster, costs), *parts});
    } else {
      append(problems, parts.problems());
    }
  }
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  if (format == OutputFormat::Json) {
    std::printf("%s\n", side_by_side_json(names, plans).dump(1).c_str());
  } else {
    std::printf("%s", side_by_side(names, plans).c_str());
  }
  return 0;
}

/// --batch SAMPLES in microbatches of the profile; or --microbatches; or 4, and one for each rank.
Problems choose_microbatches(const PlanFlags& flags, const LayerGraph& graph, int ranks,
                             PlannerOptions& options) {
  options.microbatches = flags.microbatches.value_or(std::max(kLeastMicrobatches, ranks));
  if (!flags.batch) return {};
  const std::int64_t most = std::int64_t{kMostFileMicrobatches} * graph.microbatch, samples = *flags.batch;
  if (samples > most) {
    return {{"--batch", std::to_string(samples) + " is out of range",
             "expected from 1 to " + std::to_string(most)}};
  }
  const std::int64_t below = samples / graph.microbatch * graph.microbatch;
  if (below != samples) {
    return {{"--batch",
             std::to_string(samples) + " samples are no whole number of the profile's microbatches of " +
                 std::to_string(graph.microbatch),
             (below > 0 ? "--batch " + std::to_string(below) + " or " : std::string("--batch ")) +
                 std::to_string(below + graph.microbatch) + ", or profile with another --microbatch"}};
  }
  options.microbatches = static_cast<int>(samples / graph.microbatch);
  return {};
}

/// Adds what else would take less time within the same memory. After a short search it says so: the whole
/// search, with the flag that is named, finds no worse plan.
void add_faster_ways(std::vector<std::string>& notes, const Plan& plan, const LayerGraph& graph,
                     const ClusterSpec& cluster, const PlannerOptions& options) {
  constexpr double kShort = 0.25;  // times the effort
  bool bounded = options.memory_per_rank > 0;
  for (int r = 0; r < cluster.num_ranks(); ++r) bounded = bounded || cluster.memory_of(RankId(r)) > 0;
  if (!bounded) return;
  struct Way {
    bool possible;
    const char* flag;
    void (*change)(PlannerOptions&);
  };
  const Way ways[] = {
      {options.recompute == Recompute::Never, "--recompute auto",
       [](PlannerOptions& o) { o.recompute = Recompute::Auto; }},
      {options.costs.rule_copies > 0 && !options.costs.share_rule_state, "--zero-1",
       [](PlannerOptions& o) { o.costs.share_rule_state = true; }},
  };
  for (const Way& way : ways) {
    if (!way.possible) continue;
    PlannerOptions tried = options;
    tried.effort *= kShort;
    way.change(tried);
    const Result<Plan> other = plan_layers(graph, cluster, tried);
    if (!other || other->predicted_step_s > plan.predicted_step_s * (1 - kWorthAFlag)) continue;
    notes.push_back("the limit of memory costs time: with " + std::string(way.flag) +
                    printed(" %.3f ms or less instead of %.3f ms", other->predicted_step_s * 1e3,
                            plan.predicted_step_s * 1e3));
  }
}

/// Returns notes on what the user did not say and the answer depends on.
std::vector<std::string> notes_on(const PlanFlags& flags, const Plan& plan, const LayerGraph& graph,
                                  const ClusterSpec& cluster, const PlannerOptions& options) {
  std::vector<std::string> notes;
  if (flags.profile && flags.profile->ends_with(".txt"))
    notes.push_back(
        "the layers of this plan are nodes of PipeDream's graph: it is drawn and simulated, but `train` "
        "needs a "
        "plan of a profile that `millrace profile` has measured");
  Bytes peak = 0;
  bool bounded = true;
  for (const PlanStage& stage : plan.stages) {
    peak = std::max(peak, stage.peak_bytes);
    for (RankId rank : stage.ranks)
      bounded = bounded && (options.memory_per_rank > 0 || cluster.memory_of(rank) > 0);
  }
  if (!bounded) {
    notes.push_back(
        "the memory of the ranks is not given, so nothing bounded this plan: its fullest rank needs " +
        bytes_text(peak) + " (--memory, --device, or memory in the cluster file)");
  }
  const std::string samples = std::to_string(std::int64_t{plan.microbatches} * graph.microbatch);
  if (flags.microbatches == 0) {
    notes.push_back("a batch of " + samples +
                    " samples was chosen for the least time a sample; --batch SAMPLES fixes it, "
                    "which training usually needs");
  }
  add_faster_ways(notes, plan, graph, cluster, options);
  const int ranks = cluster.num_ranks();
  if (plan.microbatches >= ranks || is_asynchronous(plan.schedule)) return notes;
  PlannerOptions wider = options;
  wider.microbatches = ranks;
  const Result<Plan> other = plan_layers(graph, cluster, wider);
  if (!other) return notes;
  const double gain = plan.predicted_step_s / plan.microbatches / (other->predicted_step_s / ranks);
  if (gain < kWorthANote) return notes;
  const std::string count =
      std::to_string(plan.microbatches) + (plan.microbatches == 1 ? " microbatch" : " microbatches");
  notes.push_back(count + " for " + std::to_string(ranks) +
                  " ranks keep them idle: " + std::to_string(ranks) + " microbatches take " +
                  printed("%.2f", gain) + " times less time a sample" +
                  (flags.batch ? "; for the same batch profile with a smaller --microbatch"
                               : "; a batch of " + std::to_string(std::int64_t{ranks} * graph.microbatch)));
  return notes;
}

/// A line of how far a search is that takes more than a second. Not thread-safe.
class PlanProgress {
 public:
  void show(std::string_view what, double part) {
    if (what != what_) {
      what_ = what;
      line_.emplace(clock_, what_);
    }
    if (clock_.now() - start_ < std::chrono::seconds(1)) return;
    line_->show(std::llround(part * 100), 100, "%");
  }
  /// Before anything is printed.
  void clear() { line_.reset(), what_.clear(); }

 private:
  SteadyClock clock_;
  const TimePoint start_ = clock_.now();
  std::string what_;
  std::optional<ProgressLine> line_;
};

/// The plan and its reasons; with --microbatches 0 the others are planned for the batch that was chosen, so
/// that all are compared at one batch. With --steps from 2 on the step in a run of many decides.
Result<PlannerAnswer> answer_of(const PlanFlags& flags, const LayerGraph& graph, const ClusterSpec& cluster,
                                PlannerOptions& options) {
  const Reasons reasons = flags.explain ? Reasons::All : Reasons::RunnerUp;
  if (options.microbatches == 0) {
    const Result<Plan> chosen = plan_layers(graph, cluster, options);
    if (!chosen) return chosen.problems();
    options.microbatches = chosen->microbatches;
  }
  Result<PlannerAnswer> answer = explain_plan(graph, cluster, options, reasons);
  if (!answer) return answer;
  CostModel model(graph, cluster, options.costs);
  predict_runs(*answer, model);
  if (flags.steps > 1) {
    choose_for_run(*answer);
    if (Result<StepBreakdown> parts =
            model.breakdown(answer->plan.schedule, answer->plan.microbatches, model.stages_of(answer->plan)))
      answer->parts = *parts;
    for (PlanCandidate& other : answer->others) {
      if (Result<StepBreakdown> parts =
              model.breakdown(other.plan.schedule, other.plan.microbatches, model.stages_of(other.plan)))
        other.parts = *parts;
    }
  }
  answer->plan.predicted_spread = graph.measured.spread;
  return answer;
}

/// --smaller: a plan for what is left without one host, one without two, and so on. All have the microbatches
/// of the whole cluster's plan, so that a job may change from one to the other.
Result<std::vector<Plan>> smaller_plans(const PlanFlags& flags, const LayerGraph& graph,
                                        const ClusterSpec& cluster, const PlannerOptions& options) {
  std::vector<Plan> plans;
  for (int lost = 1; lost <= flags.smaller; ++lost) {
    const Result<ClusterSpec> left = without_hosts(cluster, lost);
    Problems problems = left ? Problems() : left.problems();
    if (left) {
      PlannerOptions of_left = options;
      if (of_left.stages > left->num_ranks()) of_left.stages = 0;
      Result<PlannerAnswer> answer = answer_of(flags, graph, *left, of_left);
      if (answer) plans.push_back(std::move(answer->plan));
      if (!answer) problems = answer.problems();
    }
    for (Problem& problem : problems)
      problem.where =
          "--smaller " + std::to_string(lost) + (problem.where.empty() ? "" : ": " + problem.where);
    if (!problems.empty()) return problems;
  }
  return plans;
}

/// --profile, with the times of --from-run.
Result<LayerGraph> profile_of(const PlanFlags& flags) {
  if (!flags.from_run) return load_profile(*flags.profile);
  Result<LayerGraph> profile = load_profile(flags.profile.value_or(*flags.from_run + "/profile.json"));
  if (!profile) return profile;
  return profile_of_run(*profile, *flags.from_run);
}

/// --format json: the plan, or with --explain it and why. Returns the exit code.
template <typename Explanation>
int print_json(const PlanFlags& flags, const Plan& plan, Explanation&& explanation) {
  if (!flags.explain) return std::printf("%s\n", plan.to_json().c_str()), 0;
  Json both = Json::object();
  both["plan"] = *parse_json(plan.to_json(), "plan");
  both["explanation"] = explanation();
  std::printf("%s\n", both.dump(1).c_str());
  return 0;
}

/// Plans as many rounds of job arrays as --jobs takes.
int plan_for_jobs(const PlanFlags& flags, const LayerGraph& profile, const ClusterSpec& cluster,
                  PlannerOptions options, PlanProgress& progress) {
  constexpr std::size_t kShownWays = 8;
  const int jobs = *flags.jobs;
  if (!flags.rule_given && profile.rule_state_bytes > 0) {
    Bytes parameters = 0;
    for (const LayerNode& node : profile.nodes) parameters += node.parameter_bytes;
    // A rule keeps whole copies, and a little more where parameters are small: they begin at round places.
    options.costs.rule_copies =
        static_cast<int>((profile.rule_state_bytes + parameters / 2) / std::max<Bytes>(1, parameters));
  }
  Result<JobsAnswer> answer = plan_jobs(profile, cluster, options, jobs);
  progress.clear();
  if (!answer) return exit_with(ExitCode::Usage, answer.problems());
  JobsCandidate& best = answer->candidates.front();
  best.plan.predicted_spread = profile.measured.spread;
  const LayerGraph graph = *profile_of_array(profile, best.jobs);
  CostOptions costs = *costs_of_array(options.costs, best.jobs);
  costs.arrays = best.plan.arrays;
  if (const Problems problems = write_files(flags, best.plan, graph); !problems.empty())
    return exit_with(ExitCode::Usage, problems);
  std::optional<JobsCandidate> free;
  if (flags.explain && answer->not_fitting > 0) {
    ClusterSpec unlimited = cluster;
    unlimited.memory_per_rank = 0;
    for (DeviceKind& kind : unlimited.kinds) kind.memory = 0;
    PlannerOptions without = options;
    without.memory_per_rank = 0;
    const Result<JobsAnswer> other = plan_jobs(profile, unlimited, without, jobs);
    progress.clear();
    if (other && other->candidates.front().total_s < best.total_s) free = other->candidates.front();
  }
  if (flags.format == OutputFormat::Json)
    return print_json(flags, best.plan, [&] { return jobs_json(*answer, jobs); });
  const std::size_t shown = flags.explain ? answer->candidates.size() : kShownWays;
  std::printf("%s\n", jobs_table(*answer, jobs, shown).c_str());
  print_table(best.plan, graph, cluster, costs);
  std::printf("%s", jobs_reasons(*answer, profile, jobs, free).c_str());
  return 0;
}

int plan_for_layers(const PlanFlags& flags, Problems problems) {
  PlannerOptions options = planner_options(flags, problems);
  if (!flags.profile && !flags.from_run)
    problems.push_back({"--profile", "is required", "for example --profile profile.json"});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const int ranks = flags.ranks.value_or(options.stages > 0 ? options.stages : 2);
  Result<ClusterSpec> cluster = cluster_of(flags.cluster, ranks);
  if (cluster && flags.device && !flags.cluster) {
    const ClusterLink& link = flags.device->link;
    cluster->levels[0] = {.count = ranks, .bandwidth = link.bandwidth, .latency_s = link.latency_s};
  }
  if (!cluster) return exit_with(ExitCode::Usage, cluster.problems());
  if (cluster->num_ranks() > kMostRanks) {
    return exit_with(ExitCode::Usage,
                     {{"--cluster", "has more than " + std::to_string(kMostRanks) + " ranks", ""}});
  }
  const Result<LayerGraph> graph = profile_of(flags);
  if (!graph) return exit_with(ExitCode::InputData, graph.problems());
  options.kept_free = bytes_kept_free(*graph);
  if (problems = choose_microbatches(flags, *graph, cluster->num_ranks(), options); !problems.empty())
    return exit_with(ExitCode::Usage, problems);
  auto of_kinds = load_kind_profiles(*cluster);
  if (!of_kinds) return exit_with(ExitCode::InputData, of_kinds.problems());
  options.costs.profiles = *std::move(of_kinds);
  if (!flags.compare.empty()) {
    const bool given = flags.cluster || flags.ranks;
    return compare_plans(flags.compare, *graph, given ? std::optional(*cluster) : std::nullopt, options.costs,
                         flags.format);
  }
  PlanProgress progress;
  options.progress = [&](std::string_view what, double part) { progress.show(what, part); };
  if (flags.jobs) return plan_for_jobs(flags, *graph, *cluster, options, progress);
  const Result<PlannerAnswer> answer = answer_of(flags, *graph, *cluster, options);
  const Result<std::vector<Plan>> smaller =
      answer ? smaller_plans(flags, *graph, *cluster, options) : std::vector<Plan>();
  progress.clear();
  if (!answer) return exit_with(ExitCode::Usage, answer.problems());
  if (!smaller) return exit_with(ExitCode::Usage, smaller.problems());
  const Plan& plan = answer->plan;
  if (problems = write_files(flags, plan, *graph, *smaller); !problems.empty())
    return exit_with(ExitCode::Usage, problems);
  std::vector<Sensitivity> changes;
  if (flags.explain) changes = sensitivity(*answer, *graph, *cluster, options);
  const std::vector<std::string> notes = notes_on(flags, plan, *graph, *cluster, options);
  progress.clear();
  for (const std::string& text : notes) std::fprintf(stderr, "note: %s\n", text.c_str());
  if (flags.format == OutputFormat::Json)
    return print_json(flags, plan, [&] { return explanation_json(*answer, changes); });
  print_table(plan, *graph, *cluster, options.costs);
  if (flags.explain) {
    std::printf("%s", explanation_text(*answer, changes).c_str());
  } else if (!answer->others.empty()) {
    std::printf("runner-up: %s\n", comparison_text(*answer, answer->others.front()).c_str());
    if (const std::string lead = lead_text(*answer); !lead.empty()) std::printf("%s\n", lead.c_str());
  }
  for (int lost = 1; lost <= flags.smaller; ++lost) {
    const Plan& one = (*smaller)[static_cast<std::size_t>(lost) - 1];
    std::printf("without %d of the hosts: %s, predicted step %.3f ms (%s)\n", lost, spread_text(one).c_str(),
                one.predicted_step_s * 1e3, smaller_plan_file(*flags.out, lost).c_str());
  }
  if (!answer->search.finished && !flags.explain)
    std::printf("a work limit was met: --effort %g looks further\n", options.effort * kMoreEffort);
  return 0;
}

CommandSpec spec_of(PlanFlags& f) {
  PlannerOptions& o = f.options;
  CommandSpec spec;
  spec.command = "plan";
  spec.summary = "Cut a profiled model into pipeline stages, replicate them, and predict the step time.";
  spec.flags = {
      flag("", "profile", "FILE",
           "profile.json of `millrace profile`, or a PipeDream graph.txt. Required, unless --from-run has "
           "one.",
           into::text(f.profile), 'p'),
      flag("", "straight", "No replication: one rank for each stage.", into::on(o.straight)),
      flag("", "memory", "BYTES", "Memory of a rank, e.g. 8GiB (default: the cluster's).",
           into::bytes(f.memory)),
      flag("", "format", "text|json", "What to print.", into::choice(f.format, "format")),
      flag(kOurs, "cluster", "FILE", "cluster.yaml: links and memory.", into::text(f.cluster)),
      flag(kOurs, "ranks", "N", "Ranks on this host, instead of --cluster (default: 2, or --stages).",
           into::integer(f.ranks, 1, kMostRanks)),
      flag(kOurs, "stages", "N", "Number of stages; 0 chooses.", into::integer(o.stages, 0, kMostRanks)),
      flag(kOurs, "microbatches", "N",
           "Microbatches of a step (default: one for each rank, at least 4); 0 chooses by time a sample.",
           into::integer(f.microbatches, 0, kMostFileMicrobatches), 'm'),
      flag(kOurs, "jobs", "N",
           "Trainings that the plan is for: it says how many of them are a job array, how many arrays are "
           "in the pipeline at once, and in how many rounds all are trained. The profile says what arrays "
           "cost: `millrace profile --jobs`.",
           into::integer(f.jobs, 1, kMostPlannedJobs), 'j'),
      flag(kOurs, "batch", "SAMPLES",
           "Samples of a step over all ranks, instead of --microbatches: a multiple of the profile's "
           "microbatch.",
           into::integer(f.batch, 1)),
      flag(kOurs, "steps", "N",
           "Steps of the job: from 2 on the plan is chosen by its step in a run of many, where the ends of "
           "zero-bubble schedules overlap; 1: by one step from an empty pipeline.",
           into::integer(f.steps, 1)),
      flag(kOurs, "device", "NAME",
           "Memory of a rank, and without --cluster its links, of a known device: " + device_preset_names() +
               ".",
           into::parsed(f.device, known_device)),
      flag(kOurs, "from-run", "DIR",
           "Plan again from this run: the profile's layers are scaled to the times that its trace measured, "
           "stage by stage.",
           into::text(f.from_run)),
      flag(kOurs, "schedule", "KIND",
           names_of(named_kinds(false)) + ", " + names_of(named_kinds(true)) +
               ", or auto: the best one that flushes.",
           into::parsed(o.schedule, planned_schedule, "auto")),
      flag(kOurs, "chunks", "N",
           "Stages of each rank, for interleaved and zb-h1 (the V schedules have 2); 1: only schedules "
           "with one; 0 chooses.",
           into::integer(o.chunks, 0, 64)),
      flag(kOurs, "effort", "X",
           "Work that the search may take, relative to the usual: 4 looks further, 0.1 is faster. The "
           "plan's last "
           "line says when a search met its limit.",
           into::number(o.effort, 0.01, 1e6)),
      flag(kOurs, "recompute", "WHEN",
           "never, auto (stages that do not fit otherwise) or always compute activations again in the "
           "backward.",
           into::choice(o.recompute, "recompute mode")),
      flag(kOurs, "reduce", "HOW",
           "Charge all-reduces overlapped with the last backward, as the runtime does it, or serial.",
           into::choice(o.costs.reduce, "reduce model")),
      flag(kOurs, "rule", "RULE", rule_help(),
           into::parsed(o.costs.rule_copies, rule_copies, first_rule_with(o.costs.rule_copies))),
      flag(kOurs, "zero-1", "The replicas of a stage share the rule's state (`millrace train --zero-1`).",
           into::on(o.costs.share_rule_state)),
      flag(kOurs, "clip-norm",
           "The run clips by the norm of the gradient (`millrace train --clip-norm`): the norm is "
           "priced, and "
           "that all ranks wait for it before they update.",
           into::on(o.costs.clips_norm)),
      flag(kOurs, "explain",
           "Say what was searched, where the step goes, what came second and why, and what would change it.",
           into::on(f.explain)),
      flag(kOurs, "compare", "A B",
           "Instead of planning: two plan files side by side under this profile and cluster.",
           into::texts(f.compare)),
      flag(kOurs, "emit-conf", "FILE", "Write PipeDream's *_conf.json, one module for each stage.",
           into::text(f.emit_conf)),
      flag(kOurs, "draw", "FILE", "Write the partitioned graph as SVG.", into::svg_file(f.draw)),
      flag(kOurs, "out", "FILE", "Write the plan (JSON) here.", into::text(f.out), 'o'),
      flag(kOurs, "smaller", "N",
           "Plan also for the cluster without 1 to N of its hosts (without --cluster: of its ranks), with as "
           "many microbatches, and write these plans beside --out: plan.minus1.json, ... A job goes on with "
           "them when it has lost hosts (`smaller_plans: auto`).",
           into::integer(f.smaller, 0, kMostRanks)),
      flag(kPipeDreams, "pipedream",
           "Plan a PipeDream graph.txt as PipeDream's planner does, over stages that exist.",
           into::on(f.pipedream)),
      flag(kPipeDreams, "machines", "LIST", "Machines of each level, innermost first, e.g. 8,2.",
           into::integers(f.original.machines, 1, kMostRanks)),
      flag(kPipeDreams, "bandwidth", "LIST", "Bytes/s of each level, innermost first.",
           into::numbers(f.original.bandwidths)),
      flag(kPipeDreams, "use-fewer-machines", "Machines may stay idle.",
           into::on(f.original.use_fewer_machines)),
      flag(kPipeDreams, "activation-compression", "R",
           "Charge activation transfers, divided by R (default: they are free).",
           into::number(f.original.activation_compression, 1e-9, 1e9)),
      flag(kPipeDreams, "as-original",
           "Answer as the original programme does, also where several levels of machines let it take "
           "stages that are none, and time it too low.",
           into::on(f.original.as_original)),
  };
  spec.examples = {
      "millrace plan --profile profile.json --ranks 2 --microbatches 8 --out plan.json",
      "millrace plan --profile profile.json --cluster cluster.yaml --batch 256 --device h100-80g",
      "millrace plan --from-run run --profile profile.json --ranks 2 --out better.json",
      "millrace plan --profile profile.json --cluster cluster.yaml --explain --draw plan.svg",
      "millrace plan --profile profile.json --cluster cluster.yaml --smaller 2 --out plan.json",
      "millrace plan --profile profile.json --ranks 2 --compare plan.json other.json",
      "millrace plan --profile profile.json --ranks 2 --jobs 12 --memory 8GiB --out plan.json",
      "millrace plan --pipedream --profile graph.txt --machines 8,2 --bandwidth 25e9,3.125e9 --format json"};
  spec.interrupted = "nothing was written";
  spec.first = {"profile", "cluster",  "ranks",  "microbatches", "batch",     "memory",
                "device",  "schedule", "stages", "straight",     "recompute", "rule",
                "explain", "compare",  "draw",   "out",          "format"};
  return spec;
}

}  // namespace

CommandSpec plan_spec() {
  return without_targets<PlanFlags>(spec_of);
}

int plan_command(const std::vector<std::string>& args) {
  PlanFlags flags;
  const CommandSpec spec = spec_of(flags);
  return run_command(spec, args, [&](const Arguments& given, Problems problems) {
    append(problems, flags.pipedream ? refused_group(spec, given, kOurs, "does not go with --pipedream",
                                                     "PipeDream's planner takes --machines and --bandwidth")
                                     : refused_group(spec, given, kPipeDreams, "needs --pipedream"));
    flags.rule_given = given.has("rule");
    return flags.pipedream ? plan_for_pipedream(flags, std::move(problems))
                           : plan_for_layers(flags, std::move(problems));
  });
}

}  // namespace millrace
