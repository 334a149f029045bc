#include "driver/plan_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "driver/command_support.h"
#include "optimizer/planner.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr std::int64_t kMostRanks = 4096;
constexpr const char* kPipeDreamFlags[] = {"machines", "bandwidth", "use-fewer-machines",
                                           "activation-compression"};
constexpr const char* kLayerFlags[] = {"cluster", "ranks", "stages", "microbatches", "schedule", "out"};

// ---- PipeDream mode
// ---------------------------------------------------------------------------------------------

std::vector<int> machine_counts(Arguments& arguments, Problems& problems) {
  std::vector<int> counts;
  for (double number : arguments.numbers("machines")) {
    if (number != std::floor(number) || number < 1 || number > static_cast<double>(kMostRanks)) {
      problems.push_back(
          {"--machines", "is not a list of counts: " + arguments.string("machines"), "e.g. 8,2"});
      return {};
    }
    counts.push_back(static_cast<int>(number));
  }
  return counts;
}

PipeDreamOptions pipedream_options(Arguments& arguments, Problems& problems) {
  PipeDreamOptions options;
  options.machines = machine_counts(arguments, problems);
  options.bandwidths = arguments.numbers("bandwidth");
  options.straight = arguments.boolean("straight");
  options.use_fewer_machines = arguments.boolean("use-fewer-machines");
  if (arguments.has("memory")) options.memory_bytes = static_cast<double>(arguments.bytes("memory"));
  if (arguments.has("activation-compression")) {
    options.activation_compression = arguments.number("activation-compression", 1e-9, 1e9);
  }
  for (const char* flag : kLayerFlags) {
    if (arguments.has(flag)) problems.push_back({long_name(flag), "does not go with --pipedream", ""});
  }
  return options;
}

Json to_json(const PipeDreamAnswer& answer) {
  Json stages = Json::array();
  for (const PipeDreamStage& stage : answer.stages) {
    Json nodes = Json::array();
    for (const std::string& id : stage.nodes) nodes.push_back(id);
    stages.push_back(Json::object(
        {{"compute_time_s", stage.compute_time_s}, {"replication", stage.replication}, {"nodes", nodes}}));
  }
  return Json::object({{"single_machine_time_s", answer.single_machine_time_s},
                       {"data_parallel_time_s", answer.data_parallel_time_s},
                       {"pipeline_time_s", answer.pipeline_time_s},
                       {"stages", stages}});
}

// node2 before node10; the file's own order is that of creation, not of execution.
std::string node_range(const std::vector<std::string>& ids) {
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
                stage.nodes.size(), node_range(stage.nodes).c_str());
  }
  const double single = answer.single_machine_time_s;
  std::printf("seconds per minibatch: pipeline %.6f, one machine %.6f (%.2fx), data parallel %.6f (%.2fx)\n",
              answer.pipeline_time_s, single, single / answer.pipeline_time_s, answer.data_parallel_time_s,
              answer.data_parallel_time_s / answer.pipeline_time_s);
}

int plan_for_pipedream(Arguments& arguments) {
  Problems problems;
  const PipeDreamOptions options = pipedream_options(arguments, problems);
  const OutputFormat format = output_format(arguments, problems);
  problems.insert(problems.end(), arguments.problems().begin(), arguments.problems().end());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<PipeDreamGraph> graph = read_pipedream_graph(arguments.string("profile"));
  if (!graph) return exit_with(ExitCode::InputData, graph.problems());
  const Result<PipeDreamAnswer> answer = plan_pipedream(*graph, options);
  if (!answer) return exit_with(ExitCode::Usage, answer.problems());
  if (format == OutputFormat::Json) {
    std::printf("%s\n", to_json(*answer).dump(2).c_str());
  } else {
    print_table(*answer);
  }
  return 0;
}

// ---- our profiles
// -----------------------------------------------------------------------------------------------

PlannerOptions planner_options(Arguments& arguments, Problems& problems) {
  PlannerOptions options;
  options.microbatches = static_cast<int>(arguments.integer("microbatches", 0, 1 << 20));
  options.stages = static_cast<int>(arguments.integer("stages", 0, kMostRanks));
  options.straight = arguments.boolean("straight");
  if (arguments.has("memory")) options.memory_per_rank = arguments.bytes("memory");
  if (arguments.has("schedule")) {
    const Result<ScheduleKind> kind = parse_schedule_kind(arguments.string("schedule"), "--schedule");
    if (kind) {
      options.schedule = *kind;
    } else {
      problems.insert(problems.end(), kind.problems().begin(), kind.problems().end());
    }
  }
  for (const char* flag : kPipeDreamFlags) {
    if (arguments.has(flag)) problems.push_back({long_name(flag), "needs --pipedream", ""});
  }
  if (arguments.has("ranks") && arguments.has("cluster")) {
    problems.push_back({"--ranks", "the cluster file says how many ranks there are", "give one of the two"});
  }
  return options;
}

double one_rank_step(const Plan& plan, const LayerGraph& graph) {
  std::vector<std::string> layers;
  for (const PlanStage& stage : plan.stages)
    layers.insert(layers.end(), stage.layers.begin(), stage.layers.end());
  const Plan single = uniform_plan(plan.model, layers, 1, 1, plan.microbatches, ScheduleKind::OneFOneB);
  return predict(single, graph, ClusterSpec::local(1)).predicted_step_s;
}

std::string rank_list(const PlanStage& stage) {
  std::string ranks = std::to_string(stage.ranks.front().value);
  if (stage.ranks.size() > 1) ranks.append("-").append(std::to_string(stage.ranks.back().value));
  return ranks;
}

