// A job as `millrace launch` reads it: what to train, on how many ranks, and where the results go.
// LibTorch-free.
//   name, ranks, worker, env: {K: V}, args: {FLAG: VALUE}, the keys of JobHosts and JobRestarts, and any flag
//   of `millrace train` as a key, the model's own options included (docs/commands/launch.md). With `fused:
//   true` flags take lists, a value for each job of the array.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "driver/hosts/engines.h"
#include "driver/hosts/host_list.h"
#include "driver/launch/model_flags.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Where the ranks of a job run, if not all on this host.
struct JobHosts {
  std::string on;        ///< the engine: "ssh", "slurm", ... (engines.h); empty: this host has all ranks
  std::string list;      ///< as it was given: "node1:2,node2:2"; empty: the engine knows the hosts
  std::string workdir;   ///< the folder in which the ranks run; empty: the launcher's, on every host
  std::string millrace;  ///< the program on the hosts; empty: as the engine says
  std::string client;    ///< the engine's program; empty: the usual one
  Container container;
  std::vector<std::pair<std::string, std::string>> slurm;  ///< options of sbatch: {"partition", "gpu"}
  /// Values of printed manifests: {"ranks-per-pod", "4"}, "cpu", "memory", "storage".
  std::vector<std::pair<std::string, std::string>> kubernetes;
  bool requeue = false;  ///< a job that Slurm stops goes on later

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
  std::vector<std::pair<std::string, std::string>> environment;
  /// Flags of `train` without dashes, in the order of its --help, the model's own options behind the model;
  /// switches have the value "true".
  std::vector<std::pair<std::string, std::string>> train;

  /// The flags of a job array that have a value for each of its jobs. `train` has the values of the first
  /// job.
  std::vector<std::pair<std::string, std::vector<std::string>>> lists;

  std::vector<std::string> notes;  ///< what was left out of a PipeDream job, one sentence each

  const std::string* find(std::string_view flag) const;  ///< nullptr if the job does not set it
};

/// `key=value` of --set; keys as in the file, `env.K` and `args.FLAG` included. Later ones win.
struct JobOverride {
  std::string key;
  std::string value;
  std::string where{};  ///< what messages name; empty: --set KEY
};
/// Returns what variables MILLRACE_JOB_KEY=VALUE say. They win over the file, --set wins over them.
/// MILLRACE_JOB_SLURM__TIME is slurm.time.
std::vector<JobOverride> environment_overrides();
Result<JobOverride> parse_override(const std::string& text);

inline std::chrono::milliseconds heartbeat_of(const JobSpec& job) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(job.heartbeat_s * 1e3));
}

/// Reads a job (or PipeDream's driver YAML) and its plan. Every problem at once: unknown keys with the
/// nearest name, values that do not fit the flag, ranks that do not match the plan, files that are not there.
/// Paths are relative to the current folder, as on the command line. `ask` is asked only if a key is no flag
/// of `train`: it can be an option of the model. Where there is no worker to ask, it is taken for one.
/// `worker`: of a job that names none.
Result<JobSpec> load_job(const std::string& path, const std::vector<JobOverride>& overrides,
                         const std::string& worker = {});
/// The same of a file that has been read.
Result<JobSpec> load_job(const Json& json, const std::string& path, const std::vector<JobOverride>& overrides,
                         const std::string& worker = {});
Result<JobSpec> job_from(const Json& json, const std::string& source,
                         const std::vector<JobOverride>& overrides, const AskForModels& ask,
                         const std::string& worker = {});

/// Puts the ranks of a job with an engine on hosts: on those that it lists, else on those that the engine's
/// environment gives. Problem: hosts that cannot be read or do not fit the ranks; no host.
Status place_on_hosts(JobSpec& job);

/// Returns the groups of hosts, listed or given by the engine, on which so many runs of the job go on side by
/// side; empty: the job has no engine. Problem: as place_on_hosts.
Result<std::vector<std::vector<HostEntry>>> host_groups(const JobSpec& job);
/// Puts the ranks of a job on the hosts of one group.
void place_on_group(JobSpec& job, const std::vector<HostEntry>& group);

/// The arguments of `millrace-worker` for a rank of this job: "train", "--model", "mlp", ...
std::vector<std::string> train_arguments(const JobSpec& job);
/// The resolved job in the form that load_job reads.
std::string to_yaml(const JobSpec& job);

}  // namespace millrace
