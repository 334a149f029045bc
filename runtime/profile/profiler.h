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

/// A batch of random values, integers within their limits: on `device`.
Batch random_batch(const LayeredModel& model, const BatchExtent& extent, Device& device);

/// Microbatches to measure with instead of random data of the model's nominal lengths.
struct ProfileBatches {
  struct One {
    BatchExtent extent;
    Batch batch;  ///< all fields
  };
  std::vector<One> timed;
  std::optional<One> longest;  ///< for the bytes of memory; else the last of `timed`
};

/// At least `count` microbatches of the first `steps` steps of `source` (or all there are): whole steps,
/// evenly spread from the shortest to the longest (by the elements of their fields), as they follow each
/// other in the steps; and the longest microbatch. Throws DataError.
ProfileBatches spread_batches(const LayeredModel& model, BatchSource& source, std::int64_t steps,
                              int microbatches_per_step, int count, Device& device);

/// Forward, input gradient and weight gradient of each layer, the loss, the update rule, what it takes more
/// when the version before must be kept, and the norm of the gradient, in seconds for one microbatch of
/// random data; bytes of parameters, outputs, and of what backward keeps (each storage once). Each of them is
/// waited for: kernels of `device` do not overlap. Runs on the calling thread with its intra-op threads.
/// Throws ConfigError if the shapes do not fit. Times and bytes of messages are means over `batches.timed`,
/// and of each of them where lengths differ; memory is that of the longest. Of a model that is trained in
/// turns (turns.h) times are those of all turns together and memory that of the one with the most, for each
/// layer; LayerGraph::turns has each by itself. Of a job array (stage/fuse.h) all jobs together; its kernels
/// are chosen before anything counts.
LayerGraph profile_model(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                         Device& device, ProfileBatches batches = {});

/// What a run does beside the passes of the jobs that are measured.
struct BetweenMicrobatches {
  int rule_states = 2;   ///< of their update: tensors as large as the weights (states_of(), rule_table.h)
  int microbatches = 1;  ///< from one update to the next
  int other_jobs = 0;    ///< whose weights, gradients and rule state are read before each microbatch
};

/// Seconds of a microbatch of random data of the nominal lengths through the whole model as one stage,
/// forward to backward, all turns, and its share of what an update reads and writes: the least of
/// `options.repetitions` after the first, in which a job array chooses its kernels. Nothing of it is kept.
/// Throws ConfigError as profile_model() does.
double microbatch_seconds(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                          Device& device, const BetweenMicrobatches& between);

}  // namespace millrace
