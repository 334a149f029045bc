// The transports between ranks in processes of their own. LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class Backend {
  Auto,          ///< NCCL or shared memory where it goes, else Gloo
  SharedMemory,  ///< ranks of one host
  Gloo,
  Nccl,  ///< a GPU for every rank
};
constexpr auto names_of(Backend) {
  return std::to_array<std::string_view>({"auto", "shm", "gloo", "nccl"});
}

}  // namespace millrace
