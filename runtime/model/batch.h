// One microbatch in the engine's representation: its tensors by field, and its sizes, which are known before
// it is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace millrace {

/// The tensors of a microbatch, by index in LayeredModel::fields. Fields that the caller did not request are
/// undefined.
struct Batch {
  std::vector<at::Tensor> fields;
};

/// The sizes of a microbatch. Every rank derives them from the sampler alone, so message shapes need not be
/// communicated.
struct BatchExtent {
  std::int64_t samples = 1;
  /// by LayeredModel::dimensions: the length that all samples are padded to
  std::vector<std::int64_t> lengths;
  /// by LayeredModel::counts, e.g. "tokens": the number by which the loss is weighted
  std::vector<std::int64_t> counts;
  /// The distance in positions to the earlier microbatch whose samples this one continues; 0: its samples
  /// start here.
  std::int64_t follows = 0;

  bool operator==(const BatchExtent&) const = default;
};

/// Returns the extent of the microbatch at a position of the run. It must be cheap, as it is called
/// repeatedly.
using ExtentOf = std::function<BatchExtent(std::int64_t position)>;

}  // namespace millrace
