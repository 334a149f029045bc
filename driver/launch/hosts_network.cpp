#include "driver/launch/hosts_network.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "driver/launch/console.h"
#include "driver/launch/host_launch.h"
#include "driver/launch/job_spec.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/local_ranks.h"
#include "runtime/base/files.h"
#include "runtime/base/run_folder.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// The job with its ranks on its hosts, and a folder of its own for the measurement.
Result<JobSpec> placed_job(const ProfileFlags& flags) {
  Result<JobSpec> job = load_job(flags.job, {});
  if (!job) return job;
  if (job->hosts.on.empty())
    return Problem{flags.job, "names no hosts",
                   "add hosts: [node1:2, node2:2], or on: slurm in an allocation"};
  if (job->hosts.entries.empty()) {
    if (const Status placed = place_on_hosts(*job); !placed) return placed.problems();
  }
  if (job->ranks < 2) return Problem{flags.job, "has one rank, so there is no link to measure", {}};
  job->output_dir = (fs::path(job->output_dir) / "network").string();
  return job;
}

/// The job's hosts. Their links are what is to be measured.
ClusterSpec cluster_to_measure(const JobSpec& job, ComputeDevice device) {
  ClusterSpec cluster;
  cluster.device = to_string(device);
  for (std::size_t h = 0; h < job.hosts.entries.size(); ++h) {
    ClusterHost host;
    host.name = job.hosts.entries[h].name;
    host.devices = job.hosts.ranks[h];
    cluster.hosts.push_back(host);
  }
  return cluster;
}

/// The arguments of the ranks: those that are given, but for what the launcher answers to, and the job's
/// transport. So the links are measured as the job will use them.
std::vector<std::string> for_ranks(const JobSpec& job, const std::vector<std::string>& args) {
  std::vector<std::string> words;
  for (const char* flag : {"backend", "device", "encrypt", "timeout"}) {
    const std::string given = std::string("--") + flag;
    const std::string* value = job.find(flag);
    if (value && std::ranges::none_of(args, [&](const std::string& word) {
          return word == given || word.starts_with(given + "=");
        }))
      words.push_back(std::string(flag) == "encrypt" ? given : given + "=" + *value);
  }
  for (std::size_t i = 0; i < args.size(); ++i) {
    const auto is = [&](const std::string& flag) {
      return args[i] == flag || args[i].starts_with(flag + "=");
    };
    if (!is("--job") && !is("--cluster") && !is("--out") && !args[i].starts_with("-o"))
      words.push_back(args[i]);
    else if (args[i].find('=') == std::string::npos && (args[i].starts_with("--") || args[i] == "-o"))
      ++i;  // its value
  }
  return words;
}

}  // namespace

int profile_network_of_job(const ProfileFlags& flags, const std::vector<std::string>& args) {
  const Result<JobSpec> job = placed_job(flags);
  if (!job) return exit_with(ExitCode::Usage, job.problems());
  Result<ClusterSpec> cluster = cluster_to_measure(*job, flags.device);
  if (!flags.cluster.empty()) cluster = ClusterSpec::load(flags.cluster);
  if (!cluster) return exit_with(ExitCode::Usage, cluster.problems());
  if (cluster->num_ranks() != job->ranks)
    return exit_with(ExitCode::Usage, {{flags.cluster,
                                        "has " + std::to_string(cluster->num_ranks()) + " ranks, " +
                                            flags.job + " has " + std::to_string(job->ranks),
                                        "leave --cluster out: the job's hosts are measured"}});
  const fs::path folder = job->output_dir;
  const std::string input = (folder / "cluster.yaml").string(),
                    measured = (folder / "measured.yaml").string();
  if (const Status made = make_writable_folder(folder / "logs"); !made)
    return exit_with(ExitCode::Usage, made.problems());
  const Result<RunLock> lock = RunLock::acquire(folder, new_run_id());
  if (!lock) return exit_with(ExitCode::Usage, lock.problems());
  if (const Status written = write_file_atomically(input, cluster->to_yaml()); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  std::error_code ignored;
  fs::remove(measured, ignored);
  std::vector<std::string> argv = for_ranks(*job, args);
  argv.insert(argv.begin(), {worker_of(*job), "profile"});
  argv.insert(argv.end(), {"--cluster", input, "--out", measured});
  std::vector<RankProcess> processes;
  for (int rank = 0; rank < job->ranks; ++rank) {
    RankProcess process{.rank = rank, .argv = argv, .environment = job->environment};
    const auto added = rank_environment(rank, job->ranks, "");
    process.environment.insert(process.environment.end(), added.begin(), added.end());
    process.environment.emplace_back("OMP_NUM_THREADS", std::to_string(flags.threads));
    process.log = (folder / "logs" / ("rank_" + std::to_string(rank))).string();
    processes.push_back(std::move(process));
  }
  processes = host_processes(*job, std::move(processes), new_run_id() + new_run_id());
  Survivors none;
  Result<LaunchOptions> options = host_options(*job, processes, none);
  if (!options) return exit_with(ExitCode::Usage, options.problems());
  SteadyClock clock;
  const LaunchOutcome outcome = run_ranks(processes, *std::move(options), clock);
  explain_failure("profile", outcome);
  if (const int code = outcome.exit_code(); code != 0 || flags.out.empty()) return code;
  const Result<std::string> text = read_regular_file(measured);
  const Status written = text ? write_file_atomically(flags.out, *text) : Status(text.problems());
  return written ? 0 : exit_with(ExitCode::RunFailed, written.problems());
}

}  // namespace millrace
