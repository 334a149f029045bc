#include "driver/simulate_subject.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "driver/command_support.h"
#include "optimizer/cost_model.h"
#include "optimizer/predicted_costs.h"

namespace millrace {
namespace {

void add_all(Problems& to, const Problems& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// One value for every place, or one for each; never below `least`.
std::vector<double> one_or_each(Arguments& arguments, const char* flag, std::size_t count, const char* what,
                                Problems& problems) {
  std::vector<double> values = arguments.numbers(flag);
  if (values.size() == 1) values.resize(count, values.front());
  for (double value : values) {
    if (!(value >= 0) || std::isinf(value))
      problems.push_back({long_name(flag), "a number is below 0 or not finite", ""});
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
std::vector<double> by_stage(Arguments& arguments, const char* flag, std::size_t stages, int chunks,
                             Problems& problems) {
  const bool shared = arguments.numbers(flag).size() == 1;
  std::vector<double> values = one_or_each(arguments, flag, stages, "stages", problems);
  if (shared) {
    for (double& value : values) value /= chunks;
  }
  return values;
}

PipelineShape shape_from_flags(Arguments& arguments, int stages, int chunks, int microbatches,
                               Problems& problems) {
  std::vector<int> replicas;
  for (double r : one_or_each(arguments, "replicas", static_cast<std::size_t>(stages), "stages", problems)) {
    if (r < 1 || r != std::floor(r) || r > static_cast<double>(kMostSimulatedRanks)) {
      problems.push_back({"--replicas", "a stage needs a whole number of ranks, at least 1", ""});
      r = 1;
    }
    replicas.push_back(static_cast<int>(r));
  }
  if (chunks > 1) {
    if (std::ranges::any_of(replicas, [&](int r) { return r != replicas.front(); }))
      problems.push_back({"--replicas", "with chunks every rank holds several stages", "give one number"});
    return interleaved_shape(stages, chunks, microbatches, replicas.front());
  }
  PipelineShape shape{.microbatches = microbatches};
  int rank = 0;
  for (int r : replicas) {
    auto& ranks = shape.ranks_of_stage.emplace_back();
    for (int i = 0; i < r; ++i) ranks.emplace_back(rank++);
  }
  return shape;
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

/// Weights, gradients and one copy of the rule's state, and what a layer keeps: stage_memory's terms.
void read_bytes_of_graph(const Plan& plan, const LayerGraph& graph, SimulationSubject& subject) {
  const ClusterSpec anywhere = ClusterSpec::local(std::max(1, plan.num_ranks()));
  for (const CutStage& stage : CostModel(graph, anywhere).stages_of(plan)) {
    double parameters = 0, saved = 0;
    for (int node : stage.nodes) {
      parameters += static_cast<double>(graph.nodes[static_cast<std::size_t>(node)].parameter_bytes);
      saved += static_cast<double>(graph.nodes[static_cast<std::size_t>(node)].saved_bytes);
    }
    subject.options.weight_bytes.push_back(parameters);
    subject.options.state_bytes.push_back(2 * parameters);
    subject.options.stash_bytes.push_back(saved);
  }
}

Result<SimulationSubject> subject_of(Arguments& arguments, const Plan& plan, const LayerGraph* graph) {
  Problems problems = graph == nullptr ? validate(plan) : validate(plan, *graph);
  if (graph == nullptr && !has_predicted_times(plan)) {
    problems.push_back(
        {arguments.string("plan"), "has no predicted times", "give the profile with --profile"});
  }
  const Result<ClusterSpec> cluster = cluster_of(arguments, std::max(1, plan.num_ranks()));
  if (!cluster) add_all(problems, cluster.problems());
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
  add_all(problems, arguments.problems());
  if (!problems.empty()) return problems;
  if (graph != nullptr) {
    const CostModel model(*graph, *cluster);
    const std::vector<CutStage> stages = model.stages_of(plan);
    subject.shape = model.shape_of(stages, microbatches);
    subject.costs = model.costs_of(stages, subject.shape);
    read_bytes_of_graph(plan, *graph, subject);
  } else {
    subject.shape = shape_of(plan, microbatches);
    subject.costs = predicted_costs(plan, subject.shape, *cluster);
  }
  read_bytes_of_plan(plan, subject);
  read_conditions(arguments, subject, problems);
  add_all(problems, arguments.problems());
  if (!problems.empty()) return problems;
  return subject;
}

}  // namespace

SimulationSubject subject_from_flags(Arguments& arguments, ScheduleKind kind, int stages, int microbatches,
                                     Problems& problems) {
  SimulationSubject subject;
  subject.kind = kind;
  const int chunks = static_cast<int>(arguments.integer("chunks", 1, 1024));
  subject.shape = shape_from_flags(arguments, stages, chunks, microbatches, problems);
  const auto num_stages = static_cast<std::size_t>(subject.shape.num_stages());
  const std::size_t links = subject.shape.all_links().size();
  const auto stage_values = [&](const char* flag) {
    return by_stage(arguments, flag, num_stages, chunks, problems);
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
    plan->versions = *kind == ScheduleKind::PipeDream ? VersionPolicy::Stash : VersionPolicy::Flush;
  }
  std::optional<LayerGraph> graph;
  if (arguments.has("profile")) {
    Result<LayerGraph> loaded = LayerGraph::load(arguments.string("profile"));
    if (!loaded) {
      code = static_cast<int>(ExitCode::InputData);
      return loaded.problems();
    }
    graph = std::move(*loaded);
  }
  return subject_of(arguments, *plan, graph ? &*graph : nullptr);
}

std::vector<const char*> shape_flags() {
  return {"stages",          "replicas",    "chunks",       "forward",  "backward", "backward-input",
          "backward-weight", "reduce",      "update",       "transfer", "latency",  "activation-bytes",
          "bandwidth",       "stash-bytes", "weight-bytes", "sweep"};
}

std::vector<Flag> simulation_subject_flags() {
  const char* const shape = "Shape and costs";
  const char* const conditions = "Conditions";
  const char* const plan = "A plan";
  return {
      {.name = "stages",
       .value = "N",
       .help = "Number of stages (places, with --chunks).",
       .fallback = "4",
       .group = shape},
      {.name = "replicas",
       .value = "LIST",
       .help = "Ranks of each stage, e.g. 2,1.",
       .fallback = "1",
       .group = shape},
      {.name = "chunks",
       .value = "V",
       .help = "Stages that each rank holds.",
       .fallback = "1",
       .group = shape},
      {.name = "forward",
       .value = "LIST",
       .help = "Seconds of a forward: of a rank's layers (its chunks share it), or one for each stage.",
       .fallback = "1",
       .group = shape},
      {.name = "backward",
       .value = "LIST",
       .help = "Seconds of a backward, likewise: half input, half weight gradient.",
       .fallback = "2",
       .group = shape},
      {.name = "backward-input",
       .value = "LIST",
       .help = "Seconds of the input gradient.",
       .fallback = "1",
       .group = shape},
      {.name = "backward-weight",
       .value = "LIST",
       .help = "Seconds of the weight gradient.",
       .fallback = "1",
       .group = shape},
      {.name = "reduce",
       .value = "LIST",
       .help = "Seconds of a replicated stage's all-reduce.",
       .fallback = "0",
       .group = shape},
      {.name = "update", .value = "LIST", .help = "Seconds of the update.", .fallback = "0", .group = shape},
      {.name = "transfer",
       .value = "LIST",
       .help = "Seconds that a message occupies its wire: one value, or one for each link.",
       .fallback = "0",
       .group = shape},
      {.name = "activation-bytes", .value = "LIST", .help = "Bytes of a message, one way.", .group = shape},
      {.name = "bandwidth",
       .value = "LIST",
       .help = "Bytes/s: adds activation-bytes / bandwidth to --transfer.",
       .group = shape},
      {.name = "latency",
       .value = "LIST",
       .help = "Seconds from leaving a wire to arriving.",
       .group = shape},
      {.name = "stash-bytes",
       .value = "LIST",
       .help = "Bytes kept for a microbatch until its backward.",
       .group = shape},
      {.name = "weight-bytes",
       .value = "LIST",
       .help = "Bytes of one version of the weights.",
       .group = shape},
      {.name = "sends",
       .value = "MODE",
       .help = "overlap: beside the computation; block: the sender waits until the message has left; "
               "rendezvous: both ends wait for each other.",
       .fallback = "overlap",
       .group = conditions},
      {.name = "ranks-per-host",
       .value = "N",
       .help = "N ranks share a port for each direction to other hosts; 0: every pair has its own wire.",
       .fallback = "0",
       .group = conditions},
      {.name = "reduce-buckets",
       .value = "N",
       .help = "Buckets of a gradient, reduced during the last backward; 1: after it.",
       .fallback = "1",
       .group = conditions},
      {.name = "jitter",
       .value = "SIGMA",
       .help = "Log-normal noise (mean 1) on each computation and transfer.",
       .fallback = "0",
       .group = conditions},
      {.name = "seed", .value = "N", .help = "Seed of the noise.", .fallback = "0", .group = conditions},
      {.name = "straggler",
       .value = "RANK:FACTOR",
       .help = "This rank computes FACTOR times as long. May be repeated.",
       .group = conditions,
       .repeatable = true},
      {.name = "plan", .value = "FILE", .help = "plan.json to simulate.", .group = plan},
      {.name = "profile",
       .value = "FILE",
       .help = "profile.json for costs and memory (default: the plan's predictions).",
       .group = plan},
      {.name = "cluster",
       .value = "FILE",
       .help = "cluster.yaml for the links (default: this host).",
       .group = plan},
  };
}

}  // namespace millrace
