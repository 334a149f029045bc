#include "driver/simulate/simulate_subject.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "driver/cli/command_support.h"
#include "driver/flags/compute_specs.h"
#include "driver/flags/planning_files.h"
#include "optimizer/cost/cost_model.h"
#include "optimizer/cost/predicted_costs.h"
#include "runtime/base/files.h"
#include "runtime/schedule/csv.h"

namespace millrace {
namespace {

constexpr double kMostValue = 1e15;  // seconds, bytes, bytes/s

/// One value for every place, or one for each.
template <class T>
std::vector<T> one_or_each(std::vector<T> values, const char* flag, std::size_t count, const char* what,
                           Problems& problems) {
  if (values.size() == 1) values.resize(count, values.front());
  if (values.size() != count) {
    problems.push_back({flag,
                        std::to_string(values.size()) + " values for " + std::to_string(count) + " " + what,
                        std::string("give one value, or one for each of the ") + what});
    values.resize(count, 0);
  }
  return values;
}

/// Does the same for values from 0 to kMostValue.
std::vector<double> costs_of(const std::vector<double>& given, const char* flag, std::size_t count,
                             const char* what, Problems& problems) {
  for (double value : given) {
    if (!(value >= 0) || value > kMostValue)
      problems.push_back({flag, "a number is below 0 or above 1e15", ""});
  }
  return one_or_each(given, flag, count, what, problems);
}

/// Empty stays empty: the simulator takes that as 0.
std::vector<double> by_link(const std::vector<double>& given, const char* flag, std::size_t links,
                            Problems& problems) {
  if (given.empty() || links == 0) return {};
  return costs_of(given, flag, links, "links", problems);
}

/// One value is that of a rank's layers: its chunks share it. A list has one value for each stage.
std::vector<double> by_stage(const std::vector<double>& given, const char* flag, const PipelineShape& shape,
                             Problems& problems) {
  std::vector<double> values =
      costs_of(given, flag, static_cast<std::size_t>(shape.num_stages()), "stages", problems);
  if (given.size() != 1) return values;
  const auto stages = shape.stages_of_ranks();
  for (std::size_t s = 0; s < values.size(); ++s)
    values[s] /= static_cast<double>(stages[shape.ranks_of_stage[s].front().value].size());
  return values;
}

/// Stages on each rank: what the kind has, or --chunks where it takes any number.
int chunks_of(const SimulateFlags& flags, ScheduleKind kind, Problems& problems) {
  const int given = flags.chunks.value_or(0);
  const auto takes = [&](int chunks) {
    if (given > 0 && given != chunks && !flags.sweep)
      problems.push_back({"--chunks",
                          to_string(kind) + " has " + std::to_string(chunks) +
                              (chunks == 1 ? " stage" : " stages") + " on each rank",
                          chunks == 1
                              ? "for several: " + names_of(schedule_kinds([](const ScheduleTraits& row) {
                                  return has_flag(row) && allows_chunks(row.kind) && !is_v_shaped(row.kind);
                                }))
                              : "leave it out"});
    return chunks;
  };
  if (is_v_shaped(kind) || !allows_chunks(kind)) return takes(default_chunks(kind));
  return given > 0 ? given : default_chunks(kind);
}

PipelineShape shape_from_flags(const SimulateFlags& flags, ScheduleKind kind, int stages, int microbatches,
                               Problems& problems) {
  const std::vector<int> replicas =
      one_or_each(flags.replicas, "--replicas", static_cast<std::size_t>(stages), "stages", problems);
  const int chunks = chunks_of(flags, kind, problems);
  const bool along_v = kind == ScheduleKind::AutoOrder && flags.placement == Placement::V;
  if (along_v && chunks != 2)
    problems.push_back({"--placement", "a V has two stages on each rank", "give --chunks 2"});
  if (chunks > 1) {
    if (std::ranges::any_of(replicas, [&](int r) { return r != replicas.front(); }))
      problems.push_back({"--replicas", "with chunks every rank holds several stages", "give one number"});
    if (is_v_shaped(kind) || along_v) return v_shape(stages, microbatches, replicas.front());
    return interleaved_shape(stages, chunks, microbatches, replicas.front());
  }
  PipelineShape shape{.microbatches = microbatches};
  if (updates_after_several(kind) && flags.update_every) shape.update_every = *flags.update_every;
  int rank = 0;
  for (int r : replicas) {
    auto& ranks = shape.ranks_of_stage.emplace_back();
    for (int i = 0; i < r; ++i) ranks.emplace_back(rank++);
  }
  return shape;
}

/// --stash-limit: microbatches of a rank's layers -> (stage, microbatch) pairs.
void read_stash_limit(const SimulateFlags& flags, SimulationSubject& subject, Problems& problems) {
  if (flags.stash_limit.empty()) return;
  if (subject.kind != ScheduleKind::AutoOrder) {
    if (!flags.sweep)
      problems.push_back({"--stash-limit", "is for auto-order", "the other schedules hold what they hold"});
    return;
  }
  const auto stages = subject.shape.stages_of_ranks();
  const std::vector<double> limits =
      costs_of(flags.stash_limit, "--stash-limit", stages.size(), "ranks", problems);
  for (std::size_t r = 0; r < stages.size(); ++r)
    subject.stash_cap.push_back(
        static_cast<int>(std::min(limits[r] * static_cast<double>(stages[r].size()), 1e9)));
}

void read_stragglers(const std::string& text, std::vector<double>& slowdown, Problems& problems) {
  const Result<std::vector<Straggler>> stragglers = stragglers_from(text);
  if (!stragglers) {
    const Problem& problem = stragglers.problems().front();
    problems.push_back({"--straggler", problem.what, problem.hint});
    return;
  }
  for (const Straggler& straggler : *stragglers) {
    if (const Status known = check(straggler, static_cast<int>(slowdown.size())); known)
      slowdown[static_cast<std::size_t>(straggler.rank)] = straggler.factor;
    else
      append(problems, known.problems());
  }
}

/// The flags that plans and shapes share.
void read_conditions(const SimulateFlags& flags, SimulationSubject& subject, Problems& problems) {
  read_stash_limit(flags, subject, problems);
  SimulationOptions& options = subject.options;
  const auto ranks = static_cast<std::size_t>(subject.shape.num_ranks());
  options.jitter = flags.options.jitter;
  options.seed = flags.options.seed;
  options.reduce_buckets = flags.options.reduce_buckets;
  if (!flags.stragglers.empty()) options.slowdown.assign(ranks, 1);
  for (const std::string& text : flags.stragglers) read_stragglers(text, options.slowdown, problems);
  const auto per_host = static_cast<std::size_t>(flags.ranks_per_host);
  if (per_host > 0) options.host.clear();  // of the cluster
  for (std::size_t r = 0; per_host > 0 && r < ranks; ++r)
    options.host.push_back(static_cast<int>(r / per_host));
  if (flags.sends == Sending::Block) options.sends = SendMode::Block;
  if (flags.sends == Sending::Rendezvous) options.transport = Transport::Rendezvous;
}

void read_bytes_of_plan(const Plan& plan, SimulationSubject& subject) {
  for (const StageLink& link : subject.shape.all_links()) {
    double bytes = 0;
    for (const PlanCrossing& crossing : plan.crossings) {
      if (crossing.from == link.from && crossing.to == link.to) bytes = static_cast<double>(crossing.bytes);
    }
    subject.options.bytes.push_back(bytes);
  }
}

/// The step's list once for each turn of a model that is trained in turns.
Problems run_in_turns(std::vector<ScheduleCosts> turns, SimulationSubject& subject) {
  if (subject.options.transport == Transport::Rendezvous)
    return {
        {"--sends", "rendezvous is not simulated of a model that is trained in turns", "overlap or block"}};
  Result<Schedule> schedule =
      subject.schedule ? std::move(*subject.schedule) : make_schedule(subject.kind, subject.shape);
  if (!schedule) return schedule.problems();
  subject.notes.push_back("trained in " + std::to_string(turns.size()) + " turns: the microbatches pass " +
                          std::to_string(turns.size()) + " times");
  subject.schedule = in_turns(*schedule, subject.shape, subject.options, std::move(turns));
  return {};
}

/// `shape` is one array's.
PipelineShape with_arrays(PipelineShape shape, int arrays) {
  shape.arrays = arrays;
  shape.microbatches *= arrays;
  return shape;
}

Result<SimulationSubject> subject_of(const SimulateFlags& flags, const Arguments& given, const Plan& plan,
                                     const LayerGraph* graph) {
  Problems problems = about_file(*flags.plan, graph == nullptr ? validate(plan) : validate(plan, *graph));
  if (graph == nullptr && !has_predicted_times(plan)) {
    problems.push_back({*flags.plan, "has no predicted times", "give the profile with --profile"});
  }
  const Result<ClusterSpec> cluster = cluster_of(flags.cluster, std::max(1, plan.num_ranks()));
  if (!cluster) append(problems, cluster.problems());
  if (cluster && cluster->num_ranks() < plan.num_ranks()) {
    problems.push_back({"--cluster",
                        "has " + std::to_string(cluster->num_ranks()) + " ranks, the plan needs " +
                            std::to_string(plan.num_ranks()),
                        ""});
  }
  SimulationSubject subject;
  subject.kind = plan.schedule;
  int microbatches = plan.microbatches;
  if (given.has("microbatches"))
    microbatches = only(flags.microbatches, "--microbatches", "give one number", problems);
  CostOptions options;
  if (cluster && graph != nullptr) {
    Result<std::map<std::string, LayerGraph>> of_kinds = load_kind_profiles(*cluster);
    if (!of_kinds) return of_kinds.problems();
    options.profiles = *std::move(of_kinds);
    append(problems, check_kind_profiles(*graph, *cluster, options.profiles));
  }
  if (!problems.empty()) return problems;
  std::vector<ScheduleCosts> turns;
  if (graph != nullptr) {
    CostModel model(*graph, *cluster, std::move(options));
    const std::vector<CutStage> stages = model.stages_of(plan);
    subject.shape = with_arrays(model.shape_of(stages, microbatches), plan.arrays);
    subject.costs = model.costs_of(stages, subject.shape, plan.schedule);
    turns = model.turn_costs(stages, subject.shape, plan.schedule);
    for (const StageMemory& memory : model.memory_of(stages, plan.microbatches)) {
      if (!turns.empty()) break;  // weights are those of all turns
      subject.options.stage_bytes.push_back(memory.bytes());
    }
  } else {
    subject.shape = with_arrays(shape_of(plan, microbatches), plan.arrays);
    subject.costs = predicted_costs(plan, subject.shape, *cluster);
  }
  if (flags.ranks_per_host > 0) {  // hosts for which the all-reduces were not priced
    subject.costs.reduce_ports.clear();
    for (ScheduleCosts& turn : turns) turn.reduce_ports.clear();
  }
  read_bytes_of_plan(plan, subject);
  subject.options.host = ports_of(*cluster);
  subject.options.wire = [cluster = *cluster](int from, int to) {
    return wire_between(cluster, RankId(from), RankId(to));
  };
  read_conditions(flags, subject, problems);
  if (!problems.empty()) return problems;
  // Training orders the actions by the plan's own times where it has them.
  if (plan.schedule == ScheduleKind::AutoOrder && subject.stash_cap.empty() && has_predicted_times(plan)) {
    Result<Schedule> named = schedule_of(plan, subject.shape, Transport::Buffered);
    if (!named) return named.problems();
    subject.schedule = *std::move(named);
  }
  if (!turns.empty()) problems = run_in_turns(std::move(turns), subject);
  if (!problems.empty()) return problems;
  return subject;
}

/// Seconds and bytes from flags, for a shape that is known.
void read_costs(const SimulateFlags& flags, const Arguments& given, SimulationSubject& subject,
                Problems& problems) {
  const std::size_t links = subject.shape.all_links().size();
  const auto by_stages = [&](const std::vector<double>& values, const char* flag) {
    return by_stage(values, flag, subject.shape, problems);
  };
  ScheduleCosts& costs = subject.costs;
  costs.forward = by_stages(flags.costs.forward, "--forward");
  const bool split = given.has("backward-input") || given.has("backward-weight");
  if (split && given.has("backward"))
    problems.push_back({"--backward", "is the sum of --backward-input and --backward-weight", "give either"});
  if (split) {
    for (const char* flag : {"backward-input", "backward-weight"}) {
      if (!given.has(flag)) problems.push_back({long_name(flag), "is missing", "the other half is given"});
    }
    costs.backward_input = by_stages(flags.costs.backward_input, "--backward-input");
    costs.backward_weight = by_stages(flags.costs.backward_weight, "--backward-weight");
  } else {
    costs.backward_input = by_stages(flags.backward, "--backward");
    for (double& value : costs.backward_input) value /= 2;
    costs.backward_weight = costs.backward_input;
  }
  costs.reduce = by_stages(flags.costs.reduce, "--reduce");
  costs.update = by_stages(flags.costs.update, "--update");
  costs.transfer = std::vector<double>(links, 0);
  if (links > 0) costs.transfer = costs_of(flags.costs.transfer, "--transfer", links, "links", problems);
  SimulationOptions& options = subject.options;
  options.latency = by_link(flags.options.latency, "--latency", links, problems);
  options.bytes = by_link(flags.options.bytes, "--activation-bytes", links, problems);
  options.bandwidth = by_link(flags.options.bandwidth, "--bandwidth", links, problems);
  if (!options.bandwidth.empty() && options.bytes.empty() && links > 0)
    problems.push_back({"--bandwidth", "says nothing without a size", "give --activation-bytes"});
  for (const auto& [values, name, bytes] :
       {std::tuple{&flags.stash_bytes, "--stash-bytes", &StageBytes::stash},
        std::tuple{&flags.stash_bytes, "--stash-bytes", &StageBytes::half_done},
        std::tuple{&flags.weight_bytes, "--weight-bytes", &StageBytes::weights}}) {
    if (values->empty()) continue;
    options.stage_bytes.resize(static_cast<std::size_t>(subject.shape.num_stages()));
    const std::vector<double> of_stage = by_stages(*values, name);
    for (std::size_t s = 0; s < std::min(of_stage.size(), options.stage_bytes.size()); ++s)
      options.stage_bytes[s].*bytes = of_stage[s];
  }
  read_conditions(flags, subject, problems);
}

/// --schedule-file: PyTorch's CSV. With `shape`: of a plan.
Result<CsvSchedule> read_schedule_file(const std::string& path, int replicas, const PipelineShape* shape) {
  const Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  return read_schedule_csv(*text, path, {.replicas = replicas, .shape = shape});
}

}  // namespace

SimulationSubject subject_from_flags(const SimulateFlags& flags, const Arguments& given, ScheduleKind kind,
                                     int stages, int microbatches, Problems& problems) {
  SimulationSubject subject;
  subject.kind = kind;
  subject.shape = with_arrays(shape_from_flags(flags, kind, stages, microbatches, problems), flags.arrays);
  read_costs(flags, given, subject, problems);
  return subject;
}

Result<SimulationSubject> subject_from_file(const SimulateFlags& flags, const Arguments& given, int& code) {
  code = static_cast<int>(ExitCode::Usage);
  Problems problems;
  for (const char* flag : {"stages", "microbatches", "chunks", "schedule", "placement", "update-every",
                           "stash-limit", "sweep", "arrays"}) {
    if (given.has(flag)) problems.push_back({long_name(flag), "the schedule file says it", "leave it out"});
  }
  const int replicas =
      only(flags.replicas, "--replicas", "of a schedule file all stages have as many", problems);
  if (!problems.empty()) return problems;
  Result<CsvSchedule> read = read_schedule_file(*flags.schedule_file, replicas, nullptr);
  if (!read) {
    code = static_cast<int>(ExitCode::InputData);
    return read.problems();
  }
  SimulationSubject subject;
  subject.kind = ScheduleKind::Custom;
  subject.shape = std::move(read->shape);
  subject.schedule = std::move(read->schedule);
  subject.notes = std::move(read->notes);
  read_costs(flags, given, subject, problems);
  if (!problems.empty()) return problems;
  return subject;
}

Result<SimulationSubject> subject_from_plan(const SimulateFlags& flags, const Arguments& given, int& code) {
  code = static_cast<int>(ExitCode::Usage);
  Result<Plan> plan = Plan::load(*flags.plan);
  if (!plan) return plan.problems();
  if (given.has("schedule")) {
    Problems problems;
    plan->schedule = only(flags.schedules, "--schedule", "give one", problems);
    if (!problems.empty()) return problems;
  }
  std::optional<LayerGraph> graph;
  if (flags.profile) {
    Result<LayerGraph> loaded = load_profile(*flags.profile);
    if (!loaded) {
      code = static_cast<int>(ExitCode::InputData);
      return loaded.problems();
    }
    graph = std::move(*loaded);
  }
  if (flags.schedule_file) plan->schedule = ScheduleKind::Custom;
  Result<SimulationSubject> subject = subject_of(flags, given, *plan, graph ? &*graph : nullptr);
  if (subject) subject->spread = graph ? graph->measured.spread : plan->predicted_spread;
  if (!subject || !flags.schedule_file) return subject;
  Result<CsvSchedule> read = read_schedule_file(*flags.schedule_file, 1, &subject->shape);
  if (!read) {
    code = static_cast<int>(ExitCode::InputData);
    return read.problems();
  }
  subject->schedule = std::move(read->schedule);
  subject->notes = std::move(read->notes);
  return subject;
}

}  // namespace millrace
