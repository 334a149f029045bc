// Layers that compute B jobs in one kernel (Layer::over_jobs). N is the number of samples in each job's
// microbatch.
#pragma once

#include "runtime/layers/transposed_convolution.h"

namespace millrace {

/// A kernel that makes one library call instead of B calls, on as many elements. It saves only launch
/// overhead.
class OneCall {
 public:
  virtual ~OneCall() = default;
};

LayerPtr linear_over_jobs();                          ///< [B, N, ..., I] -> [B, N, ..., O], batched products
LayerPtr conv_over_jobs(const ConvOptions& options);  ///< one convolution with B times as many channels
/// Concatenates the channels of all jobs. With `rows` the channels are the last dimension.
LayerPtr batch_norm_over_jobs(const BatchNormOptions& options, bool rows);
/// `groups` is the number of groups of one job.
LayerPtr group_norm_over_jobs(std::int64_t groups, double epsilon);
LayerPtr layer_norm_over_jobs(std::int64_t features, double epsilon);
LayerPtr learned_positions_over_jobs();
/// one convolution with B times the groups
LayerPtr conv_transpose_over_jobs(const ConvTransposeOptions& options);
/// Writes the rows of all jobs into one output. Gradients are added to the rows that were read, without a
/// dense table of zeros.
LayerPtr embedding_over_jobs(std::int64_t padding);

}  // namespace millrace
