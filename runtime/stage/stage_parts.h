// The parts and options of a stage's executor.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/masks_from.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/tied_exchange.h"
#include "runtime/stage/update_rule.h"

namespace millrace {

struct ExecutorOptions {
  std::vector<std::uint64_t> seeds{0};  ///< by job
  /// Number of microbatches whose losses one update sums. Their weights (samples, tokens) are known in
  /// advance, so each loss is scaled by its share immediately.
  int microbatches_per_update = 1;
  double gradient_scale = 1;  ///< factor on gradients before the update: 1 / replicas if asynchronous, else 1
  /// The maximum absolute value of a gradient's element, by job; 0 or no entry: gradients are not clipped.
  std::vector<double> clip_values{};
  std::int64_t bucket_bytes = 4 << 20;  ///< gradients per all-reduce
  /// Throw NumericError before an Update if the losses of all jobs are NaN or Inf (last stage).
  bool stop_on_nonfinite = false;
  /// Check each layer's results, forward and backward. `throws_at_once`: throw NumericError at the first
  /// number that is not finite; otherwise nonfinite_place() reports it.
  bool check_activations = false, throws_at_once = false;
  /// A skipped step (UpdateScalars::skip) reverts its forwards' writes to weights. With `keeps_statistics`,
  /// running statistics and carried states too.
  bool keeps_written = false, keeps_statistics = false;
  /// Batch normalisation computes statistics over the microbatches that all replicas run at the same time.
  /// Their schedule must pass check_replicas_meet.
  bool sync_batch_norm = false;
  MasksFrom masks = MasksFrom::Device;
  bool marks_losses = false;  ///< record when the heads of a forward start and end (take_loss_marks)
};

/// The objects that an executor uses. All must outlive it. `replicas` is null for a stage on one rank.
struct ExecutorParts {
  const StageLayout& layout;
  StageId stage;
  ParameterStore& store;
  JobRules rules;
  Communicator& world;
  Communicator* replicas;
  Device& device;
  /// Empty: this rank holds no other stage, and nothing is tied.
  std::vector<std::vector<RankId>> ranks_of_stage{};
  MessageNumbers numbers{};  ///< separates the messages of several models on the same ranks
};

}  // namespace millrace
