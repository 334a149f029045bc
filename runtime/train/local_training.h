// A run whose ranks are threads of one process.
#pragma once

#include <chrono>

#include "runtime/device/device.h"
#include "runtime/train/trainer.h"

namespace millrace {

struct LocalTrainingOptions {
  std::chrono::milliseconds deadline{100'000};  ///< of every wait of one rank for another
  int threads = 1;                              ///< of each rank, inside an operation
};

/// Trains `model` by `plan`, every rank in a thread of its own, on the CPU: bit for bit what as many
/// processes compute. Returns the report of the rank that has the loss. `make_batches` is called by all
/// threads. Throws what the first rank that failed threw (Trainer).
RunReport train_locally(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
                        const MakeBatches& make_batches, const LocalTrainingOptions& local = {});

}  // namespace millrace
