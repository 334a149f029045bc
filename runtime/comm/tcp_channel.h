// Messages between ranks of different hosts over TCP.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/channel.h"
#include "runtime/comm/store.h"

namespace millrace {

/// Connects this rank with `peers` (this rank itself is left out), all of which call this with each other
/// among theirs. It listens at `options.interface_address` until they are there. Both ends of each connection
/// prove that they know `options.token` and what the store has. Throws PeerError, ConfigError.
std::shared_ptr<Channel> make_tcp_channel(const CommunicatorOptions& options, const std::vector<int>& peers,
                                          Store& store);

}  // namespace millrace
