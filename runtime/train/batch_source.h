// Where batches come from. Implemented by data/loader.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace millrace {

/// One microbatch. A field that the caller did not ask for is undefined.
struct Batch {
  at::Tensor input;   // [B, ...] float32
  at::Tensor target;  // [B] int64
};

/// A sequence of microbatches, the same for the same seed on every rank, whatever the number of threads.
/// Position counts microbatches of the whole job (not of this rank). Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Microbatch at global position `position` = step * microbatches_per_step + microbatch. Positions asked
  /// for must ascend (seek resets); those in between are skipped without work. Throws DataError.
  virtual Batch get(std::int64_t position) = 0;
  virtual void seek(std::int64_t position) = 0;
};

}  // namespace millrace
