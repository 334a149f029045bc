// The kinds of devices that a rank computes on. LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class ComputeDevice {
  Cpu,
  Cuda,
  Emulated,  ///< takes the time that a profile says, and computes nothing (runtime/emulation)
};
constexpr auto names_of(ComputeDevice) {
  return std::to_array<std::string_view>({"cpu", "cuda", "emulated"});
}

/// The time in which emulated devices work.
enum class EmulatedClock {
  Wall,     ///< the host's: a step takes as long as on the devices
  Virtual,  ///< it jumps from event to event; ranks are threads of one process
};
constexpr auto names_of(EmulatedClock) {
  return std::to_array<std::string_view>({"wall", "virtual"});
}

/// The content of messages of emulated devices.
enum class EmulatedPayload {
  None,   ///< a time stamp: only emulated links take time for the bytes of a tensor
  Bytes,  ///< zeros, as many as the tensor has: what joins the ranks takes time for them
};
constexpr auto names_of(EmulatedPayload) {
  return std::to_array<std::string_view>({"none", "bytes"});
}

}  // namespace millrace
