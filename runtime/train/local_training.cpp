#include "runtime/train/local_training.h"

#include <ATen/Parallel.h>

#include "runtime/base/error.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/device/host_memory.h"

namespace millrace {

RunReport train_locally(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
                        const MakeBatches& make_batches, const LocalTrainingOptions& local) {
  if (const Problems problems = validate(plan, model.name, model.layer_names()); !problems.empty())
    throw ConfigError(to_string(problems));
  install_host_allocator();
  const auto communicators = make_local_communicators(plan.num_ranks(), local.deadline);
  const RankId with_loss = plan.stages.back().ranks.front();
  RunReport report;
  run_as_threads(communicators, [&](Communicator& communicator) {
    at::set_num_threads(local.threads);
    const std::shared_ptr<Device> device = make_cpu_device();
    Trainer trainer({communicator, steady_clock(), *device}, model, plan, options, make_batches);
    RunReport of_rank = trainer.run();
    NamedTensors weights;
    if (local.weights) weights = trainer.weights();
    if (communicator.rank() != with_loss) return;
    report = std::move(of_rank);
    if (local.weights) *local.weights = std::move(weights);
  });
  return report;
}

}  // namespace millrace
