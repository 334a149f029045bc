#include "driver/launch/network_launch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "driver/flags/compute_specs.h"
#include "driver/flags/planning_files.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/hosts_network.h"
#include "driver/launch/local_ranks.h"
#include "driver/launch/model_flags.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFlags[] = {"model", "microbatch", "warmup", "repetitions",
                                       "rule",  "data",       "seed",   "blocks"};

constexpr const char* kNetworkFlags[] = {"job", "backend", "encrypt", "round-trips", "largest", "tolerance"};

}  // namespace

Result<NetworkJob> network_job(const ProfileFlags& flags, const Arguments& arguments) {
  Problems problems;
  std::vector<std::string> others = arguments.left();
  for (const GivenOption& option : flags.model.options) others.push_back(option.name);
  for (const std::string& flag : others)
    problems.push_back({"--" + flag, "does not go with --network", "links are measured, not a model"});
  for (const char* flag : kModelFlags) {
    if (arguments.has(flag))
      problems.push_back({long_name(flag), "does not go with --network", "links are measured, not a model"});
  }
  if (!flags.job.empty()) {
    if (arguments.has("ranks")) problems.push_back({"--ranks", "the job says how many ranks there are", {}});
  } else if (arguments.has("cluster") == arguments.has("ranks")) {
    problems.push_back(
        {"--network",
         arguments.has("ranks") ? "got both --cluster and --ranks" : "needs the ranks to measure",
         "give --cluster FILE, --ranks N for ranks on this host, or --job JOB.yaml for those of its hosts"});
  }
  append(problems, arguments.problems());
  if (flags.ranks == 1)
    problems.push_back(
        {"--ranks", "1 is out of range", "expected from 2 to " + std::to_string(kMostProfileRanks)});
  if (arguments.problems().empty() && (flags.largest < 64 * kKiB || flags.largest > kGiB))
    problems.push_back({"--largest", "must be from 64KiB to 1GiB", {}});
  if (!problems.empty()) return problems;
  NetworkJob job{.out = flags.out,
                 .device = flags.device,
                 .backend = flags.backend,
                 .encrypt = flags.encrypt,
                 .round_trips = flags.round_trips,
                 .largest = flags.largest,
                 .tolerance = flags.tolerance,
                 .deadline = flags.deadline,
                 .threads = flags.threads,
                 .json = flags.format == OutputFormat::Json};
  Result<ClusterSpec> cluster = cluster_of(
      arguments.has("cluster") ? std::optional(flags.cluster) : std::nullopt, flags.ranks.value_or(2));
  if (!cluster) return cluster.problems();
  job.cluster = *std::move(cluster);
  if (job.cluster.num_ranks() < 2)
    return Problem{flags.cluster, "has one rank, so there is no link to measure", {}};
  return job;
}

Problems check_output(const NetworkJob& job) {
  if (job.out.empty()) return {};
  std::error_code ignored;
  if (fs::is_directory(job.out, ignored))
    return {{"--out", job.out + " is a folder", "give the name of a file"}};
  const fs::path folder = fs::absolute(job.out, ignored).parent_path();
  if (!fs::is_directory(folder, ignored) || ::access(folder.c_str(), W_OK | X_OK) != 0)
    return {{"--out", folder.string() + " is not a folder that you may write", "make it, or give another"}};
  return {};
}

Problems network_flags_without_network(const Arguments& arguments) {
  Problems problems;
  for (const char* flag : kNetworkFlags) {
    if (arguments.has(flag) && !arguments.has("network"))
      problems.push_back({long_name(flag), "needs --network", {}});
  }
  return problems;
}

Result<int> ranks_at_once(const ProfileFlags& flags) {
  if (flags.ranks && !flags.cluster.empty())
    return Problem{"--ranks", "the cluster file says how many ranks share a host", "give one of the two"};
  if (flags.cluster.empty()) return flags.ranks.value_or(1);
  const Result<ClusterSpec> cluster = ClusterSpec::load(flags.cluster);
  if (!cluster) return cluster.problems();
  int most = cluster->hosts.empty() ? cluster->levels.front().count : 1;
  for (const ClusterHost& host : cluster->hosts) most = std::max(most, host.devices);
  return std::min(most, kMostProfileRanks);
}

bool starts_profile_ranks(const std::vector<std::string>& args) {
  ProfileFlags flags;
  const Result<Arguments> arguments = parse_arguments(profile_spec(flags), args, UnknownFlags::Leave);
  if (!arguments || arguments->wants_help() || is_rank_of_a_job()) return false;
  if (flags.network) return true;
  if (arguments->has("ranks") && !flags.ranks) return true;  // it is no number: said where ranks are started
  const Result<int> ranks = ranks_at_once(flags);
  return !ranks || *ranks > 1;
}

namespace {

/// Before any rank is started: each would say the same. A worker that is not there is reported as such.
Problems problems_of_left_flags(const Arguments& arguments, const std::vector<std::string>& args,
                                const std::string& own) {
  const std::string worker = own.empty() ? any_worker() : own;
  if (arguments.left().empty() || worker.empty()) return {};
  const Result<Models> models = models_of_worker(worker);
  if (!models) return models.problems();
  ProfileFlags flags;
  const Result<Arguments> all =
      parse_arguments(with_model_options(profile_spec(flags), *models, flags.model.options), args);
  if (!all) return all.problems();
  const Result<ModelDescription> model = find_model(*models, flags.model.name);
  if (!model) return model.problems();
  const Result<ModelOptions> options = options_for(*model, flags.model.options);
  return options ? Problems{} : options.problems();
}

/// A model, by as many ranks at once as share a host in the run.
int launch_model_profile(const ProfileFlags& flags, const Arguments& arguments,
                         const std::vector<std::string>& args, const std::string& own) {
  const Result<int> ranks = ranks_at_once(flags);
  Problems problems = ranks ? Problems{} : ranks.problems();
  append(problems, problems_of_left_flags(arguments, args, own));
  append(problems, network_flags_without_network(arguments));
  append(problems, arguments.problems());
  const std::string worker = own.empty() ? worker_path(flags.device) : own;
  if (::access(worker.c_str(), X_OK) != 0)
    problems.push_back({worker, "is missing: it is the program that measures", worker_hint(flags.device)});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  return run_command_ranks(worker, "profile", args, *ranks, flags.threads);
}

}  // namespace

int launch_profile(const std::vector<std::string>& args, const std::string& own) {
  ProfileFlags flags;
  const Result<Arguments> arguments = parse_arguments(profile_spec(flags), args, UnknownFlags::Leave);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (!flags.network) return launch_model_profile(flags, *arguments, args, own);
  Result<NetworkJob> job = network_job(flags, *arguments);
  if (!job) return exit_with(ExitCode::Usage, job.problems());
  const std::string worker = own.empty() ? worker_path(job->device) : own;
  Problems problems = check_output(*job);
  if (!flags.job.empty())
    return problems.empty() ? profile_network_of_job(flags, args) : exit_with(ExitCode::Usage, problems);
  if (::access(worker.c_str(), X_OK) != 0)
    problems.push_back({worker, "is missing: it is the program that measures", worker_hint(job->device)});
  if (job->cluster.num_ranks() > kMostProfileRanks) {
    problems.push_back(
        {"--cluster",
         "has more than the " + std::to_string(kMostProfileRanks) + " ranks that one host starts",
         "start the command on every host under torchrun's environment variables"});
  }
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  return run_command_ranks(worker, "profile", args, job->cluster.num_ranks(), job->threads);
}

}  // namespace millrace
