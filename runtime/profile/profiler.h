// Times every layer of a model on this machine and writes the LayerGraph that the planner reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/device/device.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/profile/profile_options.h"
#include "runtime/stage/update_rule.h"
#include "runtime/train/batch_source.h"

namespace millrace {

/// Returns a batch of random values on `device`. Integers are within the limits of their fields.
Batch random_batch(const LayeredModel& model, const BatchExtent& extent, Device& device);

/// The microbatches to measure. If empty, the profiler uses random data with the model's nominal lengths.
struct ProfileBatches {
  struct One {
    BatchExtent extent;
    Batch batch;  ///< all fields
  };
  std::vector<One> timed;
  /// the microbatch for which memory is measured; unset: the last of `timed`
  std::optional<One> longest;
};

/// Returns at least `count` microbatches of the first `steps` steps of `source`, or all if there are fewer.
/// It selects whole steps, evenly spread from the shortest to the longest (by the elements of their fields).
/// Microbatches of a step keep their order. Also returns the longest microbatch. Throws DataError.
ProfileBatches spread_batches(const LayeredModel& model, BatchSource& source, std::int64_t steps,
                              int microbatches_per_step, int count, Device& device);

/// Measures a model layer by layer. Runs on the calling thread with its intra-op threads. Throws ConfigError
/// if the shapes do not fit.
/// Times are seconds for one microbatch. They cover forward, input gradient and weight gradient of each
/// layer, the loss, the update, and the norm of the gradient. They include the extra time of an update when
/// the previous version must be kept. Each time is measured separately: the host waits for the device, so
/// kernels do not overlap. Bytes are those of parameters, of outputs, and of the tensors that a layer keeps
/// until its backward (each storage once).
/// Times and message bytes are means over `batches.timed`, and are also given for each microbatch if lengths
/// differ. Memory is that of the longest microbatch. If `batches` is empty, one microbatch of random data is
/// measured.
/// A model trained in turns (turns.h): a layer's times are those of all turns together, and its memory is
/// that of the turn with the most. LayerGraph::turns has each turn separately.
/// A job array (model/fuse.h): times are those of all jobs together. It chooses its kernels in uncounted
/// passes.
LayerGraph profile_model(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                         Device& device, ProfileBatches batches = {});

/// The work of a run outside the passes of the measured jobs.
struct BetweenMicrobatches {
  /// the tensors of rule state, each as large as the weights (states_of(), rule_table.h)
  int rule_states = 2;
  int microbatches = 1;  ///< microbatches per update
  /// jobs whose weights, gradients and rule state are read before each measured microbatch
  int other_jobs = 0;
};

/// Returns the seconds of one microbatch of random data with nominal lengths, forward and backward, through
/// the whole model as one stage and in all turns. It includes the microbatch's share of an update's reads and
/// writes. The result is the shortest of `options.repetitions` passes. An uncounted pass precedes them, in
/// which a job array chooses its kernels. No measurements are kept. Throws ConfigError as profile_model()
/// does.
double microbatch_seconds(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                          Device& device, const BetweenMicrobatches& between);

}  // namespace millrace
