// A job as engines and queues take it: what to train, on how many ranks, and where. LibTorch-free.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "driver/hosts/agent_job.h"
#include "driver/hosts/host_list.h"
#include "driver/queues/containers.h"

namespace millrace {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

/// The hosts of a job whose ranks do not all run on this one.
struct JobHosts {
  std::string on;        ///< the engine: "ssh", "slurm", ... (engine.h); empty: this host has all ranks
  std::string list;      ///< as it was given: "node1:2,node2:2"; empty: the engine knows the hosts
  std::string workdir;   ///< the folder in which the ranks run; empty: the launcher's, on every host
  std::string millrace;  ///< the program on the hosts; empty: as the engine says
  std::string client;    ///< the engine's program; empty: the usual one
  Container container;
  /// The sections of engines: {"slurm", {{"partition", "gpu"}}}. Each option comes once.
  std::map<std::string, NamedTexts> options;
  bool requeue = false;  ///< a batch job that its queue stops goes on later

  /// Returns the section of this engine; empty: the job has none.
  const NamedTexts& options_of(const std::string& engine) const;

  // Known when the job is placed.
  std::vector<HostEntry> entries;
  std::vector<int> ranks;  ///< by host; the first ranks are on the first host
};

/// How often a job that fails is started again, and on which hosts (restarts.h).
struct JobRestarts {
  int most = 0;
  std::vector<HostEntry> spares;
  std::vector<std::string> smaller_plans;  ///< files, for fewer ranks; the first that fits is taken
};

struct JobSpec {
  std::string name;
  std::string source;      ///< the job file, for messages and for the resume command
  std::string worker;      ///< the program that its ranks run; empty: millrace's, for its device
  std::string output_dir;  ///< never empty; runs/NAME if the job does not say
  int ranks = 1;
  std::vector<int> stage_of_rank;  ///< -1: not known before the model is
  int loss_rank = -1;              ///< the first replica of the last stage; -1: not known
  JobHosts hosts;
  JobRestarts restarts;
  double heartbeat_s = 30;  ///< a rank without a sign of life for so long is lost; 0: none is
  NamedTexts environment;
  /// Flags of `train` without dashes, in the order of its --help, the model's own options behind the model;
  /// switches have the value "true".
  NamedTexts train;

  /// The flags of a job array that have a value for each of its jobs. `train` has the values of the first
  /// job.
  std::vector<std::pair<std::string, std::vector<std::string>>> lists;

  std::vector<std::string> notes;  ///< what was left out of a PipeDream job, one sentence each

  const std::string* find(std::string_view flag) const;  ///< nullptr if the job does not set it
};

inline std::chrono::milliseconds heartbeat_of(const JobSpec& job) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(job.heartbeat_s * 1e3));
}

/// The arguments of `millrace-worker` for a rank of this job: "train", "--model", "mlp", ...
std::vector<std::string> train_arguments(const JobSpec& job);

/// Returns the files and folders that arguments of `train` name, by themselves or behind `=`: hosts need
/// them.
std::vector<AgentInput> inputs_of(const std::vector<std::string>& argv, const std::string& output_dir);

/// Tells whether only its user may see a variable's value: its name has TOKEN, KEY, SECRET or PASSWORD in it.
bool is_secret(std::string name);

// ---- The ranks of a job that another launcher starts.

inline constexpr int kPrintedPort = 29500;  ///< where they meet: torchrun's
/// The command of every rank. The worker is looked for in PATH.
std::vector<std::string> printed_command(const JobSpec& job);
/// The variables of every rank, but for those that say which rank it is.
NamedTexts printed_variables(const JobSpec& job);
/// Puts all ranks of a job without hosts on "localhost".
JobHosts printed_hosts(const JobSpec& job);

}  // namespace millrace
