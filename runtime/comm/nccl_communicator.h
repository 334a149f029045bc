#pragma once

#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl_api.h"
#include "runtime/comm/store.h"

namespace millrace {

/// Tensors on the device through `options.nccl`, those on the CPU (sums of losses, barriers, the stop vote)
/// through `host`, which joins the same ranks. Collective. Throws PeerError (rendezvous, NCCL's errors).
std::unique_ptr<Communicator> make_nccl_communicator(const CommunicatorOptions& options,
                                                     std::unique_ptr<Communicator> host,
                                                     std::shared_ptr<Store> store);

}  // namespace millrace
