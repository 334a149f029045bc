// Finds the microbatches that may ask a GPU for something that it has not done yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/train/batch_source.h"

namespace millrace {

/// Runs of microbatches: steps, or pieces of an evaluation. LibTorch's libraries choose kernels by the sizes
/// of tensors, so a run is new if a microbatch has sizes that none before had. The first ones are new, too.
/// Their messages travel through the host (through_host). Not thread-safe.
class FirstUses {
 public:
  /// The rank runs microbatches [from, to) of `source` next, of each array. Sets the way of their messages.
  /// All ranks of `world` call it alike, as they do through_host(). Throws PeerError.
  void begin(Communicator& world, const std::vector<const BatchSource*>& sources, std::int64_t from,
             std::int64_t to);
  /// The next runs do something else than those before: they are as new as the first.
  void start_anew() { *this = {}; }

 private:
  int runs_ = 0;
  std::set<std::tuple<std::size_t, std::int64_t, std::vector<std::int64_t>>>
      seen_{};  ///< array, samples, lengths
};

/// Returns whether the microbatches [from, to) have different sizes.
bool sizes_vary(const BatchSource& source, std::int64_t from, std::int64_t to);

}  // namespace millrace
