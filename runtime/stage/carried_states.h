// The states that layers with CarriesState carry from one microbatch to the microbatch that continues its
// samples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/check.h"

namespace millrace {

/// The states of a stage: by step of the stage, then by CarriesState::carried(); empty for other layers.
using CarriedTensors = std::vector<std::vector<at::Tensor>>;

/// The states of a stage, by position of the microbatch after which they were stored. A microbatch depends
/// only on the one that it follows. Every order of forwards in which that one is earlier gives the same
/// results. Not thread-safe.
class CarriedStates {
 public:
  /// Returns the initial state of the microbatch at `position`. `follows` is BatchExtent::follows. The state
  /// is empty if the microbatch's samples start there.
  CarriedTensors before(std::int64_t position, std::int64_t follows) {
    reach_ = std::max(reach_, follows);
    if (follows == 0) return {};
    const CarriedTensors* found = find(position - follows);
    MILLRACE_CHECK(found, "microbatch " << position << " follows one that has left nothing");
    return *found;
  }
  /// Stores the state after the microbatch at `position`. `oldest` is the position of the oldest microbatch
  /// in flight. States older than `oldest` by more than twice the largest `follows` are dropped: the ranks
  /// may pause, and save, after any completed microbatch.
  void leave(std::int64_t position, CarriedTensors state, std::int64_t oldest) {
    by_position_[position] = std::move(state);
    if (reach_ > 0) by_position_.erase(by_position_.begin(), by_position_.lower_bound(oldest - 2 * reach_));
  }
  const CarriedTensors* find(std::int64_t position) const {
    const auto found = by_position_.find(position);
    return found == by_position_.end() ? nullptr : &found->second;
  }
  /// Reverts the microbatches at `first` and later: each stores its initial state as its final one.
  /// `skipped`: by job; other jobs' states are unchanged. `follows_of` returns BatchExtent::follows by
  /// position.
  template <class FollowsOf>
  void take_back(std::int64_t first, const std::vector<char>& skipped, FollowsOf&& follows_of) {
    for (auto at = by_position_.lower_bound(first); at != by_position_.end(); ++at) {
      const std::int64_t follows = follows_of(at->first);
      const CarriedTensors* before = follows == 0 ? nullptr : find(at->first - follows);
      for (std::size_t l = 0; l < at->second.size(); ++l) {
        std::vector<at::Tensor>& own = at->second[l];
        for (std::size_t k = 0; k < own.size(); ++k)
          if (skipped[k / (own.size() / skipped.size())]) own[k] = before ? (*before)[l][k] : at::Tensor();
      }
    }
  }
  const std::map<std::int64_t, CarriedTensors>& all() const { return by_position_; }
  void clear() { by_position_.clear(); }

 private:
  std::map<std::int64_t, CarriedTensors> by_position_;
  std::int64_t reach_ = 0;  ///< largest `follows` so far; 0: unknown
};

}  // namespace millrace
