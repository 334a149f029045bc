// How far the clocks of two ranks are apart, measured by messages as NTP does.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// The time to add to a rank's clock to get that of rank 0.
struct ClockOffset {
  std::int64_t ns = 0;
  /// The shortest round trip of a message. `ns` is off by at most half of it. 0: both ranks have one clock.
  std::int64_t round_trip_ns = 0;
};

/// Names the monotonic clock of this machine: processes with the same name read the same clock.
std::string name_of_steady_clock();

/// Measures the offset of this rank's `clock`. Ranks whose clocks have one `name` share it. The first rank of
/// each clock but rank 0's exchanges some messages with rank 0, one rank after the other, and the shortest
/// round trip counts for all ranks of its clock. Collective. Throws PeerError.
ClockOffset measure_clock_offset(Communicator& ranks, const Clock& clock, const std::string& name);

}  // namespace millrace
