// The engines that start a job's agents on its hosts, and the queues of clusters that take its runs: one file
// and one row of a table for each. LibTorch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "driver/hosts/host_list.h"
#include "driver/queues/job.h"
#include "runtime/base/result.h"

namespace millrace {

/// An agent that an engine starts.
struct AgentPlace {
  std::string client;  ///< the engine's program: "ssh", "srun", or one called like it
  HostEntry host;
  std::vector<std::string> agent;  ///< the words that run on the host
};

/// The state of a batch job, or of a task of an array, as the queue reports it.
struct QueueRecord {
  static constexpr int kWhole = -2;  ///< the array: no task without a record is left
  int task = -1;      ///< its number in the array; -1: it is no task, or stands for several that wait
  std::string state;  ///< for messages: "RUNNING", "PENDING (Resources)"
  bool is_running = false, is_over = false;
  int exit_code = 0;     ///< 128 + n for signal n; of one that is over
  std::string reason{};  ///< why the queue ended it: "TIMEOUT", "Evicted"; empty: it ended itself
};

/// A queue takes arrays of runs. One with a `script` takes a whole job, too: `launch` submits itself.
struct BatchQueue {
  /// Whether this process has an allocation of the queue, so that it has not to wait; null: it never has.
  bool (*is_inside)() = nullptr;
  /// Returns the script of a batch job that runs `launch` inside the allocation. Options of the job replace
  /// those that follow from its ranks.
  Result<std::string> (*script)(const JobSpec& job, const std::vector<std::string>& launch) = nullptr;
  const char* extension;  ///< of the file that is submitted: "sbatch"
  /// Submits a file. Returns the job's name in the queue.
  Result<std::string> (*submit)(const std::string& path);
  /// Problem: what a job lacks to run in an array. Null: nothing.
  Status (*check)(const JobSpec& job) = nullptr;
  /// Returns the requested resources as lines of a script. The runs of one array have the same.
  std::string (*requests)(const JobSpec& job);
  const char* task;  ///< the task's number, in a shell's words
  /// Returns the file that submits an array of `tasks` tasks, which run `script`, for jobs like `job`. Exit
  /// codes may be left in `folder`.
  std::string (*array)(const JobSpec& job, int tasks, const std::string& script, const std::string& folder);
  /// Returns the records of a job or an array that was submitted with files in `folder`. Tasks without a
  /// record wait, or are gone after a stop.
  Result<std::vector<QueueRecord>> (*ask)(const std::string& id, const std::filesystem::path& folder);
  /// Tells what runs to save and end, and cancels what waits; `at_once`: cancels all.
  Status (*stop)(const std::string& id, bool at_once);
  /// Removes an array whose tasks have ended. Null: it goes by itself.
  void (*clean_up)(const std::string& id) = nullptr;
  /// Puts the batch job of this process back. Null: only the queue itself does.
  Status (*requeue)() = nullptr;
};

/// A form in which `launch --print` prints a job. `launch`: the command that a batch script runs.
struct PrintedForm {
  const char* name;
  Result<std::string> (*print)(const JobSpec& job, const std::vector<std::string>& launch);
};

struct Engine {
  const char* name;           ///< `on` of the job, and the section with its options
  const char* title;          ///< for messages: "Slurm"
  const char* client;         ///< its program, unless the job names another
  bool through_shell;         ///< a login shell reads the agent's words
  bool shares_paths = true;   ///< hosts have millrace where this one has it; else it is in their PATH
  bool meets_by_name = true;  ///< the first host is reached by the name in the list; else by its own address
  /// How many starts an agent has. Open MPI fails to start where an earlier process of it is just ending:
  /// both make and remove one session directory.
  int starts = 1;
  /// Returns the words that start the agent from here.
  std::vector<std::string> (*command)(const AgentPlace& place);
  /// Returns the hosts that the environment gives to a job that lists none; null: it must list them.
  Result<std::vector<HostEntry>> (*allocated)() = nullptr;
  const BatchQueue* queue = nullptr;  ///< null: it has none
  /// Checks an option of the job's section. Problem: what is wrong, in words behind the option's name; its
  /// `where` is left empty. Null: there is no section.
  Status (*option)(const std::string& key, const std::string& value) = nullptr;
  std::span<const PrintedForm> forms = {};
};

// ---- The table. A new engine is a file and a name in these two lines.
extern const Engine kSsh, kSlurm, kPbs, kMpi, kKubernetes;
inline constexpr const Engine* kEngines[] = {&kSsh, &kSlurm, &kPbs, &kMpi, &kKubernetes};

/// Returns the engine of this name; null: there is none. "local" is none: it needs no agent.
const Engine* find_engine(const std::string& name);
/// "local, ssh, slurm, ..." for messages and help.
std::string engine_names(const std::string& separator);
/// The names (&Engine::name) or titles of the engines whose queue takes whole jobs: "Slurm and PBS".
std::string batch_engines(const char* Engine::*called, const std::string& separator);
/// Returns all forms of all engines.
std::vector<PrintedForm> printed_forms();
/// "slurm|torchrun|..."
std::string form_names(const std::string& separator);

/// Returns the engine in whose queue this job waits before its ranks start; null: they start from here.
const Engine* waits_in_queue(const JobSpec& job);

/// Returns the command that starts an agent. Problem: a word that a login shell would read in its own way.
Result<std::vector<std::string>> agent_command_line(const Engine& engine, const AgentPlace& place);

// ---- Parts of several engines.

inline constexpr std::chrono::seconds kQueueDeadline{60};  ///< for an answer of a queue's program

/// The words of ssh that start an agent.
std::vector<std::string> over_ssh(const AgentPlace& place);
/// Returns the hosts in the node file of PBS or LSF (PBS_NODEFILE, LSB_DJOB_HOSTFILE). Problem: there is
/// none.
Result<std::vector<HostEntry>> hosts_of_node_file();

/// Reads Slurm's "2(x3),1", the tasks of each node, as {2, 2, 2, 1}; empty: it is none.
std::vector<int> parse_tasks_per_node(const std::string& text);

}  // namespace millrace
