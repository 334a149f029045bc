// Where batches come from. Implemented by data/loader.
#pragma once

#include <cstdint>

#include "runtime/model/batch.h"

namespace millrace {

/// A sequence of microbatches, the same for the same seed on every rank, whatever the number of threads.
/// Position counts microbatches of the whole job (not of this rank). Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Microbatch at global position `position` = step * microbatches_per_step + microbatch. Positions asked
  /// for must ascend (seek resets); those in between are skipped without work. Throws DataError.
  virtual Batch get(std::int64_t position) = 0;
  virtual void seek(std::int64_t position) = 0;
  /// What is known of it without loading it; for any position, in any order.
  virtual BatchExtent extent(std::int64_t position) const = 0;
};

}  // namespace millrace
