// Tasks that a scheduler of clusters started (Slurm's srun, mpirun, mpiexec): which one this process is, by
// the scheduler's environment variables. LibTorch-free.
#pragma once

#include <optional>
#include <string>

#include "runtime/base/result.h"

namespace millrace {

/// One of several tasks.
struct TaskPlace {
  std::string scheduler;  ///< for messages: "Slurm (srun)"
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< on its host
  bool one_host = false;
  std::string host;       ///< of task 0
  int port = 29500;       ///< where task 0 serves; Slurm: one for each job step
  std::string job;        ///< tells the steps of one cluster apart; may be empty
  std::string variables;  ///< that say so: "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4"
};

/// Nothing: no scheduler says that there are several tasks. The innermost one counts: Open MPI, PMI (MPICH,
/// Intel MPI), Slurm. Host: MASTER_ADDR, the first node of a Slurm step, or this one if all tasks are here.
/// Problem: there are several tasks, but the variables do not say which one this is, or where task 0 is; it
/// names them and what to set. Whoever has RANK or WORLD_SIZE need not ask.
Result<std::optional<TaskPlace>> task_of_environment();

/// Whether a launcher that speaks PMIx (mpirun, prterun, srun --mpi=pmix) started this process as a task, and
/// nobody says where the tasks meet (MASTER_ADDR): PMIx does (pmix_session.h). Not where a launcher inside
/// that one says something else.
bool is_task_of_pmix();

/// The first host of a Slurm list: "gpu01" of "gpu[01-04,7],login".
std::string first_host(const std::string& nodelist);

}  // namespace millrace
