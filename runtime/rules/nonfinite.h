// Options for numbers that are NaN or infinite: what a run looks at, and what it does. LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

/// What follows on a loss or a gradient that is not finite: the run ends (exit code 6), the step leaves the
/// weights as they are, or the run goes back to its newest checkpoint.
enum class OnNonfinite { Stop, Skip, Rollback };
constexpr auto names_of(OnNonfinite) {
  return std::to_array<std::string_view>({"stop", "skip", "rollback"});
}

/// What is looked at in each step; each holds those before it.
enum class FiniteCheckOf { Loss, Gradients, Activations };
constexpr auto names_of(FiniteCheckOf) {
  return std::to_array<std::string_view>({"loss", "gradients", "activations"});
}

struct NonfiniteOptions {
  OnNonfinite on = OnNonfinite::Stop;
  FiniteCheckOf check = FiniteCheckOf::Loss;
};

/// The facts of a run that NonfiniteOptions must fit.
struct NonfiniteRun {
  bool asynchronous = false;  ///< no step ends at the same time on all stages
  bool scales_loss = false;   ///< steps whose gradient is not finite are skipped anyway
  bool several_jobs = false;  ///< a job array, or jobs in rounds
  bool saves = false;         ///< there will be checkpoints
};

/// Finds options that do not go with the run.
Problems validate(const NonfiniteOptions& options, const NonfiniteRun& run);

}  // namespace millrace
