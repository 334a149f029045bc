// The interface of a source of batches. data/loader implements it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/batch.h"

namespace millrace {

/// A sequence of microbatches. It is the same for the same seed on every rank, for any number of threads.
/// Positions count the microbatches of the whole run, not of one rank. Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Returns the microbatch at `position` = step * microbatches_per_step + microbatch. Positions must ascend
  /// between calls; skipped positions cost no work. After seek() they may start anywhere. Throws DataError.
  virtual Batch get(std::int64_t position) = 0;
  virtual void seek(std::int64_t position) = 0;
  /// Returns the sizes of the microbatch at `position` without loading it. Positions may be in any order.
  virtual BatchExtent extent(std::int64_t position) const = 0;
  /// Reads the microbatches [from, to) again, and returns the first sample in them that holds NaN or +Inf:
  /// "field x is NaN in sample 12 of rows.npz". Empty: none found among the numbers that it checks. It is for
  /// the message of a failed run: a read error is logged.
  virtual std::string nonfinite_sample(std::int64_t /*from*/, std::int64_t /*to*/) const { return {}; }
};

/// The hint for such a sample.
inline constexpr const char* kRepairSample = "repair the sample, or leave it out";

}  // namespace millrace
