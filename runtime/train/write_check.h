// Finds weights that something else than an update changed: a hash of each tensor before and after every
// action (--check-writes).
#pragma once

#include <deque>
#include <map>
#include <string>

#include "runtime/saved/hash.h"
#include "runtime/schedule/schedule.h"
#include "runtime/train/lane.h"

namespace millrace {

/// Looks at every version of the weights, running statistics, carried states and state of the rules of a
/// rank's stages. Mirrors of tied weights arrive at any time, so they are left out. Not thread-safe.
class WriteCheck {
 public:
  /// Compares with the call before, and keeps what is there now. `action`: it ran since then. Null: nothing
  /// did. `trains`: the action is no evaluation's. Throws InternalError with stage, layer and tensor if one
  /// changed that the action may not write (ForwardWrites).
  void look(const std::deque<Lane>& lanes, const Action* action, int array, bool trains);
  /// Forgets all hashes: the rank changes tensors itself, as evaluations of averaged weights do.
  void forget() { seen_.clear(); }

 private:
  enum class Kind { Weights, Statistics, Carried, RuleState };
  struct Seen {
    Kind kind;
    int array, stage;
    bool in_forward;  ///< a forward in training may write it
    Hash128 hash;
  };
  using Tensors = std::map<std::string, Seen>;  ///< by place and name, for messages
  static void add(const HeldStage& held, Tensors& tensors);
  static bool may_write(const Action& action, const Seen& tensor, bool trains);

  Tensors seen_;
};

}  // namespace millrace
