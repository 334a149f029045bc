// What judges a run's weights besides its loss, e.g. the BLEU of translations. The trainer calls it; it is
// implemented where models and data meet.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/checkpoint/safetensors.h"
#include "runtime/layers/head.h"

namespace millrace {

/// Every rank has one, and all are called alike. The work is cut into rounds, between which the ranks look
/// whether one of them was asked to stop. Not thread-safe.
class WeightsScore {
 public:
  virtual ~WeightsScore() = default;
  virtual std::string what() const = 0;     ///< "translating", for messages
  virtual std::int64_t rounds() const = 0;  ///< the same on all ranks
  /// The whole model's parameters by name, float32 on the CPU, the same on all ranks. They do not change
  /// until `end`.
  virtual void begin(const NamedTensors& weights) = 0;
  /// This rank's part of a round, in any thread; must not communicate.
  virtual void work(std::int64_t round) = 0;
  /// Collective, after the last round: the values, the same on all ranks. The first is the one that a target
  /// is set for. Throws NumericError (on all ranks): the weights are worth nothing.
  virtual NamedValues finish(std::int64_t step) = 0;
  /// Forgets the weights; also where the rounds were left.
  virtual void end() = 0;
};

}  // namespace millrace