void print_table(const Plan& plan, const LayerGraph& graph) {
  std::printf("%s: %d stages on %d ranks, %s, %d microbatches of %d\n", plan.model.c_str(), plan.num_stages(),
              plan.num_ranks(), to_string(plan.schedule).c_str(), plan.microbatches, graph.microbatch);
  std::printf("%-6s %-8s %11s %12s %14s %11s %7s  %s\n", "stage", "ranks", "forward ms", "backward ms",
              "parameters MiB", "peak MiB", "layers", "first .. last");
  for (int s = 0; s < plan.num_stages(); ++s) {
    const PlanStage& stage = plan.stages[s];
    std::printf("%-6d %-8s %11.3f %12.3f %14.3f %11.3f %7zu  %s .. %s\n", s, rank_list(stage).c_str(),
                stage.forward_s * 1e3, stage.backward_s * 1e3,
                static_cast<double>(stage.parameter_bytes) / kMiB,
                static_cast<double>(stage.peak_bytes) / kMiB, stage.layers.size(),
                stage.layers.front().c_str(), stage.layers.back().c_str());
  }
  const double single = one_rank_step(plan, graph);
  std::printf("predicted step %.3f ms; one rank %.3f ms (%.2fx)\n", plan.predicted_step_s * 1e3, single * 1e3,
              single / plan.predicted_step_s);
}

int plan_for_layers(Arguments& arguments) {
  Problems problems;
  const PlannerOptions options = planner_options(arguments, problems);
  const OutputFormat format = output_format(arguments, problems);
  const int default_ranks = options.stages > 0 ? options.stages : 2;
  const int ranks =
      arguments.has("ranks") ? static_cast<int>(arguments.integer("ranks", 1, kMostRanks)) : default_ranks;
  problems.insert(problems.end(), arguments.problems().begin(), arguments.problems().end());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<ClusterSpec> cluster = cluster_of(arguments, ranks);
  if (!cluster) return exit_with(ExitCode::Usage, cluster.problems());
  const Result<LayerGraph> graph = LayerGraph::load(arguments.string("profile"));
  if (!graph) return exit_with(ExitCode::InputData, graph.problems());
  const Result<Plan> plan = plan_layers(*graph, *cluster, options);
  if (!plan) return exit_with(ExitCode::Usage, plan.problems());
  if (arguments.has("out")) {
    if (const Status saved = plan->save(arguments.string("out")); !saved) {
      return exit_with(ExitCode::Usage, saved.problems());
    }
  }
  if (format == OutputFormat::Json) {
    std::printf("%s\n", plan->to_json().c_str());
  } else {
    print_table(*plan, *graph);
  }
  return 0;
}

}  // namespace

CommandSpec plan_spec() {
  CommandSpec spec;
  spec.command = "plan";
  spec.summary = "Cut a profiled model into pipeline stages, replicate them, and predict the step time.";
  spec.flags = {
      {.name = "profile",
       .short_name = 'p',
       .value = "FILE",
       .help = "profile.json of `millrace profile`; with --pipedream a graph.txt.",
       .required = true},
      {.name = "straight", .help = "No replication: one rank for each stage."},
      {.name = "memory", .value = "BYTES", .help = "Memory of a rank, e.g. 8GiB (default: the cluster's)."},
      {.name = "format", .value = "text|json", .help = "What to print.", .fallback = "text"},
      {.name = "cluster",
       .value = "FILE",
       .help = "cluster.yaml: links and memory.",
       .group = "Our profiles"},
      {.name = "ranks",
       .value = "N",
       .help = "Ranks on this host, instead of --cluster (default: 2, or --stages).",
       .group = "Our profiles"},
      {.name = "stages",
       .value = "N",
       .help = "Number of stages; 0 chooses.",
       .fallback = "0",
       .group = "Our profiles"},
      {.name = "microbatches",
       .short_name = 'm',
       .value = "N",
       .help = "Microbatches of a step; 0 chooses.",
       .fallback = "4",
       .group = "Our profiles"},
      {.name = "schedule",
       .value = "KIND",
       .help = "gpipe, 1f1b or pipedream (default: the better one of gpipe and 1f1b).",
       .group = "Our profiles"},
      {.name = "out",
       .short_name = 'o',
       .value = "FILE",
       .help = "Write the plan (JSON) here.",
       .group = "Our profiles"},
      {.name = "pipedream",
       .help = "Plan a PipeDream graph.txt exactly as PipeDream's planner does.",
       .group = "PipeDream profiles"},
      {.name = "machines",
       .value = "LIST",
       .help = "Machines of each level, innermost first, e.g. 8,2.",
       .group = "PipeDream profiles"},
      {.name = "bandwidth",
       .value = "LIST",
       .help = "Bytes/s of each level, innermost first.",
       .group = "PipeDream profiles"},
      {.name = "use-fewer-machines", .help = "Machines may stay idle.", .group = "PipeDream profiles"},
      {.name = "activation-compression",
       .value = "R",
       .help = "Charge activation transfers, divided by R (default: they are free).",
       .group = "PipeDream profiles"},
  };
  spec.examples = {
      "millrace plan --profile profile.json --ranks 2 --microbatches 8 --out plan.json",
      "millrace plan --pipedream --profile graph.txt --machines 8,2 --bandwidth 25e9,3.125e9 --format json"};
  return spec;
}

int plan_command(const std::vector<std::string>& args) {
  const CommandSpec spec = plan_spec();
  Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) {
    std::printf("%s", help_text(spec).c_str());
    return 0;
  }
  return arguments->boolean("pipedream") ? plan_for_pipedream(*arguments) : plan_for_layers(*arguments);
}

}  // namespace millrace
