// `millrace profile`: measures a model layer by layer and writes the profile that `millrace plan` reads;
// with --network it measures links.
#include <cstdio>

#include "driver/network_launch.h"
#include "driver/profile_network.h"
#include "driver/worker_options.h"
#include "runtime/base/json.h"
#include "runtime/train/profiler.h"

namespace millrace {
namespace {

void print_table(const LayerGraph& graph) {
  std::printf("%-28s %-16s %10s %10s %10s %12s %12s\n", "layer", "kind", "forward", "grad in", "grad w",
              "parameters", "output");
  double forward = 0, input = 0, weight = 0;
  for (const LayerNode& n : graph.nodes) {
    std::printf("%-28s %-16s %8.3fms %8.3fms %8.3fms %9.3fMiB %9.3fMiB\n", n.name.c_str(), n.kind.c_str(),
                n.forward_s * 1e3, n.backward_input_s * 1e3, n.backward_weight_s * 1e3,
                double(n.parameter_bytes) / kMiB, double(n.activation_bytes) / kMiB);
    forward += n.forward_s;
    input += n.backward_input_s;
    weight += n.backward_weight_s;
  }
  std::printf("total: forward %.3f ms, backward %.3f + %.3f ms, loss %.3f ms for one microbatch of %d\n",
              forward * 1e3, input * 1e3, weight * 1e3, graph.loss_s * 1e3, graph.microbatch);
}

}  // namespace

int profile_command(const std::vector<std::string>& args, const Accelerator& accelerator) {
  return guarded([&] {
    const CommandSpec spec = profile_spec();
    Result<Arguments> parsed = parse_arguments(spec, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
    if (parsed->boolean("network")) return profile_network_rank(*parsed, accelerator);
    if (const Problems problems = network_flags_without_network(*parsed); !problems.empty())
      return report_problems(problems, ExitCode::Usage);
    if (!parsed->has("model"))
      return report_problems({{"--model", "is required", "for example --model vgg16"}}, ExitCode::Usage);
    ProfileOptions options{.microbatch = static_cast<int>(parsed->integer("microbatch", 1, 1 << 20)),
                           .warmup = static_cast<int>(parsed->integer("warmup", 0, 1000)),
                           .repetitions = static_cast<int>(parsed->integer("repetitions", 1, 10'000)),
                           .seed = static_cast<std::uint64_t>(parsed->integer("seed", 0, INT64_MAX)),
                           .rule = {.kind = parsed->string("rule")}};
    const int threads = static_cast<int>(parsed->integer("threads", 1, 1024));
    Result<LayeredModel> model = model_from(*parsed);
    if (!model) return report_problems(model.problems(), ExitCode::Usage);
    const Result<std::shared_ptr<Device>> device = device_from(parsed->string("device"), 0, accelerator);
    if (!device) return report_problems(device.problems(), ExitCode::Usage);
    set_compute_threads(threads, false);
    SteadyClock clock;
    const LayerGraph graph = profile_model(*model, options, clock, **device);
    if (parsed->has("out")) {
      if (Status saved = graph.save(parsed->string("out")); !saved)
        return report_problems(saved.problems(), ExitCode::Usage);
    }
    if (parsed->string("format") == "json")
      std::printf("%s\n", graph.to_json().c_str());
    else
      print_table(graph);
    return 0;
  });
}

}  // namespace millrace
