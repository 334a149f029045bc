#include "driver/hosts/allocation.h"

#include <chrono>
#include <cstdlib>

#include "driver/hosts/program_answer.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::chrono::seconds kScontrolDeadline{20};
constexpr int kMostNodes = 1 << 16;

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

bool is_in_slurm_allocation() {
  return !value_of("SLURM_JOB_ID").empty() && !value_of("SLURM_JOB_NODELIST").empty();
}

std::vector<int> parse_tasks_per_node(const std::string& text) {
  std::vector<int> tasks;
  for (const std::string& part : split(text, ',')) {
    const std::size_t open = part.find("(x");
    const std::optional<int> number = number_of<int>(part.substr(0, open));
    std::optional<int> times = 1;
    if (open != std::string::npos) {
      if (!part.ends_with(')')) return {};
      times = number_of<int>(part.substr(open + 2, part.size() - open - 3));
    }
    if (!number || !times || *number < 1 || *times < 1 || *times > kMostNodes) return {};
    tasks.insert(tasks.end(), static_cast<std::size_t>(*times), *number);
  }
  return tasks;
}

Result<std::vector<HostEntry>> hosts_of_slurm() {
  if (!is_in_slurm_allocation())
    return Problem{"environment", "there is no allocation of Slurm (SLURM_JOB_ID is not set)",
                   "start inside `salloc`, or in a script that `sbatch` runs"};
  if (!value_of("SLURM_HET_SIZE").empty())
    return Problem{"environment", "the allocation has several parts (a heterogeneous job)",
                   "list the nodes: hosts: [node1:2, node2:4]"};
  const std::string nodes = value_of("SLURM_JOB_NODELIST");
  const Result<std::string> names = answer_of({"scontrol", "show", "hostnames", nodes}, kScontrolDeadline);
  if (!names) return names.problems();
  const std::vector<int> tasks = value_of("SLURM_NTASKS").empty()
                                     ? std::vector<int>{}
                                     : parse_tasks_per_node(value_of("SLURM_TASKS_PER_NODE"));
  std::string list;
  std::size_t node = 0;
  for (const std::string& name : split(*names, '\n')) {
    if (name.empty()) continue;
    list += (list.empty() ? "" : ",") + name;
    if (node < tasks.size()) list += ":" + std::to_string(tasks[node]);
    ++node;
  }
  if (!tasks.empty() && tasks.size() != node)
    return Problem{"environment",
                   "SLURM_TASKS_PER_NODE=" + escaped(value_of("SLURM_TASKS_PER_NODE")) + " does not fit " +
                       std::to_string(node) + " nodes",
                   "list the nodes: hosts: [node1:2, node2:4]"};
  return parse_hosts(list);
}

Result<std::vector<HostEntry>> hosts_of_node_file() {
  for (const char* name : {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"}) {
    if (const std::string path = value_of(name); !path.empty()) return parse_hosts("@" + path);
  }
  return Problem{"environment",
                 "no scheduler names the hosts (PBS_NODEFILE and LSB_DJOB_HOSTFILE are not set)",
                 "list them: hosts: [node1:2, node2:2], or hosts: @FILE"};
}

}  // namespace millrace
