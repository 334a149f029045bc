#include "driver/hosts/engines.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>
#include <utility>

#include "driver/hosts/allocation.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;

Words joined(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// Batch mode asks nothing, host keys are checked, and a host that is gone is noticed within 15 s.
Words over_ssh(const AgentPlace& place) {
  Words words{place.client, "-T",
              "-o",         "BatchMode=yes",
              "-o",         "ConnectTimeout=10",
              "-o",         "ServerAliveInterval=5",
              "-o",         "ServerAliveCountMax=3"};
  if (place.host.port > 0) words.insert(words.end(), {"-p", std::to_string(place.host.port)});
  return joined(joined(std::move(words), {"--", place.host.login()}), place.agent);
}

/// A step of one task on the node. It shares the node's processors and memory with other steps of the job.
Words over_srun(const AgentPlace& place) {
  return joined({place.client, "--nodes=1", "--ntasks=1", "--nodelist=" + place.host.name, "--overlap",
                 "--mem=0", "--cpu-bind=none", "--unbuffered", "--quiet", "--kill-on-bad-exit=0"},
                place.agent);
}

/// One process, which binds to no core: its ranks share them. Open MPI, PRRTE and hydra know these flags.
Words over_mpirun(const AgentPlace& place) {
  return joined({place.client, "-n", "1", "-host", place.host.name, "-bind-to", "none"}, place.agent);
}

Words over_kubectl(const AgentPlace& place) {
  return joined({place.client, "exec", "-i", place.host.name, "--"}, place.agent);
}

constexpr Engine kEngines[] = {
    {.name = "ssh",
     .client = "ssh",
     .through_shell = true,
     .shares_paths = true,
     .meets_by_name = true,
     .starts = 1,
     .command = over_ssh,
     .allocated = nullptr},
    {.name = "slurm",
     .client = "srun",
     .through_shell = false,
     .shares_paths = true,
     .meets_by_name = true,
     .starts = 1,
     .command = over_srun,
     .allocated = hosts_of_slurm},
    {.name = "mpi",
     .client = "mpirun",
     .through_shell = false,
     .shares_paths = true,
     .meets_by_name = true,
     .starts = 2,
     .command = over_mpirun,
     .allocated = hosts_of_node_file},
    {.name = "kubernetes",
     .client = "kubectl",
     .through_shell = false,
     .shares_paths = false,
     .meets_by_name = false,
     .starts = 1,
     .command = over_kubectl,
     .allocated = nullptr},
};

/// How a container starts that has the host's network and shared memory.
struct Runtime {
  const char* name;
  Words start;        ///< before everything else
  Words gpus;         ///< where ranks need them: page-locked memory without a limit, too
  const char* mount;  ///< in front of a mount, as one word or as two
  bool mount_is_one_word;
};

const std::vector<Runtime>& runtimes() {
  const Words run = {"run", "--rm", "--interactive", "--network=host", "--ipc=host"};
  static const std::vector<Runtime> table = {
      {"docker", joined({"docker"}, run), {"--ulimit=memlock=-1", "--gpus=all"}, "--volume=", true},
      {"podman",
       joined({"podman"}, run),
       {"--ulimit=memlock=-1", "--device=nvidia.com/gpu=all"},
       "--volume=",
       true},
      {"apptainer", {"apptainer", "exec"}, {"--nv"}, "--bind=", true},
      {"enroot", {"enroot", "start", "--rw"}, {}, "--mount", false},
  };
  return table;
}

bool is_plain(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("/._+-=:@,", c) != nullptr;
  });
}

}  // namespace

const Engine* find_engine(const std::string& name) {
  const auto* found = std::ranges::find_if(kEngines, [&](const Engine& e) { return name == e.name; });
  return found == std::end(kEngines) ? nullptr : found;
}

std::string engine_names(const std::string& separator) {
  std::string names = "local";
  for (const Engine& engine : kEngines) names += separator + engine.name;
  return names;
}

Result<Words> in_container(const Container& container, const std::string& folder, bool with_gpus,
                           Words agent) {
  const auto& all = runtimes();
  const auto runtime =
      std::ranges::find_if(all, [&](const Runtime& r) { return container.runtime == r.name; });
  if (runtime == all.end()) {
    std::string names;
    for (const Runtime& r : all) names += (names.empty() ? "" : ", ") + std::string(r.name);
    return Problem{"container_runtime", "'" + escaped(container.runtime) + "' is unknown", "one of " + names};
  }
  if (container.image.front() == '-')
    return Problem{"container", "'" + escaped(container.image) + "' cannot be an image", {}};
  Words words = runtime->start;
  if (with_gpus) words = joined(std::move(words), runtime->gpus);
  Words mounts = container.mounts;
  mounts.push_back(folder);
  for (const std::string& mount : mounts) {
    if (mount.empty() || mount.front() != '/')
      return Problem{"mounts", "'" + escaped(mount) + "' is no absolute path",
                     "e.g. /data, /data:/inside or /data:/inside:ro"};
    const std::string both = mount.find(':') == std::string::npos ? mount + ":" + mount : mount;
    if (runtime->mount_is_one_word)
      words.push_back(runtime->mount + both);
    else
      words.insert(words.end(), {runtime->mount, both});
  }
  words.push_back(container.image);
  return joined(std::move(words), agent);
}

Result<Words> agent_command_line(const Engine& engine, const AgentPlace& place) {
  for (const std::string& word : place.agent) {
    if (engine.through_shell && !is_plain(word))
      return Problem{
          escaped(word), "has characters that the login shell of a host would read in its own way",
          "give paths with letters, digits and /._+- only (--remote-millrace, --workdir, --mounts)"};
  }
  if (place.host.port > 0 && !engine.through_shell)
    return Problem{"host '" + in_list(place.host) + "'",
                   std::string("has a port, which ") + engine.name + " does not take", "give HOST:RANKS"};
  if (place.agent.front().front() == '-')
    return Problem{escaped(place.agent.front()), "begins with a dash, so it cannot be a program", {}};
  return engine.command(place);
}

}  // namespace millrace
