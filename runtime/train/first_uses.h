// Finds the microbatches for which a GPU may have to initialise or load kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/train/batch_source.h"

namespace millrace {

/// Groups of microbatches: steps, or pieces of an evaluation. LibTorch's libraries choose kernels by tensor
/// sizes, so a group is new if a microbatch has sizes that no earlier one had. The first groups are new, too.
/// Their messages are sent through the host (through_host). Not thread-safe.
class FirstUses {
 public:
  /// Must be called before the rank runs microbatches [from, to) of each array's source. Sets the path of
  /// their messages. All ranks of `world` must make the same calls, as for through_host(). Throws PeerError.
  void begin(Communicator& world, const std::vector<const BatchSource*>& sources, std::int64_t from,
             std::int64_t to);
  /// The next groups do other work than the earlier ones: they are as new as the first.
  void start_anew() { *this = {}; }

 private:
  int runs_ = 0;
  std::set<std::tuple<std::size_t, std::int64_t, std::vector<std::int64_t>>>
      seen_{};  ///< array, samples, lengths
};

/// Returns whether the microbatches [from, to) have different sizes.
bool sizes_vary(const BatchSource& source, std::int64_t from, std::int64_t to);

}  // namespace millrace
