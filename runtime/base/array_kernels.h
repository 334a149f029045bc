// The kernels with which layers of a job array run (runtime/layers/job_array.h). LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class ArrayKernels {
  Auto,   ///< each layer times both when it first meets its shapes, and keeps the faster one
  Loop,   ///< job by job: the same bits as separate runs
  Fused,  ///< all jobs in one kernel where there is one
};
constexpr auto names_of(ArrayKernels) {
  return std::to_array<std::string_view>({"auto", "loop", "fused"});
}

}  // namespace millrace
