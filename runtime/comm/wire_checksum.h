// Checksums of messages: what a network or a memory changes on the way is found where it arrives.
#pragma once

#include <memory>

#include "runtime/comm/channel.h"

namespace millrace {

/// Sends after each message its XXH3 hash (64 bits) as a message of 8 bytes, and compares it where the
/// message arrives: wait() throws PeerError if they differ. All ranks have it or none. Tensors are on the
/// CPU.
std::shared_ptr<Channel> make_checked_channel(std::shared_ptr<Channel> channel);

}  // namespace millrace
