// The device on which the masks of dropout are drawn (runtime/layers/dropout_mask.h). LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class MasksFrom {
  Device,  ///< where the tensors are: nothing waits, and a GPU drops other elements than the CPU
  Host,    ///< on the CPU, and copied: the same everywhere
};
constexpr auto names_of(MasksFrom) {
  return std::to_array<std::string_view>({"device", "host"});
}

}  // namespace millrace
