// The interface of a score of a run's weights in addition to their loss, e.g. the BLEU of translations. The
// trainer calls it. Code that knows both models and data implements it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/layers/head.h"

namespace millrace {

/// A score of the weights. Every rank has one, and all ranks make the same calls. The work is divided into
/// parts. Between parts the ranks check for a stop request. Not thread-safe.
class WeightsScore {
 public:
  virtual ~WeightsScore() = default;
  virtual std::string what() const = 0;    ///< the work's name in messages, e.g. "translating"
  virtual std::int64_t parts() const = 0;  ///< number of parts, the same on all ranks
  /// Receives the whole model's parameters and buffers by name, on the CPU, the same on all ranks. They do
  /// not change until end().
  virtual void begin(const NamedTensors& weights) = 0;
  /// Does this rank's share of a part. It may be called in any thread and must not communicate.
  virtual void work(std::int64_t part) = 0;
  /// Returns the values, the same on all ranks. The target score is for the first value. Collective; called
  /// after the last part. Throws NumericError, on all ranks, if the weights are useless.
  virtual NamedValues finish(std::int64_t step) = 0;
  /// Releases the weights. It is also called if the parts were interrupted.
  virtual void end() = 0;
};

}  // namespace millrace
