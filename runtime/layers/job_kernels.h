// Layers of B jobs in one kernel (Layer::over_jobs). B jobs, N samples of a microbatch of each.
#pragma once

#include "runtime/layers/transposed_convolution.h"

namespace millrace {

/// A kernel that makes one call of a library instead of B, each over as much as the jobs' layers work on: it
/// saves what starting them costs and nothing else.
class OneCall {
 public:
  virtual ~OneCall() = default;
};

LayerPtr linear_over_jobs();                          ///< [B, N, ..., I] -> [B, N, ..., O], batched products
LayerPtr conv_over_jobs(const ConvOptions& options);  ///< one convolution with B times as many channels
/// Channels of all jobs side by side; of `rows` they are the last dimension.
LayerPtr batch_norm_over_jobs(const BatchNormOptions& options, bool rows);
/// `groups` of one job.
LayerPtr group_norm_over_jobs(std::int64_t groups, double epsilon);
LayerPtr layer_norm_over_jobs(std::int64_t features, double epsilon);
LayerPtr learned_positions_over_jobs();
LayerPtr conv_transpose2d_over_jobs(const ConvTranspose2dOptions& options);  ///< B times the groups
/// The jobs' rows into one output; gradients are added to the rows that were read, without a table of zeros.
LayerPtr embedding_over_jobs(std::int64_t padding);

}  // namespace millrace
