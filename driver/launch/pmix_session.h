// PMIx, by which launchers of MPI jobs (mpirun, prterun, srun --mpi=pmix) tell a process its place and carry
// what processes say to each other before they are connected. Loads libpmix when it is asked for.
// LibTorch-free. Source: the PMIx standard, version 4.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "runtime/base/result.h"

namespace millrace {

/// Where this process stands in its job.
struct PmixPlace {
  int rank = 0, size = 1;
  int local_rank = 0;     ///< on its host
  bool one_host = false;  ///< all processes are on this host
  std::string job;        ///< the job's name: PMIx's namespace
};

/// A connection to the launcher's server on this host. One at a time in a process; not thread-safe. The end
/// of the object closes it, so that the launcher does not take a later end of the process for a crash.
class PmixSession {
 public:
  /// Problem: libpmix is missing, or the server does not answer within `deadline`.
  static Result<std::unique_ptr<PmixSession>> open(std::chrono::milliseconds deadline);
  virtual ~PmixSession() = default;

  virtual const PmixPlace& place() const = 0;
  /// All processes of the job call it; each gets what the one of rank 0 gave as `own`. Problem: some process
  /// did not call it within `deadline`, or the server failed. After a problem the session is of no use.
  virtual Result<std::string> from_rank_0(const std::string& own, std::chrono::milliseconds deadline) = 0;
};

}  // namespace millrace
