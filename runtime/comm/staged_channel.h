#pragma once

#include <memory>

#include "runtime/comm/channel.h"

namespace millrace {

enum class Staging {
  DeviceTensors,  ///< tensors on the CPU go straight through
  Everything,     ///< for tests
};

/// Tensors on a device over a channel that knows only the CPU, through page-locked memory: a send waits for
/// the work that makes the tensor and copies it; a received message is copied onto the device, in order with
/// what follows. Slower than NCCL (two more copies, and the host waits), and works between any two ranks.
std::shared_ptr<Channel> make_staged_channel(std::shared_ptr<Channel> host,
                                             Staging staging = Staging::DeviceTensors);

}  // namespace millrace
