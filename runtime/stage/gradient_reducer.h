// Joins the gradients of a stage's replicas, bucket by bucket, while the backward still computes.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/stage_program.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Does nothing where `replicas` is null: the stage is on one rank. Not thread-safe.
class GradientReducer {
 public:
  /// Of the layers of `program` that are not frozen.
  GradientReducer(ParameterStore& store, Communicator* replicas, const StageProgram& program,
                  std::int64_t bucket_bytes);

  /// Layer `layer` (position in the stage) and all after it have given their last gradient of the step: the
  /// buckets that are complete now are on their way.
  void ready(int layer);
  /// Sends what is left, the gradients of tied uses among it, and waits for everything.
  void finish();

 private:
  ParameterStore& store_;
  Communicator* replicas_;
  StageId stage_;
  std::vector<Bucket> buckets_;  ///< from the last layer to the first
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Pending>> pending_;
};

}  // namespace millrace
