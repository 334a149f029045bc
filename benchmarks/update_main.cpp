// Measures an update with the clearing of gradients, for each rule and for ATen's operators: one job, an
// array of 16 jobs, and one model of as many weights as the array. `scripts/benchmark update [ROUNDS]`.
#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include "benchmarks/thread_seconds.h"
#include "runtime/base/clock.h"
#include "runtime/device/host_memory.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/layers/job_array.h"
#include "runtime/model/fuse.h"
#include "runtime/plan/plan.h"
#include "runtime/stage/update_rule.h"

using namespace millrace;

namespace {

/// An MLP of two hidden layers: `width` 64 has 13,000 weights.
LayeredModel mlp(std::int64_t width) {
  LayeredModel model = classifier("mlp", {64}, 10);
  model.layers = {{"a", linear(64, width), {"input"}},
                  {"b", relu(), {"a"}},
                  {"c", linear(width, width), {"b"}},
                  {"d", relu(), {"c"}},
                  {"e", linear(width, 10), {"d"}}};
  end_in_cross_entropy(model);
  return model;
}

struct Case {
  Case(const LayeredModel& model, int jobs, const RuleOptions& options, UpdateKernels kernels)
      : layout(*make_layout(
            model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 2)),
        store(layout, StageId(0), std::vector<std::uint64_t>(jobs, 1), at::kCPU) {
    for (int job = 0; job < jobs; ++job)
      rules.push_back(make_update_rule(options, jobs > 1 ? store.job(job) : store, nullptr, kernels));
    store.flat_gradient().copy_(at::randn(store.flat_gradient().sizes()));
  }
  double seconds() {
    const double start = thread_seconds();
    store.publish([&](const at::Tensor& weights, const at::Tensor& gradient) {
      std::vector<UpdateRule::Update> updates;
      for (std::size_t job = 0; job < rules.size(); ++job)
        updates.push_back(
            JobRule{rules[job].get(), static_cast<int>(job)}.update(store, weights, gradient, {.lr = 1e-5}));
      UpdateRule::apply_all_(updates);
    });
    return thread_seconds() - start;
  }
  StageLayout layout;
  ParameterStore store;
  std::vector<std::unique_ptr<UpdateRule>> rules;  // one for each job
  std::vector<double> samples;
};

double tenth_percentile(std::vector<double> samples) {
  std::ranges::sort(samples);
  return samples[samples.size() / 10];
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kJobs = 16;
  const int rounds = argc > 1 ? std::max(10, std::atoi(argv[1])) : 2000;
  install_host_allocator();
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  const LayeredModel one = mlp(84);
  SteadyClock clock;
  const LayeredModel array =
      *fuse(std::vector(kJobs, one), std::make_shared<KernelChoices>(ArrayKernels::Fused, clock));
  const LayeredModel large = mlp(431);
  std::printf(
      "us of CPU for an update, 10th percentile of %d, %d jobs\n%-9s %-6s %8s %8s %8s  array / model\n",
      rounds, kJobs, "rule", "by", "one", "array", "model");
  for (const RuleEntry& entry : rule_table()) {
    for (const UpdateKernels kernels : {UpdateKernels::Torch, UpdateKernels::Own}) {
      const RuleOptions options{.kind = entry.kind};
      std::vector<Case> cases;
      cases.reserve(3);
      cases.emplace_back(one, 1, options, kernels);
      cases.emplace_back(array, kJobs, options, kernels);
      cases.emplace_back(large, 1, options, kernels);
      for (int round = 0; round < rounds; ++round) {
        for (Case& c : cases) {
          const double seconds = c.seconds();
          if (round >= rounds / 10) c.samples.push_back(seconds);
        }
      }
      std::printf("%-9s %-6s", to_string(entry.kind).c_str(),
                  kernels == UpdateKernels::Own ? "own" : "torch");
      for (const Case& c : cases) std::printf(" %8.1f", tenth_percentile(c.samples) * 1e6);
      std::printf("  %.2f   (%ld, %ld, %ld weights)\n",
                  tenth_percentile(cases[1].samples) / tenth_percentile(cases[2].samples),
                  long(cases[0].store.flat_weights().numel()), long(cases[1].store.flat_weights().numel()),
                  long(cases[2].store.flat_weights().numel()));
    }
  }
  return 0;
}
