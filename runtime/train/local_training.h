// A run whose ranks are threads of one process.
#pragma once

#include <chrono>

#include "runtime/device/device.h"
#include "runtime/train/trainer.h"

namespace millrace {

struct LocalTrainingOptions {
  std::chrono::milliseconds deadline{100'000};  ///< limit of every wait between ranks
  int threads = 1;                              ///< intra-op threads of each rank
  NamedTensors* weights = nullptr;  ///< receives the trained weights (Trainer::weights); null: not needed
};

/// Trains `model` with `plan` on the CPU, with every rank in its own thread. The result is bitwise equal to
/// that of as many processes. Returns the report of the first rank of the last stage, which has the loss. All
/// threads call `make_batches`. Throws the error of the first rank that failed (Trainer), or ConfigError if
/// the plan does not fit the model.
RunReport train_locally(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
                        const MakeBatches& make_batches, const LocalTrainingOptions& local = {});

}  // namespace millrace
