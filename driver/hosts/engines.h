// The engines that start a job's agents on its hosts: ssh, Slurm, MPI's launchers, Kubernetes. Each is one
// row of a table. An agent may run in a container.
#pragma once

#include <string>
#include <vector>

#include "driver/hosts/host_list.h"
#include "runtime/base/result.h"

namespace millrace {

/// What an engine needs to know to start one agent.
struct AgentPlace {
  std::string client;  ///< the engine's program: "ssh", "srun", or one called like it
  HostEntry host;
  std::vector<std::string> agent;  ///< the words that run on the host
};

struct Engine {
  const char* name;
  const char* client;  ///< its program, unless the job names another
  bool through_shell;  ///< a login shell reads the agent's words
  bool shares_paths;   ///< hosts have millrace where this one has it; else it is in their PATH
  bool meets_by_name;  ///< the first host is reached by the name in the list; else by its own address
  /// How many starts an agent has. Open MPI fails to start where an earlier process of it is just ending:
  /// both make and remove one session directory.
  int starts;
  /// Returns the words that start the agent from here.
  std::vector<std::string> (*command)(const AgentPlace& place);
  /// Returns the hosts that the environment gives to a job that lists none; null: it must list them.
  Result<std::vector<HostEntry>> (*allocated)();
};

/// Returns the engine of this name; null: there is none. "local" is none: it needs no agent.
const Engine* find_engine(const std::string& name);
/// "local, ssh, slurm, ..." for messages and help.
std::string engine_names(const std::string& separator);

/// The container in which the ranks of each host run.
struct Container {
  std::string image;                ///< empty: none
  std::string runtime = "docker";   ///< a row of the table in engines.cpp
  std::vector<std::string> mounts;  ///< "/data" or "/data:/inside", "/data:/inside:ro"
};

/// Returns the words that run `agent` in the container, with `folder` mounted and with the host's network.
/// Problem: an unknown runtime, a mount that is no absolute path.
Result<std::vector<std::string>> in_container(const Container& container, const std::string& folder,
                                              bool with_gpus, std::vector<std::string> agent);

/// Returns the command that starts an agent. Problem: a word that a login shell would read in its own way.
Result<std::vector<std::string>> agent_command_line(const Engine& engine, const AgentPlace& place);

}  // namespace millrace
