// Where this process stands in a job: the environment that `millrace launch` and torchrun give to a rank.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "driver/worker_options.h"
#include "runtime/base/result.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace millrace {

struct JobEnvironment {
  bool distributed = false;  ///< RANK or WORLD_SIZE is set
  int rank = 0;
  int local_rank = 0;  ///< on its host
  int size = 1;
  std::string store_folder;  ///< where the ranks of one host meet; empty: at `address`
  std::string address = "127.0.0.1";
  int port = 29500;
};

/// Problem: a variable that is no number, or out of range.
Result<JobEnvironment> read_environment();

/// The launcher's death ends this process too: no orphan holds memory or ports.
void die_with_launcher();

/// The process of `millrace launch` that started this one; 0: none.
int launcher_process();

struct JoinOptions {
  std::string backend = "auto";
  std::chrono::milliseconds deadline{100'000};
};

class Store;  // runtime/comm/store.h
struct JoinedJob {
  std::shared_ptr<Store> store;  ///< rank 0 serves the others from it until all have met
  std::unique_ptr<Communicator> communicator;
};

/// Meets the other ranks of a distributed job. Ranks of other hosts reach this one at the address from which
/// it reaches MASTER_ADDR. Throws PeerError, ConfigError.
JoinedJob join_job(const JobEnvironment& job, const JoinOptions& options, const Device& device,
                   const Accelerator& accelerator);

}  // namespace millrace
