// Built only into millrace-worker-cuda, where NCCL was found.
#pragma once

#include <memory>

#include "runtime/comm/nccl_api.h"

namespace millrace {

/// NCCL and CUDA for tensors on `device`. Throws PeerError if the library is older than the headers' major
/// version.
std::shared_ptr<NcclApi> make_nccl_library(at::Device device);

}  // namespace millrace
