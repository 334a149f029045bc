// Options for numbers that are NaN or infinite: the values that a run checks, and its reaction.
// LibTorch-free.
#pragma once

#include <array>
#include <string_view>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

/// The reaction to a loss or gradient that is not finite. The run ends (exit code 6), the step leaves the
/// weights unchanged, or the run returns to its newest checkpoint.
enum class OnNonfinite { Stop, Skip, Rollback };
constexpr auto names_of(OnNonfinite) {
  return std::to_array<std::string_view>({"stop", "skip", "rollback"});
}

/// The values checked in each step; each choice includes the previous ones.
enum class FiniteCheckOf { Loss, Gradients, Activations };
constexpr auto names_of(FiniteCheckOf) {
  return std::to_array<std::string_view>({"loss", "gradients", "activations"});
}

struct NonfiniteOptions {
  OnNonfinite on = OnNonfinite::Stop;
  FiniteCheckOf check = FiniteCheckOf::Loss;
};

/// The properties of a run that NonfiniteOptions must fit.
struct NonfiniteRun {
  bool asynchronous = false;  ///< stages do not finish a step at the same time
  bool scales_loss = false;   ///< steps whose gradient is not finite are skipped in any case
  bool several_jobs = false;  ///< a job array, or jobs in rounds
  bool saves = false;         ///< the run saves checkpoints
};

/// Returns an error for each option that conflicts with the run.
Problems validate(const NonfiniteOptions& options, const NonfiniteRun& run);

}  // namespace millrace
