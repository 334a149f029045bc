// Measures the engine's own cost of an action: the CPU time of a rank's thread over its list of actions, with
// layers that do nothing. Ranks are threads of this process, and messages have 64 bytes. Other programs on
// the machine disturb CPU time less than wall time.
//   benchmark_actions [ROUNDS]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include "benchmarks/thread_seconds.h"
#include "runtime/device/host_memory.h"
#include "runtime/train/trainer.h"

using namespace millrace;  // NOLINT: a program

namespace {

constexpr int kStages = 4, kMicrobatches = 256, kSteps = 40;

class Nothing final : public Layer {
 public:
  std::string kind() const override { return "nothing"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return inputs[0];
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }
};

/// A layer with one weight, so that the model has a gradient. It passes on its input and does not read the
/// weight.
class Weight final : public Layer {
 public:
  std::string kind() const override { return "weight"; }
  std::vector<ParameterSpec> parameters() const override { return {{.name = "weight", .shape = {1}}}; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return inputs[0];
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad};
  }
};

LayeredModel idle_model() {
  LayeredModel model = classifier("idle", {8}, 8);
  std::string last = "input";
  for (int s = 0; s < kStages; ++s) {
    const std::string name = "layer" + std::to_string(s);
    LayerPtr layer = s == 0 ? LayerPtr(std::make_shared<Weight>()) : LayerPtr(std::make_shared<Nothing>());
    model.layers.push_back({name, std::move(layer), {last}});
    last = name;
  }
  end_in_cross_entropy(model);
  return model;
}

class OneBatch final : public BatchSource {
 public:
  Batch get(std::int64_t) override { return batch_; }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t) const override { return {.samples = 2}; }

 private:
  Batch batch_{.fields = {at::zeros({2, 8}), at::zeros({2}, at::kLong)}};
};

/// Microseconds of CPU for each action, by rank.
std::vector<double> per_action(ScheduleKind kind, const std::string& folder) {
  const LayeredModel model = idle_model();
  const Plan plan = uniform_plan(model.name, model.layer_names(), kStages, 1, kMicrobatches, kind);
  const Schedule schedule = *schedule_of(plan, shape_of(plan), Transport::Buffered);
  auto communicators = make_local_communicators(kStages, std::chrono::seconds(60));
  const StopFlag stop{false};
  std::vector<double> result(kStages);
  std::vector<std::jthread> threads;
  for (std::size_t r = 0; r < kStages; ++r) {
    threads.emplace_back([&, r] {
      at::set_num_threads(1);
      SteadyClock clock;
      const auto device = make_cpu_device();
      TrainOptions options{.steps = kSteps, .microbatch = 2, .print_every = 1 << 30, .trace_count = 0};
      if (!folder.empty()) {
        options.output_dir = folder;
        options.overwrite = true;
        options.stop = &stop;
      }
      Trainer trainer({*communicators[r], clock, *device}, model, plan, options,
                      [](const BatchNeeds&, const BatchNeeds&) {
                        return BatchSources{.train = std::make_unique<OneBatch>(), .evaluation = {}};
                      });
      const double start = thread_seconds();
      trainer.run();
      result[r] = (thread_seconds() - start) * 1e6 / (double(schedule.ranks[r].size()) * kSteps);
    });
  }
  threads.clear();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  install_host_allocator();
  char folder[] = "/tmp/millrace-actions-XXXXXX";
  if (!::mkdtemp(folder)) return 1;
  std::printf("us of CPU for each action, %d stages x %d microbatches, %d steps, least of %d rounds\n",
              kStages, kMicrobatches, kSteps, rounds);
  for (const bool files : {false, true}) {
    for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB}) {
      std::vector<double> least(kStages, 1e9);
      for (int i = 0; i < rounds; ++i) {
        const std::vector<double> once = per_action(kind, files ? folder : "");
        for (std::size_t r = 0; r < kStages; ++r) least[r] = std::min(least[r], once[r]);
      }
      std::printf("%-6s %-22s", to_string(kind).c_str(), files ? "with output folder" : "");
      for (double us : least) std::printf(" %6.2f", us);
      std::printf("   (by stage; the last also has the head)\n");
    }
  }
  std::filesystem::remove_all(folder);
  return 0;
}
