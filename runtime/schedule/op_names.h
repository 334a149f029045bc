// The names of actions in text; PyTorch's names if it has them. Internal to this folder.
#pragma once

#include <array>

#include "runtime/schedule/schedule.h"

namespace millrace {

/// Index: Op.
constexpr std::array<const char*, 10> kOpNames{"F",      "B",      "I",      "W",      "SEND_F",
                                               "RECV_F", "SEND_B", "RECV_B", "REDUCE", "UPDATE"};

inline const char* name_of(Op op) {
  return kOpNames[static_cast<std::size_t>(op)];
}

}  // namespace millrace
