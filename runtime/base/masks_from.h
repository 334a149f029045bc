// Where dropout masks are drawn (runtime/layers/dropout_mask.h). LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class MasksFrom {
  Device,  ///< on the tensors' device: no wait, but a GPU drops other elements than the CPU
  Host,    ///< on the CPU, then copied: the same elements on every device
};
constexpr auto names_of(MasksFrom) {
  return std::to_array<std::string_view>({"device", "host"});
}

}  // namespace millrace
