// Times messages between all pairs of ranks over the transport that training would use.
#pragma once

#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/plan/network_profile.h"

namespace millrace {

struct NetworkOptions {
  int round_trips = 200;         ///< counted round trips of small messages for each pair
  Bytes largest = 4 * kMiB;      ///< the sweep's largest message, at least kSmallestSweep
  double seconds_a_size = 0.03;  ///< about how long a size is repeated; a few times at least
};

inline constexpr Bytes kSmallestSweep = 64 * kKiB;

/// Times of the whole job's all-reduce: the median of a few.
struct ReduceMeasurement {
  Bytes bytes = 0;
  double seconds = 0;
};

struct NetworkMeasurement {
  std::vector<LinkMeasurement> links;  ///< every pair, in the order (0, 1), (0, 2), ..., (1, 2), ...
  std::vector<ReduceMeasurement> reduces;
};

/// Collective; every rank gets the whole answer. Pairs are measured one after the other while all other ranks
/// wait in a barrier, so `communicator`'s deadline is also that of the longest pair (about a second on a fast
/// link). Of each pair the lower rank drives: round trips of small messages; then for each size a message one
/// way with a small answer, and a small message with an answer of that size. Tensors are on `device`; a
/// message is timed until the receiver may compute with it. At least 2 ranks. Throws PeerError.
NetworkMeasurement profile_network(Communicator& communicator, Device& device, Clock& clock,
                                   const NetworkOptions& options);

}  // namespace millrace
