#pragma once

#include <memory>

#include "runtime/comm/channel.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/store.h"

namespace millrace {

/// Makes a channel over TCP between processes. Throws PeerError if the ranks do not all arrive within the
/// rendezvous deadline.
std::shared_ptr<Channel> make_gloo_channel(const CommunicatorOptions& options, std::shared_ptr<Store> store);

}  // namespace millrace
