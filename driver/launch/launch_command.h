// `millrace launch`: the ranks of a job on this host, from one YAML file. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"
#include "driver/launch/job_spec.h"
#include "driver/launch/launcher.h"
#include "runtime/base/run_folder.h"

namespace millrace {

/// Set for ranks whose launcher has a terminal: they print a line every second, of which it draws a bar.
inline constexpr const char* kLauncherHasTerminal = "MILLRACE_TERMINAL";

CommandSpec launch_spec();

/// Writes a finished run in other tools' formats (--log). The exporters live above this folder, so the
/// program hands them in.
struct RunExporter {
  Problems (*check)(const std::string& formats) = nullptr;  ///< before anything is started
  int (*run)(const std::string& output_dir, const std::string& formats) = nullptr;  ///< returns an exit code
};

/// Returns 0, 2 for a job that cannot start, or the code of the first rank that failed (128+n for signals).
/// `worker`: what the ranks run where neither the job nor --worker says so; empty: millrace's.
int launch_command(const std::vector<std::string>& args, const RunExporter& exporter = {},
                   const std::string& worker = {});

/// Returns the processes of the ranks: `worker train ...` with the environment that torchrun gives, and our
/// file store.
std::vector<RankProcess> rank_processes(const JobSpec& job, const std::string& worker,
                                        const std::string& store);

/// Returns who failed first and where it was, the others, the logs, and how to go on. Reads
/// DIR/status.rank<k>.json.
std::string failure_summary(const LaunchOutcome& outcome, const JobSpec& job,
                            const std::string& resume_command);

struct JobEnd {
  LaunchOutcome outcome;
  std::string message;  ///< how it ended, for the user
  RunLock lock;         ///< of the output folder
};
/// Runs the ranks of a job on this host to their end; see run_ranks. Its output folder is the job's
/// meanwhile, and as long as the result holds it. `command`: what was typed, for the manifest. `kept` and
/// `signals`: as in LaunchOptions. Problem: the folder is in use, or holds an earlier run.
Result<JobEnd> run_job(const JobSpec& job, const std::string& worker, const std::string& resume_command,
                       const std::string& command = "", Survivors* kept = nullptr,
                       const SignalGuard* signals = nullptr);

/// The program that trains this job: the one it names, else by its `device`.
std::string worker_of(const JobSpec& job);

/// Everything that can be known before a start: the worker, the data, the output folder. Touches nothing.
Problems check_job(const JobSpec& job, const std::string& worker);

}  // namespace millrace
