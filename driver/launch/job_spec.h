// A job as `millrace launch` reads it: what to train, on how many ranks, and where the results go.
// LibTorch-free.
//   name, ranks, worker, env: {K: V}, args: {FLAG: VALUE}, the keys of JobHosts and JobRestarts, and any flag
//   of `millrace train` as a key, the model's own options included (docs/commands/launch.md). With `fused:
//   true` flags take lists, a value for each job of the array.
#pragma once

#include <string>
#include <vector>

#include "driver/launch/model_flags.h"
#include "driver/queues/job.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

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

/// The resolved job in the form that load_job reads.
std::string to_yaml(const JobSpec& job);

}  // namespace millrace
