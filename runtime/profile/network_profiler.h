// Times messages between all pairs of ranks over the transport that training would use.
#pragma once

#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/plan/network_profile.h"

namespace millrace {

struct NetworkOptions {
  int round_trips = 200;     ///< counted round trips of small messages for each pair
  Bytes largest = 4 * kMiB;  ///< the sweep's largest message, at least kSmallestSweep
  /// approximate seconds of repetitions for one size in one direction; each has at least a few repetitions
  double seconds_a_size = 0.03;
};

inline constexpr Bytes kSmallestSweep = 64 * kKiB;

/// The median time of several all-reduces over all ranks.
struct ReduceMeasurement {
  Bytes bytes = 0;
  double seconds = 0;
};

struct NetworkMeasurement {
  std::vector<LinkMeasurement> links;  ///< every pair, in the order (0, 1), (0, 2), ..., (1, 2), ...
  std::vector<ReduceMeasurement> reduces;
};

/// Measures the links of all pairs of ranks and the all-reduce over all ranks. Collective; every rank gets
/// the whole result. At least 2 ranks. Throws PeerError.
/// Pairs are measured one after another while all other ranks wait in a barrier. `communicator`'s deadline
/// therefore also limits the time of the longest pair (about a second on a fast link). The lower rank of a
/// pair drives. It times round trips of small messages. Then, for each size, it times a message of that size
/// with a small reply, and a small message with a reply of that size. Tensors are on `device`. The time of a
/// message ends when the receiver may compute with it.
NetworkMeasurement profile_network(Communicator& communicator, Device& device, Clock& clock,
                                   const NetworkOptions& options);

}  // namespace millrace
