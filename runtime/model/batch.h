// One microbatch as the engine sees it: tensors by field, and what is known of it before it is loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace millrace {

/// By index into LayeredModel::fields; a field that the caller did not ask for is undefined.
struct Batch {
  std::vector<at::Tensor> fields;
};

/// The same on every rank, from the sampler alone: no rank needs to be told the shape of a message.
struct BatchExtent {
  std::int64_t samples = 1;
  std::vector<std::int64_t> lengths;  ///< by LayeredModel::dimensions: the length everything is padded to
  std::vector<std::int64_t> counts;   ///< by LayeredModel::counts ("tokens": those that the loss counts)
  /// Its samples go on where those of the microbatch so many positions before ended; 0: they begin.
  std::int64_t follows = 0;

  bool operator==(const BatchExtent&) const = default;
};

/// Extent of the microbatch at a position of the job. Must be cheap: it is asked for again and again.
using ExtentOf = std::function<BatchExtent(std::int64_t position)>;

}  // namespace millrace
