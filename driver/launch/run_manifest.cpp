#include "driver/launch/run_manifest.h"

#include <chrono>
#include <filesystem>

#include "driver/hosts/program_answer.h"
#include "driver/launch/host_launch.h"
#include "runtime/base/here_and_now.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"

namespace millrace {
namespace {

constexpr std::chrono::seconds kGitDeadline{5};

/// {commit, changed}; null where this is no working tree of git.
Json git_state() {
  const Result<std::string> commit = answer_of({"git", "rev-parse", "HEAD"}, kGitDeadline);
  if (!commit) return Json();
  const Result<std::string> changed =
      answer_of({"git", "status", "--porcelain", "--untracked-files=no"}, kGitDeadline);
  return Json::object(
      {{"commit", split(*commit, '\n').front()}, {"changed", changed ? Json(!changed->empty()) : Json()}});
}

}  // namespace

Json run_facts() {
  return Json::object({{"millrace", MILLRACE_VERSION},
                       {"date", utc_now()},
                       {"host", host_name()},
                       {"processor", processor_name()},
                       {"git", git_state()}});
}

Json run_manifest(const JobSpec& job, const std::string& run, const std::string& command) {
  Json inputs = Json::array();
  for (const AgentInput& input : inputs_of(train_arguments(job), job.output_dir))
    inputs.push_back(
        Json::object({{"path", input.path}, {"xxh3_128", input.hash.empty() ? Json() : Json(input.hash)}}));
  Json hosts = Json::array();
  for (std::size_t h = 0; h < job.hosts.entries.size(); ++h)
    hosts.push_back(Json::object({{"host", job.hosts.entries[h].name}, {"ranks", job.hosts.ranks[h]}}));
  const std::string* seed = job.find("seed");
  return Json::object({{"format", "millrace-manifest-1"},
                       {"run", run},
                       {"millrace", MILLRACE_VERSION},
                       {"launched", utc_now()},
                       {"command", command},
                       {"host", host_name()},
                       {"processor", processor_name()},
                       {"engine", job.hosts.on.empty() ? "local" : job.hosts.on},
                       {"hosts", hosts},
                       {"ranks", job.ranks},
                       {"seed", seed ? Json(*seed) : Json()},
                       {"git", git_state()},
                       {"inputs", inputs}});
}

}  // namespace millrace
