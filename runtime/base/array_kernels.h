// The kernels that execute the layers of a job array (runtime/layers/job_array.h). LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class ArrayKernels {
  Auto,   ///< each layer times both when it first sees a shape, and keeps the faster one
  Loop,   ///< job by job: the same bits as separate runs
  Fused,  ///< all jobs in one kernel where such a kernel exists
};
constexpr auto names_of(ArrayKernels) {
  return std::to_array<std::string_view>({"auto", "loop", "fused"});
}

}  // namespace millrace
