// The kinds of devices that a rank computes on. LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class ComputeDevice { Cpu, Cuda };
constexpr auto names_of(ComputeDevice) {
  return std::to_array<std::string_view>({"cpu", "cuda"});
}

}  // namespace millrace
