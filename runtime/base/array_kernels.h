// How the layers of a job array run (runtime/layers/job_array.h). LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"

namespace millrace {

enum class ArrayKernels {
  Auto,   ///< each as was faster when it first met its shapes
  Loop,   ///< job by job: the bits of B runs by themselves
  Fused,  ///< all jobs in one kernel where there is one
};
constexpr auto names_of(ArrayKernels) {
  return std::to_array<std::string_view>({"auto", "loop", "fused"});
}

}  // namespace millrace
