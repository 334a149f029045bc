// `millrace profile`: measures a model layer by layer and writes the profile that `millrace plan` reads;
// with --network it measures links.
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "driver/cli/command_support.h"
#include "driver/hosts/machine.h"
#include "driver/launch/network_launch.h"
#include "driver/worker/eager_step.h"
#include "driver/worker/memory_fit.h"
#include "driver/worker/profile_arrays.h"
#include "driver/worker/profile_network.h"
#include "driver/worker/worker_environment.h"
#include "driver/worker/worker_options.h"
#include "runtime/base/files.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/mean.h"
#include "runtime/base/median.h"
#include "runtime/base/progress_line.h"
#include "runtime/profile/profiler.h"

namespace millrace {
namespace {

/// Seconds of one microbatch.
struct Total {
  explicit Total(const LayerGraph& graph) : loss(graph.loss_s) {
    for (const LayerNode& n : graph.nodes) {
      forward += n.forward_s;
      backward_input += n.backward_input_s;
      backward_weight += n.backward_weight_s;
    }
  }
  double sum() const { return forward + backward_input + backward_weight + loss; }
  double forward = 0, backward_input = 0, backward_weight = 0, loss = 0;
};

void print_total(const std::string& of, const LayerGraph& graph) {
  const Total total(graph);
  std::printf("%s: forward %.3f ms, backward %.3f + %.3f ms, loss %.3f ms for one microbatch of %d\n",
              of.c_str(), total.forward * 1e3, total.backward_input * 1e3, total.backward_weight * 1e3,
              total.loss * 1e3, graph.microbatch);
}

void print_slowest_rank(const std::vector<double>& seconds) {
  const auto slowest = std::ranges::max_element(seconds);
  std::printf("; rank %td was the slowest and took %.2f times the mean", slowest - seconds.begin(),
              *slowest / mean(seconds));
}

void print_table(const LayerGraph& graph) {
  std::printf("%-28s %-16s %10s %10s %10s %12s %12s\n", "layer", "kind", "forward", "grad in", "grad w",
              "parameters", "output");
  for (const LayerNode& n : graph.nodes) {
    std::printf("%-28s %-16s %8.3fms %8.3fms %8.3fms %9.3fMiB %9.3fMiB\n", n.name.c_str(), n.kind.c_str(),
                n.forward_s * 1e3, n.backward_input_s * 1e3, n.backward_weight_s * 1e3,
                double(n.parameter_bytes) / kMiB, double(n.activation_bytes) / kMiB);
  }
  print_total("total", graph);
  for (const LayerGraph& turn : graph.turns) print_total("turn " + turn.turn, turn);
  if (const std::string lengths = graph.lengths_text(); !lengths.empty())
    std::printf("holds for microbatches of %s: means over %zu of them\n", lengths.c_str(),
                graph.microbatches.size());
  if (graph.data_s > 0) std::printf("loading one microbatch: %.3f ms\n", graph.data_s * 1e3);
  print_arrays(graph);
  std::printf("measured by %d rank%s at once in %d blocks that differ by +-%.1f %%", graph.measured.ranks,
              graph.measured.ranks == 1 ? "" : "s", graph.measured.blocks, graph.measured.spread * 100);
  if (graph.measured.core_share < 1)
    std::printf("; a rank had %.0f %% of a core", graph.measured.core_share * 100);
  if (graph.measured.jitter > 0)
    std::printf("; passes of a block vary by %.1f %%", graph.measured.jitter * 100);
  if (graph.measured.rank_seconds.size() > 1) print_slowest_rank(graph.measured.rank_seconds);
  std::printf("\n");
}

/// Times as the mean over the ranks that measured at once, those of turns and arrays too. Collective.
void take_mean(LayerGraph& graph, Communicator& communicator) {
  std::vector<double*> values{&graph.loss_s,          &graph.update_s_per_byte, &graph.update_copy_s_per_byte,
                              &graph.norm_s_per_byte, &graph.sum_s_per_byte,    &graph.data_s,
                              &graph.measured.spread, &graph.measured.jitter};
  for (MeasuredMicrobatch& one : graph.microbatches)
    for (double* value : {&one.seconds, &one.loss_s}) values.push_back(value);
  for (LayerNode& node : graph.nodes) {
    for (double* value : {&node.forward_s, &node.backward_input_s, &node.backward_weight_s})
      values.push_back(value);
    for (LayerSeconds& one : node.of_microbatches)
      for (double* value : {&one.forward, &one.backward_input, &one.backward_weight}) values.push_back(value);
  }
  const at::Tensor sums = at::zeros({static_cast<std::int64_t>(values.size())}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  for (std::size_t i = 0; i < values.size(); ++i) sum[i] = *values[i];
  communicator.all_reduce(sums, "times of the layers")->wait();
  for (std::size_t i = 0; i < values.size(); ++i) *values[i] = sum[i] / communicator.size();
  graph.measured.ranks = communicator.size();
  for (LayerGraph& turn : graph.turns) take_mean(turn, communicator);
  for (LayerGraph& array : graph.arrays) take_mean(array, communicator);
}

/// Returns Measured::rank_seconds. Collective.
std::vector<double> seconds_of_ranks(double own, Communicator& communicator) {
  const at::Tensor all = at::zeros({communicator.size()}, at::kDouble);
  all[communicator.rank().value] = own;
  communicator.all_reduce(all, "times of the ranks")->wait();
  return {all.const_data_ptr<double>(), all.const_data_ptr<double>() + all.numel()};
}

/// Returns Measured::core_share of the ranks. Collective.
double core_share(const JobEnvironment& place, Communicator& communicator) {
  // Threads by core, summed over hosts: ranks may be pinned to cores of their own, or each may use all.
  const at::Tensor counts = at::zeros({1 + CPU_SETSIZE}, at::kDouble);
  auto* const hosts = counts.mutable_data_ptr<double>();
  auto* const threads = hosts + 1;
  *hosts = place.local_rank == 0 ? 1 : 0;
  const std::vector<int> cores = core_numbers_here();
  for (const int core : cores) threads[core] = double(at::get_num_threads()) / double(cores.size());
  communicator.all_reduce(counts, "threads of the cores")->wait();
  return std::min(1., *hosts / *std::max_element(threads, threads + CPU_SETSIZE));
}

/// Median seconds to load one of the first microbatches.
double loading_seconds(BatchSource& source, std::int64_t positions, Clock& clock) {
  constexpr std::int64_t kLoads = 8;
  std::vector<double> seconds;
  for (std::int64_t p = 0; p < std::min(kLoads, positions); ++p) {
    const TimePoint start = clock.now();
    source.get(p);
    seconds.push_back(Seconds(clock.now() - start).count());
  }
  return median(seconds);
}

struct DataToMeasure {
  ProfileBatches batches;
  double loading_s = 0;  ///< of a microbatch
};

/// Returns the data of --data that are measured.
Result<DataToMeasure> data_to_measure(const ProfileFlags& flags, const LayeredModel& model,
                                      const Additions& own, Clock& clock, Device& device, bool log_notes) {
  constexpr std::int64_t kMostSteps = 1 << 14;
  const auto set = make_dataset({.path = flags.data,
                                 .fields = model.fields,
                                 .seed = flags.options.seed,
                                 .dimensions = model.dimensions,
                                 .per_step = std::int64_t{flags.options.microbatch} * flags.microbatches,
                                 .length_buckets = flags.length_buckets},
                                own.datasets);
  if (!set) return set.problems();
  if (!*set) return Problem{"--data", flags.data + " has nothing to train on", {}};
  if (log_notes) {
    for (const std::string& note : (*set)->notes()) log_warning(note);
  }
  LoaderOptions options{.microbatch = flags.options.microbatch,
                        .microbatches_per_step = flags.microbatches,
                        .seed = flags.options.seed,
                        .workers = 0};
  options.read_for(model);
  const auto source = make_loader(*set, options);
  if (!source) return source.problems();
  const std::int64_t steps = std::min(kMostSteps, steps_per_epoch(**set, options));
  DataToMeasure data{.loading_s = loading_seconds(**source, steps * flags.microbatches, clock)};
  if (model.dimensions.empty())  // all alike
    data.batches = spread_batches(model, **source, 1, 1, 1, device);
  else
    data.batches =
        spread_batches(model, **source, steps, flags.microbatches, flags.measured_microbatches, device);
  return data;
}

Problems data_flags_without_data(const ProfileFlags& flags, const Arguments& given) {
  Problems problems;
  for (const char* flag : {"microbatches", "measured-microbatches", "length-buckets"}) {
    if (flags.data.empty() && given.has(flag))
      problems.push_back({long_name(flag), "says nothing without --data", "give --data PATH"});
  }
  return problems;
}

}  // namespace

int profile_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                    const Additions& own) {
  return guarded([&] {
    ProfileFlags flags;
    const CommandSpec spec = with_additions(profile_spec(flags), own, flags.model.options);
    const Result<Arguments> parsed = parse_arguments(spec, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return print_help(spec, *parsed);
    if (flags.network) return profile_network_rank(flags, *parsed, accelerator);
    if (const Problems problems = network_flags_without_network(*parsed); !problems.empty())
      return report_problems(problems, ExitCode::Usage);
    if (flags.model.name.empty())
      return report_problems({{"--model", "is required", "for example --model vgg16"}}, ExitCode::Usage);
    if (const Problems problems = data_flags_without_data(flags, *parsed); !problems.empty())
      return report_problems(problems, ExitCode::Usage);
    if (!parsed->problems().empty()) return report_problems(parsed->problems(), ExitCode::Usage);
    const Result<LayeredModel> model = make_model(flags.model.name, flags.model.options, own.models);
    if (!model) return report_problems(model.problems(), ExitCode::Usage);
    if (!flags.out.empty()) {
      if (const Status free = may_replace(flags.out, "millrace-profile"); !free)
        return report_problems(free.problems(), ExitCode::Usage);
      if (const Status made = make_place_for_file(flags.out); !made)
        return report_problems(made.problems(), ExitCode::Usage);
    }
    const Result<JobEnvironment> place = read_environment();
    if (!place) return report_problems(place.problems(), ExitCode::Usage);
    if (place->distributed) {
      die_with_launcher();
      set_log_prefix("rank" + std::to_string(place->rank));
    }
    if (place->rank == 0) {
      tell_of_interrupt(spec);
      if (const std::string slow = slow_precision(flags.options.precision, flags.device); !slow.empty())
        log_warning(slow);
    }
    const Result<std::shared_ptr<Device>> device = device_from(flags.device, place->local_rank, accelerator);
    if (!device) return report_problems(device.problems(), ExitCode::Usage);
    if (flags.device == ComputeDevice::Cpu) {
      const Plan whole = uniform_plan(model->name, model->layer_names(), 1, 1, 1, ScheduleKind::GPipe);
      if (const Status fit = weights_fit({&*model, 1}, whole, {0}, free_memory()); !fit)
        return report_problems(fit.problems(), ExitCode::Usage);
    }
    if (place->rank == 0)
      if (const Status same = check_eager_step(flags.model.name, flags.model.options); !same)
        return report_problems(same.problems(), ExitCode::Usage);
    set_compute_threads(flags.threads, false);
    JoinedJob joined;
    if (place->size > 1) {
      joined = join_job(*place, {.deadline = flags.deadline}, **device, accelerator);
      flags.options.before_block = [&] { joined.communicator->barrier(); };
      if (flags.device == ComputeDevice::Cpu) {
        flags.options.replicas = &*joined.communicator;
        flags.options.core_share = core_share(*place, *joined.communicator);
      }
    }
    SteadyClock clock;
    DataToMeasure data;
    if (!flags.data.empty()) {
      auto found = data_to_measure(flags, *model, own, clock, **device, place->rank == 0);
      if (!found) return report_problems(found.problems(), ExitCode::InputData);
      data = *std::move(found);
    }
    const Result<std::vector<LayeredModel>> arrays = arrays_to_measure(flags, *model);
    if (!arrays) return report_problems(arrays.problems(), ExitCode::Usage);
    const auto measured = [&](const LayeredModel& one, const std::string& what) {
      ProgressLine line(clock, what, 0, place->rank == 0 ? what : "");
      if (place->rank == 0)
        flags.options.progress = [&](auto done, auto total) { line.show(done, total, "passes"); };
      return profile_model(one, flags.options, clock, **device, data.batches);
    };
    LayerGraph graph = measured(*model, "profile of " + model->name);
    graph.data_s = data.loading_s;
    if (arrays->empty()) graph.rule_state_bytes = 0;  // a profile without arrays says nothing of it
    for (const LayeredModel& array : *arrays) {
      graph.arrays.push_back(
          measured(array, "profile of an array of " + std::to_string(array.jobs()) + " jobs"));
      graph.arrays.back().data_s = data.loading_s;
    }
    if (joined.communicator) {
      joined.communicator->barrier();  // nobody leaves while others still measure
      graph.measured.rank_seconds = seconds_of_ranks(Total(graph).sum(), *joined.communicator);
      take_mean(graph, *joined.communicator);
      graph.measured.core_share = flags.options.core_share;
    }
    if (place->rank != 0) return 0;
    graph.measured.origin = {.processor = processor_name(), .date = utc_now()};
    if (!flags.out.empty()) {
      if (Status saved = graph.save(flags.out); !saved)
        return report_problems(saved.problems(), ExitCode::Usage);
    }
    if (flags.format == OutputFormat::Json)
      std::printf("%s\n", graph.to_json().c_str());
    else
      print_table(graph);
    return 0;
  });
}

}  // namespace millrace
