// The transports between ranks in processes of their own. LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class Backend {
  Auto,          ///< NCCL or shared memory where it goes, else TCP
  SharedMemory,  ///< ranks of one host
  Tcp,           ///< our own connections, which prove that both ends know the job's token
  Gloo,          ///< to compare with: its connections are neither authenticated nor encrypted
  Nccl,          ///< a GPU for every rank
};
constexpr auto names_of(Backend) {
  return std::to_array<std::string_view>({"auto", "shm", "tcp", "gloo", "nccl"});
}

}  // namespace millrace
