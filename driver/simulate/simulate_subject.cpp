#include "driver/simulate/simulate_subject.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "driver/cli/command_support.h"
#include "optimizer/cost_model.h"
#include "optimizer/predicted_costs.h"
#include "runtime/base/files.h"
#include "runtime/schedule/csv.h"

namespace millrace {
namespace {

constexpr double kMostValue = 1e15;  // seconds, bytes, bytes/s

/// One value for every place, or one for each; from 0 to kMostValue.
std::vector<double> one_or_each(Arguments& arguments, const char* flag, std::size_t count, const char* what,
                                Problems& problems) {
  std::vector<double> values = arguments.numbers(flag);
  if (values.size() == 1) values.resize(count, values.front());
  for (double value : values) {
    if (!(value >= 0) || value > kMostValue)
      problems.push_back({long_name(flag), "a number is below 0 or above 1e15", ""});
  }
  if (values.size() != count) {
    problems.push_back({long_name(flag),
                        std::to_string(values.size()) + " values for " + std::to_string(count) + " " + what,
                        std::string("give one value, or one for each of the ") + what});
    values.resize(count, 0);
  }
  return values;
}

/// Empty if the flag is absent: the simulator takes that as 0.
std::vector<double> by_link(Arguments& arguments, const char* flag, std::size_t links, Problems& problems) {
  if (!arguments.has(flag) || links == 0) return {};
  return one_or_each(arguments, flag, links, "links", problems);
}

/// One value is that of a rank's layers: its chunks share it. A list has one value for each stage.
std::vector<double> by_stage(Arguments& arguments, const char* flag, const PipelineShape& shape,
                             Problems& problems) {
  const bool shared = arguments.numbers(flag).size() == 1;
  std::vector<double> values =
      one_or_each(arguments, flag, static_cast<std::size_t>(shape.num_stages()), "stages", problems);
  if (!shared) return values;
  const auto stages = shape.stages_of_ranks();
  for (std::size_t s = 0; s < values.size(); ++s)
    values[s] /=
        static_cast<double>(stages[static_cast<std::size_t>(shape.ranks_of_stage[s].front().value)].size());
  return values;
}

/// Stages on each rank: what the kind has, or --chunks where it takes any number.
int chunks_of(Arguments& arguments, ScheduleKind kind, Problems& problems) {
  const int given = arguments.has("chunks") ? static_cast<int>(arguments.integer("chunks", 1, 1024)) : 0;
  const auto takes = [&](int chunks) {
    if (given > 0 && given != chunks && !arguments.boolean("sweep"))
      problems.push_back({"--chunks",
                          to_string(kind) + " has " + std::to_string(chunks) +
                              (chunks == 1 ? " stage" : " stages") + " on each rank",
                          chunks == 1 ? "for several: interleaved, zb-h1, auto-order" : "leave it out"});
    return chunks;
  };
  if (is_v_shaped(kind)) return takes(2);
  if (kind == ScheduleKind::Interleaved) return given > 0 ? given : 2;
  if (allows_chunks(kind)) return std::max(1, given);
  return takes(1);
}

PipelineShape shape_from_flags(Arguments& arguments, ScheduleKind kind, int stages, int microbatches,
                               Problems& problems) {
  std::vector<int> replicas;
  for (double r : one_or_each(arguments, "replicas", static_cast<std::size_t>(stages), "stages", problems)) {
    if (r < 1 || r != std::floor(r) || r > static_cast<double>(kMostSimulatedRanks)) {
      problems.push_back({"--replicas", "a stage needs a whole number of ranks, at least 1", ""});
      r = 1;
    }
    replicas.push_back(static_cast<int>(r));
  }
  const int chunks = chunks_of(arguments, kind, problems);
  const std::string placement = arguments.string("placement");
  if (placement != "loop" && placement != "v")
    problems.push_back({"--placement", "'" + placement + "' is unknown", "loop or v"});
  const bool along_v = kind == ScheduleKind::AutoOrder && placement == "v";
  if (along_v && chunks != 2)
    problems.push_back({"--placement", "a V has two stages on each rank", "give --chunks 2"});
  if (chunks > 1) {
    if (std::ranges::any_of(replicas, [&](int r) { return r != replicas.front(); }))
      problems.push_back({"--replicas", "with chunks every rank holds several stages", "give one number"});
    if (is_v_shaped(kind) || along_v) return v_shape(stages, microbatches, replicas.front());
    return interleaved_shape(stages, chunks, microbatches, replicas.front());
  }
  PipelineShape shape{.microbatches = microbatches};
  if (kind == ScheduleKind::PipeDream2BW && arguments.has("update-every"))
    shape.update_every = static_cast<int>(arguments.integer("update-every", 1, kMostSimulatedMicrobatches));
  int rank = 0;
  for (int r : replicas) {
    auto& ranks = shape.ranks_of_stage.emplace_back();
    for (int i = 0; i < r; ++i) ranks.emplace_back(rank++);
  }
  return shape;
}

/// --stash-limit: microbatches of a rank's layers -> (stage, microbatch) pairs.
void read_stash_limit(Arguments& arguments, SimulationSubject& subject, Problems& problems) {
  if (!arguments.has("stash-limit")) return;
  if (subject.kind != ScheduleKind::AutoOrder) {
    if (!arguments.boolean("sweep"))
      problems.push_back({"--stash-limit", "is for auto-order", "the other schedules hold what they hold"});
    return;
  }
  const auto stages = subject.shape.stages_of_ranks();
  const std::vector<double> limits = one_or_each(arguments, "stash-limit", stages.size(), "ranks", problems);
  for (std::size_t r = 0; r < stages.size(); ++r)
    subject.stash_cap.push_back(
        static_cast<int>(std::min(limits[r] * static_cast<double>(stages[r].size()), 1e9)));
}

/// RANK:FACTOR.
void read_straggler(const std::string& text, std::vector<double>& slowdown, Problems& problems) {
  const std::size_t colon = text.find(':');
  int rank = -1;
  double factor = 0;
  const char* const end = text.data() + text.size();
  const bool readable = colon != std::string::npos &&
                        std::from_chars(text.data(), text.data() + colon, rank).ptr == text.data() + colon &&
                        std::from_chars(text.data() + colon + 1, end, factor).ptr == end &&
                        std::isfinite(factor) && factor > 0;
  if (!readable) {
    problems.push_back({"--straggler", "'" + text + "' is not RANK:FACTOR", "for example 3:1.5"});
  } else if (rank < 0 || rank >= static_cast<int>(slowdown.size())) {
    problems.push_back({"--straggler", "there is no rank " + std::to_string(rank),
                        "ranks are 0 to " + std::to_string(slowdown.size() - 1)});
  } else {
    slowdown[static_cast<std::size_t>(rank)] = factor;
  }
}

/// The flags that plans and shapes share.
void read_conditions(Arguments& arguments, SimulationSubject& subject, Problems& problems) {
  read_stash_limit(arguments, subject, problems);
  SimulationOptions& options = subject.options;
  const auto ranks = static_cast<std::size_t>(subject.shape.num_ranks());
  options.jitter = arguments.number("jitter", 0, 10);
  options.seed = static_cast<std::uint64_t>(arguments.integer("seed", 0, INT64_MAX));
  options.reduce_buckets = static_cast<int>(arguments.integer("reduce-buckets", 1, 1 << 20));
  if (arguments.has("straggler")) {
    options.slowdown.assign(ranks, 1);
    for (const std::string& text : arguments.strings("straggler"))
      read_straggler(text, options.slowdown, problems);
  }
  const auto per_host = static_cast<std::size_t>(arguments.integer("ranks-per-host", 0, kMostSimulatedRanks));
  if (per_host > 0) options.host.clear();  // of the cluster
  for (std::size_t r = 0; per_host > 0 && r < ranks; ++r)
    options.host.push_back(static_cast<int>(r / per_host));
  const std::string sends = arguments.string("sends");
  if (sends == "block") {
    options.sends = SendMode::Block;
  } else if (sends == "rendezvous") {
    options.transport = Transport::Rendezvous;
  } else if (sends != "overlap") {
    problems.push_back({"--sends", "'" + sends + "' is unknown", "overlap, block or rendezvous"});
  }
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

/// `shape` is one array's.
PipelineShape with_arrays(PipelineShape shape, int arrays) {
  shape.arrays = arrays;
  shape.microbatches *= arrays;
  return shape;
}

Result<SimulationSubject> subject_of(Arguments& arguments, const Plan& plan, const LayerGraph* graph) {
  Problems problems =
      about_file(arguments.string("plan"), graph == nullptr ? validate(plan) : validate(plan, *graph));
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
  SimulationSubject subject;
  subject.kind = plan.schedule;
  int microbatches = plan.microbatches;
  if (arguments.has("microbatches"))
    microbatches = static_cast<int>(arguments.integer("microbatches", 1, kMostSimulatedMicrobatches));
  append(problems, arguments.problems());
  if (!problems.empty()) return problems;
  if (graph != nullptr) {
    const CostModel model(*graph, *cluster);
    const std::vector<CutStage> stages = model.stages_of(plan);
    subject.shape = with_arrays(model.shape_of(stages, microbatches), plan.arrays);
    subject.costs = model.costs_of(stages, subject.shape, plan.schedule);
    for (const StageMemory& memory : model.memory_of(stages)) {
      subject.options.weight_bytes.push_back(static_cast<double>(memory.parameters + memory.lowered));
      subject.options.state_bytes.push_back(static_cast<double>(memory.once()));
      subject.options.stash_bytes.push_back(static_cast<double>(memory.stash()));
    }
  } else {
    subject.shape = with_arrays(shape_of(plan, microbatches), plan.arrays);
    subject.costs = predicted_costs(plan, subject.shape, *cluster);
  }
  read_bytes_of_plan(plan, subject);
  subject.options.host = ports_of(*cluster);
  read_conditions(arguments, subject, problems);
  append(problems, arguments.problems());
  if (!problems.empty()) return problems;
  // What training runs: ordered by the plan's own times where it has them.
  if (plan.schedule == ScheduleKind::AutoOrder && subject.stash_cap.empty() && has_predicted_times(plan)) {
    Result<Schedule> named = schedule_of(plan, subject.shape, Transport::Buffered);
    if (!named) return named.problems();
    subject.schedule = *std::move(named);
  }
  return subject;
}

/// Seconds and bytes from flags, for a shape that is known.
void read_costs(Arguments& arguments, SimulationSubject& subject, Problems& problems) {
  const std::size_t links = subject.shape.all_links().size();
  const auto stage_values = [&](const char* flag) {
    return by_stage(arguments, flag, subject.shape, problems);
  };
  subject.costs.forward = stage_values("forward");
  const bool split = arguments.has("backward-input") || arguments.has("backward-weight");
  if (split && arguments.has("backward"))
    problems.push_back({"--backward", "is the sum of --backward-input and --backward-weight", "give either"});
  if (split) {
    for (const char* flag : {"backward-input", "backward-weight"}) {
      if (!arguments.has(flag))
        problems.push_back({long_name(flag), "is missing", "the other half is given"});
    }
    subject.costs.backward_input = stage_values("backward-input");
    subject.costs.backward_weight = stage_values("backward-weight");
  } else {
    subject.costs.backward_input = stage_values("backward");
    for (double& value : subject.costs.backward_input) value /= 2;
    subject.costs.backward_weight = subject.costs.backward_input;
  }
  subject.costs.reduce = stage_values("reduce");
  subject.costs.update = stage_values("update");
  subject.costs.transfer = std::vector<double>(links, 0);
  if (links > 0) subject.costs.transfer = one_or_each(arguments, "transfer", links, "links", problems);
  SimulationOptions& options = subject.options;
  options.latency = by_link(arguments, "latency", links, problems);
  options.bytes = by_link(arguments, "activation-bytes", links, problems);
  options.bandwidth = by_link(arguments, "bandwidth", links, problems);
  if (!options.bandwidth.empty() && options.bytes.empty() && links > 0)
    problems.push_back({"--bandwidth", "says nothing without a size", "give --activation-bytes"});
  if (arguments.has("stash-bytes")) options.stash_bytes = stage_values("stash-bytes");
  if (arguments.has("weight-bytes")) options.weight_bytes = stage_values("weight-bytes");
  read_conditions(arguments, subject, problems);
}

/// --schedule-file: PyTorch's CSV. With `shape`: of a plan.
Result<CsvSchedule> read_schedule_file(const std::string& path, int replicas, const PipelineShape* shape) {
  const Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  return read_schedule_csv(*text, path, {.replicas = replicas, .shape = shape});
}

}  // namespace

SimulationSubject subject_from_flags(Arguments& arguments, ScheduleKind kind, int stages, int microbatches,
                                     Problems& problems) {
  SimulationSubject subject;
  subject.kind = kind;
  subject.shape = shape_from_flags(arguments, kind, stages, microbatches, problems);
  subject.shape = with_arrays(std::move(subject.shape),
                              static_cast<int>(arguments.integer("arrays", 1, kMostSimulatedArrays)));
  read_costs(arguments, subject, problems);
  return subject;
}

Result<SimulationSubject> subject_from_file(Arguments& arguments, int& code) {
  code = static_cast<int>(ExitCode::Usage);
  Problems problems;
  for (const char* flag : {"stages", "microbatches", "chunks", "schedule", "placement", "update-every",
                           "stash-limit", "sweep", "arrays"}) {
    if (arguments.has(flag))
      problems.push_back({long_name(flag), "the schedule file says it", "leave it out"});
  }
  const int replicas = static_cast<int>(arguments.integer("replicas", 1, kMostSimulatedRanks));
  append(problems, arguments.problems());
  if (!problems.empty()) return problems;
  Result<CsvSchedule> read = read_schedule_file(arguments.string("schedule-file"), replicas, nullptr);
  if (!read) {
    code = static_cast<int>(ExitCode::InputData);
    return read.problems();
  }
  SimulationSubject subject;
  subject.kind = ScheduleKind::Custom;
  subject.shape = std::move(read->shape);
  subject.schedule = std::move(read->schedule);
  subject.notes = std::move(read->notes);
  read_costs(arguments, subject, problems);
  append(problems, arguments.problems());
  if (!problems.empty()) return problems;
  return subject;
}

Result<SimulationSubject> subject_from_plan(Arguments& arguments, int& code) {
  code = static_cast<int>(ExitCode::Usage);
  Result<Plan> plan = Plan::load(arguments.string("plan"));
  if (!plan) return plan.problems();
  if (arguments.has("schedule")) {
    const Result<ScheduleKind> kind = parse_schedule_kind(arguments.string("schedule"), "--schedule");
    if (!kind) return kind.problems();
    plan->schedule = *kind;
  }
  std::optional<LayerGraph> graph;
  if (arguments.has("profile")) {
    Result<LayerGraph> loaded = load_profile(arguments.string("profile"));
    if (!loaded) {
      code = static_cast<int>(ExitCode::InputData);
      return loaded.problems();
    }
    graph = std::move(*loaded);
  }
  if (arguments.has("schedule-file")) {
    plan->schedule = ScheduleKind::Custom;
  }
  Result<SimulationSubject> subject = subject_of(arguments, *plan, graph ? &*graph : nullptr);
  if (!subject || !arguments.has("schedule-file")) return subject;
  Result<CsvSchedule> read = read_schedule_file(arguments.string("schedule-file"), 1, &subject->shape);
  if (!read) {
    code = static_cast<int>(ExitCode::InputData);
    return read.problems();
  }
  subject->schedule = std::move(read->schedule);
  subject->notes = std::move(read->notes);
  return subject;
}

}  // namespace millrace
