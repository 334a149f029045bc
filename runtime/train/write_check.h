// Finds weights that changed without an update: hashes each tensor before and after every action
// (--check-writes).
#pragma once

#include <deque>
#include <map>
#include <string>

#include "runtime/saved/hash.h"
#include "runtime/schedule/schedule.h"
#include "runtime/train/lane.h"

namespace millrace {

/// Checks every version of the weights, running statistics, carried states and rule state of a rank's stages.
/// Mirrors of tied weights are received at any time, so they are left out. Not thread-safe.
class WriteCheck {
 public:
  /// Compares with the previous call, and stores the current hashes. `action`: the action since then. Null:
  /// there was none. `trains`: the action is not part of an evaluation. Throws InternalError with stage,
  /// layer and tensor if one changed that the action may not write (ForwardWrites).
  void look(const std::deque<Lane>& lanes, const Action* action, int array, bool trains);
  /// Discards all hashes: the rank itself changes tensors, as evaluations of averaged weights do.
  void forget() { seen_.clear(); }

 private:
  enum class Kind { Weights, Statistics, Carried, RuleState };
  struct Seen {
    Kind kind;
    int array, stage;
    bool in_forward;  ///< a training forward may write it
    Hash128 hash;
  };
  using Tensors = std::map<std::string, Seen>;  ///< by location and name, for messages
  static void add(const HeldStage& held, Tensors& tensors);
  static bool may_write(const Action& action, const Seen& tensor, bool trains);

  Tensors seen_;
};

}  // namespace millrace
