#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl_api.h"
#include "runtime/comm/store.h"

namespace millrace {

/// Tensors on the device through `options.nccl`, those on the CPU (sums of losses, barriers, the stop vote)
/// through `host`, which joins the same ranks and takes tensors on the device as well. Collective. Throws
/// PeerError (rendezvous, NCCL's errors).
std::unique_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options,
                                                     std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<Store> store);

inline constexpr std::int64_t kAllMessages = std::numeric_limits<std::int64_t>::max();

/// The next `messages` messages of each rank to each other one travel through the host, and as many sums of
/// each group; an earlier call is forgotten. Receives that were posted before are waited for. All ranks of
/// the job call it after the same messages. Transports other than NCCL ignore it.
/// The reason: the first use of a kernel waits until its GPU has done all work, and new memory may wait, too.
/// A receive of NCCL is such work. It waits for a peer, which may wait for this very rank. So no message of
/// NCCL may be posted around work that may be new to a GPU. Throws PeerError.
void through_host(Communicator& communicator, std::int64_t messages);

}  // namespace millrace
