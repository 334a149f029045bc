// Links of another network than the one that is there.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/channel.h"
#include "runtime/comm/emulated_ports.h"

namespace millrace {

/// One direction of the wire between two ranks. A message occupies it for bytes x seconds_per_byte, after
/// those that were posted before it, and arrives latency_s later: the simulator's model of a link.
struct EmulatedWire {
  double latency_s = 0;
  double seconds_per_byte = 0;
};

class LinkCourier;  // the thread that hands on the messages of all ranks of this process
std::shared_ptr<LinkCourier> make_link_courier();

struct EmulatedNetwork {
  std::function<EmulatedWire(int from, int to)> wire;  ///< pure: called when a first message goes that way
  std::vector<int> hosts;                              ///< by rank (Channel::hosts)
  std::shared_ptr<EmulatedPorts> ports{};              ///< that messages share; null: none are shared
  std::shared_ptr<LinkCourier> courier = make_link_courier();  ///< copies share it; one clock at a time
};

/// Messages arrive no earlier than on `network`, by the clock of `inner`; what `inner` takes for them comes
/// on top. A message that takes no ports has a wire of its pair of ranks and its direction. The bytes are the
/// same.
std::shared_ptr<Channel> make_emulated_links(std::shared_ptr<Channel> inner, const EmulatedNetwork& network);

}  // namespace millrace
