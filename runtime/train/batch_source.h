// The interface of a source of batches. data/loader implements it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/batch.h"

namespace millrace {

/// A sequence of microbatches. It is the same for the same seed on every rank, whatever the number of
/// threads. Positions count the microbatches of the whole run, not of one rank. Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Returns the microbatch at `position` = step * microbatches_per_step + microbatch. Positions must ascend
  /// from call to call; the source skips those in between without work. After seek() they may start anywhere.
  /// Throws DataError.
  virtual Batch get(std::int64_t position) = 0;
  virtual void seek(std::int64_t position) = 0;
  /// Returns the sizes of the microbatch at `position` without loading it. Positions may come in any order.
  virtual BatchExtent extent(std::int64_t position) const = 0;
  /// Reads the microbatches [from, to) again, and returns the first sample in them that holds NaN or +Inf:
  /// "field x is NaN in sample 12 of rows.npz". Empty: none, or none in the first numbers that it looks at.
  /// It is for the message of a run that has failed: an error of reading is logged.
  virtual std::string nonfinite_sample(std::int64_t /*from*/, std::int64_t /*to*/) const { return {}; }
};

/// The hint beside such a sample.
inline constexpr const char* kRepairSample = "repair the sample, or leave it out";

}  // namespace millrace
