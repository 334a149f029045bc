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

/// The states of a stage, by position of the microbatch that left them. A microbatch depends only on the one
/// that it follows. So every order of forwards in which that one comes first gives the same results. Not
/// thread-safe.
class CarriedStates {
 public:
  /// Returns the state that the microbatch at `position` begins with. `follows` is BatchExtent::follows. The
  /// state is empty if the microbatch's samples begin there.
  CarriedTensors before(std::int64_t position, std::int64_t follows) {
    reach_ = std::max(reach_, follows);
    if (follows == 0) return {};
    const CarriedTensors* found = find(position - follows);
    MILLRACE_CHECK(found, "microbatch " << position << " follows one that has left nothing");
    return *found;
  }
  /// Stores the state that the microbatch at `position` leaves. `oldest` is the position of the oldest
  /// microbatch in flight. States more than twice the greatest `follows` behind it are forgotten: the ranks
  /// may rest, and save, after any microbatch that is through.
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
  std::int64_t reach_ = 0;  ///< greatest `follows` so far; 0: none is known
};

}  // namespace millrace
