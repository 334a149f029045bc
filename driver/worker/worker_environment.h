// This process's place in a job: the environment that `millrace launch` and torchrun give to a rank.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "driver/worker/worker_options.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace millrace {

class PmixSession;  // driver/launch/pmix_session.h

struct JobEnvironment {
  bool distributed = false;  ///< RANK or WORLD_SIZE is set, or a scheduler's variables define several tasks
  int rank = 0;
  int local_rank = 0;  ///< on its host
  int size = 1;
  bool one_host = false;     ///< all ranks are known to be on this host
  std::string store_folder;  ///< where the ranks of one host meet; empty: at `address`
  std::string address = "127.0.0.1";
  int port = 29500;
  std::string job;        ///< TORCHELASTIC_RUN_ID, or the scheduler's job, if there is one
  std::string scheduler;  ///< "Slurm (srun): SLURM_PROCID=1 ..."; empty: RANK sets this process's rank
  bool bind_all = false;  ///< MILLRACE_BIND_ALL=1: rank 0 may listen on all addresses of its host
  std::string token;      ///< of MILLRACE_TOKEN or MILLRACE_TOKEN_FILE; all ranks must have the same
  std::optional<HostFolder> host_folder{};  ///< TrainOptions::host_folder
  /// Through it rank 0 sends `address`, `port` and `token` to the others when they join; null: they are
  /// known.
  std::shared_ptr<PmixSession> pmix{};
  bool has_launcher = false;  ///< millrace's own: it made the store's folder, for this job only
};

/// Reads torchrun's variables; without them queries PMIx, or reads those of Slurm and MPI
/// (task_environment.h). Problem: a variable that is no number or out of range; several tasks with incomplete
/// variables; a token's file that others may read.
Result<JobEnvironment> read_environment();

/// The launcher's death ends this process too: no orphan holds memory or ports.
void die_with_launcher();

/// Returns the run for which `millrace launch` holds the output folder's lock; empty: it did not start this
/// process.
std::string launched_run();
/// Returns whether the launcher combines the state of surviving ranks after a failure, since it restarts the
/// job.
bool launcher_rescues();

/// Returns how long the command has run of which this process, or the launcher's newest order to it, is
/// `age` old: kSpent (rank_process.h) adds the launcher's time.
Seconds age_of_command(Seconds age);

/// Returns the faults that a test plants by MILLRACE_FAILPOINTS (failpoint.h).
Result<std::vector<Failpoint>> planted_failpoints();

struct JoinOptions {
  Backend backend = Backend::Auto;
  std::chrono::milliseconds deadline{100'000};  ///< of every wait, the meeting's too
  std::chrono::milliseconds meets_later{0};     ///< added to the meeting's: others are still being started
  std::string purpose;                          ///< the same on all ranks: jobs that differ in it do not meet
  bool encrypt = false;                         ///< connections between hosts, and with the store, use TLS
  std::vector<ChannelDecorator> decorators;     ///< of the channels between ranks
  FlightRecorder* recorder = nullptr;           ///< CommunicatorOptions'
};

class Store;  // runtime/comm/store.h
struct JoinedJob {
  /// Null after the meeting, with its files removed, unless the communicator still uses it (NCCL).
  std::shared_ptr<Store> store;
  std::unique_ptr<Communicator> communicator;
};

/// Meets the other ranks of a distributed job. Ranks of other hosts reach this one at the address from which
/// it reaches MASTER_ADDR. Throws PeerError, ConfigError.
JoinedJob join_job(const JobEnvironment& job, const JoinOptions& options, const Device& device,
                   const Accelerator& accelerator);

}  // namespace millrace
