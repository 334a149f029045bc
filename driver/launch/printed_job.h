// A job in the words of other launchers: `millrace launch --print`. Nothing is started. LibTorch-free.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "driver/launch/job_spec.h"
#include "runtime/base/result.h"

namespace millrace {

/// The forms that --print knows, in the order of its help.
enum class PrintedForm {
  Slurm,       ///< a script for sbatch
  Torchrun,    ///< a command for each host
  Mpi,         ///< a command for Open MPI's mpirun
  Kubernetes,  ///< a JobSet (jobset.x-k8s.io/v1alpha2) with its inputs, its secrets and its volume
  TrainJob     ///< a TrainJob and its runtime (trainer.kubeflow.org/v1alpha1), with the same
};

constexpr auto names_of(PrintedForm) {
  return std::to_array<std::string_view>({"slurm", "torchrun", "mpi", "kubernetes", "trainjob"});
}

/// Tells whether only its user may see a variable's value: its name has TOKEN, KEY, SECRET or PASSWORD in it.
bool is_secret(std::string name);

/// Returns the script, commands or manifest that run the job. `launch` is the command that the script of
/// Slurm runs. Problem: what the form cannot say, such as hosts with unequal numbers of ranks for torchrun,
/// a manifest without an image, or ranks that do not fill pods. A manifest has a new token on each call.
Result<std::string> printed_job(const JobSpec& job, PrintedForm form, const std::vector<std::string>& launch);

}  // namespace millrace
