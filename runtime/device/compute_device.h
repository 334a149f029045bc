// The kinds of devices that a rank computes on. LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class ComputeDevice {
  Cpu,
  Cuda,
  Emulated,  ///< takes the time that a profile specifies, and computes nothing (runtime/emulation)
};
constexpr auto names_of(ComputeDevice) {
  return std::to_array<std::string_view>({"cpu", "cuda", "emulated"});
}

/// The time in which emulated devices run.
enum class EmulatedClock {
  Wall,     ///< the host's time: a step takes as long as on the devices
  Virtual,  ///< jumps from event to event; ranks are threads of one process
};
constexpr auto names_of(EmulatedClock) {
  return std::to_array<std::string_view>({"wall", "virtual"});
}

/// The payload of messages between emulated devices.
enum class EmulatedPayload {
  None,   ///< a timestamp: only emulated links take time for a tensor's bytes
  Bytes,  ///< zeros, as many as the tensor has: the transport takes time for them
};
constexpr auto names_of(EmulatedPayload) {
  return std::to_array<std::string_view>({"none", "bytes"});
}

}  // namespace millrace
