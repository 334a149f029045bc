// Sums a stage's gradients over its replicas, bucket by bucket, during the backward.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/stage_program.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Reduces the gradients of one stage. If `replicas` is null, the stage is on one rank and nothing is done.
/// Not thread-safe.
class GradientReducer {
 public:
  /// Makes buckets of about `bucket_bytes` each for those layers of `program` that are not frozen. `store`
  /// and `replicas` must outlive the object.
  GradientReducer(ParameterStore& store, Communicator* replicas, const StageProgram& program,
                  std::int64_t bucket_bytes);

  /// Reports that layer `layer` (index in the stage) and all later ones have added their last gradient of the
  /// step. Starts the all-reduce of the buckets that are now complete.
  void ready(int layer);
  /// Reduces the remaining buckets, the gradients of tied uses and those of tables, and waits for all
  /// reductions.
  void finish();

 private:
  void reduce_tables();
  ParameterStore& store_;
  Communicator* replicas_;
  StageId stage_;
  std::vector<Bucket> buckets_;  ///< from the last layer to the first
  /// Slots whose gradients are reduced only for rows that some replica has touched (ParameterStore::table)
  std::vector<std::size_t> tables_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Pending>> pending_;
};

}  // namespace millrace
