// What the layers of a stage that CarriesState leave from one microbatch to the one whose samples follow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/check.h"

namespace millrace {

/// By step of the stage, then by CarriesState::carried(); empty for other layers.
using CarriedTensors = std::vector<std::vector<at::Tensor>>;

/// By position of the microbatch that left it. A microbatch depends on the one it follows and no other, so
/// any order of forwards in which those come first gives the same. Not thread-safe.
class CarriedStates {
 public:
  /// What the microbatch at `position` begins with, `follows` being its extent's; empty where its samples
  /// begin.
  CarriedTensors before(std::int64_t position, std::int64_t follows) {
    reach_ = std::max(reach_, follows);
    if (follows == 0) return {};
    const CarriedTensors* found = find(position - follows);
    MILLRACE_CHECK(found, "microbatch " << position << " follows one that has left nothing");
    return *found;
  }
  /// `oldest`: position of the oldest microbatch under way. What is twice as far behind it as microbatches
  /// follow each other is forgotten, once that is known: the ranks may rest, and save, after any that is
  /// through.
  void leave(std::int64_t position, CarriedTensors state, std::int64_t oldest) {
    by_position_[position] = std::move(state);
    if (reach_ > 0) by_position_.erase(by_position_.begin(), by_position_.lower_bound(oldest - 2 * reach_));
  }
  const CarriedTensors* find(std::int64_t position) const {
    const auto found = by_position_.find(position);
    return found == by_position_.end() ? nullptr : &found->second;
  }
  void clear() { by_position_.clear(); }

 private:
  std::map<std::int64_t, CarriedTensors> by_position_;
  std::int64_t reach_ = 0;  ///< greatest `follows`
};

}  // namespace millrace
