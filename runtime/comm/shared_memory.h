// Ranks of one host talk through shared memory: a message is two copies and no system call while both run.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/channel.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/store.h"

namespace millrace {

/// Returns a name that is equal for all processes of a host, in whatever name space.
std::string host_identity();

/// Returns a name that is equal for processes that can share memory: host, boot, process-id name space and
/// user.
std::string shared_memory_domain();

/// A channel between the ranks `local` (ascending, this rank among them) of a job of `options.size` ranks;
/// posts to other ranks are a bug. Collective over `local`. Throws PeerError if they do not all arrive within
/// the rendezvous deadline; null on all of them if one cannot open another's memory.
std::shared_ptr<Channel> make_shared_memory_channel(const CommunicatorOptions& options,
                                                    const std::vector<int>& local, Store& store);

}  // namespace millrace
