// Messages between ranks of different hosts over TCP.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/channel.h"
#include "runtime/comm/store.h"

namespace millrace {

/// Meets all ranks of the job in `store`, which is not needed afterwards. `hosts` has the first rank of each
/// rank's host; ranks of one host set one value together. The channel listens at `options.interface_address`
/// as long as it lives. The first message between two ranks makes their connection: post() then takes as long
/// as that, `options.deadline` at most. Both ends prove that they know `options.token` and a secret of the
/// store. Throws PeerError, ConfigError.
std::shared_ptr<Channel> make_tcp_channel(const CommunicatorOptions& options, const std::vector<int>& hosts,
                                          Store& store);

}  // namespace millrace
