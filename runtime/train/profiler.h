// Times every layer of a model on this machine and writes the LayerGraph that the planner reads.
#pragma once

#include <cstdint>
#include <functional>

#include "runtime/base/clock.h"
#include "runtime/device/device.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/stage/layered_model.h"
#include "runtime/stage/update_rule.h"
#include "runtime/train/profile_options.h"

namespace millrace {

/// A batch of random values, integers within their limits: on `device`.
Batch random_batch(const LayeredModel& model, const BatchExtent& extent, Device& device);

/// Forward, input gradient and weight gradient of each layer, the loss, the update rule and what it takes
/// more when the version before must be kept, in seconds for one microbatch of random data; bytes of
/// parameters, outputs, and of what backward keeps (each storage once). Each of them is waited for: kernels
/// of `device` do not overlap. Runs on the calling thread with its intra-op threads. Throws ConfigError if
/// the shapes do not fit.
LayerGraph profile_model(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                         Device& device);

}  // namespace millrace
