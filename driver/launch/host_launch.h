// A job whose ranks run on several hosts: the agents to start, what each is told, and what comes back.
// LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/hosts/host_connection.h"
#include "driver/launch/job_spec.h"
#include "driver/launch/launcher.h"

namespace millrace {

/// Puts the ranks of `job` on its hosts, with the environment that torchrun gives but for where they meet:
/// that is known when the hosts have been reached. A process with another `token` cannot join them.
std::vector<RankProcess> host_processes(const JobSpec& job, std::vector<RankProcess> processes,
                                        const std::string& token);

/// Returns the newest whole checkpoint that a job with hosts goes on from; nothing: it begins, or its ranks
/// find it themselves (jobs in rounds). Throws CheckpointError: there is none that is whole.
std::optional<ResumedCheckpoint> resumed_checkpoint(const JobSpec& job);

/// Settles `resume: auto` of a job with hosts: only the launcher's folder says whether there is a checkpoint.
/// Problem: the folder holds a run that is done.
Status settle_resume(JobSpec& job);

/// Makes the options of run_ranks() for a job with hosts, and puts a file into the output folder by which
/// hosts see whether they share it. Problem: a path of the program that a login shell may not be given, or a
/// first host that other hosts cannot reach by its name. Takes the connections of `kept` that fit, and ends
/// the others.
Result<LaunchOptions> host_options(const JobSpec& job, const std::vector<RankProcess>& processes,
                                   Survivors* kept = nullptr);

/// Returns the files and folders that arguments of `train` name, by themselves or behind `=`: hosts need
/// them.
std::vector<AgentInput> inputs_of(const std::vector<std::string>& argv, const std::string& output_dir);

/// Returns whether a path that a host sends may be written below the output folder: relative, without "..",
/// of the characters that names of a run's files have.
bool is_result_path(std::string_view path);

}  // namespace millrace
