// The hosts that a scheduler has given to a job, from its environment.
#pragma once

#include <string>
#include <vector>

#include "driver/hosts/host_list.h"
#include "runtime/base/result.h"

namespace millrace {

/// Tells whether this process runs in an allocation of Slurm.
bool is_in_slurm_allocation();

/// Returns the nodes of the Slurm allocation, as `scontrol show hostnames` spells them. The tasks that the
/// job has asked for are the most ranks of each node; a job that asked for none shares its ranks equally.
/// Problem: there is no allocation, or scontrol gives no names.
Result<std::vector<HostEntry>> hosts_of_slurm();

/// Returns the hosts in the node file of PBS or LSF (PBS_NODEFILE, LSB_DJOB_HOSTFILE). Problem: there is
/// none.
Result<std::vector<HostEntry>> hosts_of_node_file();

/// Reads Slurm's "2(x3),1", the tasks of each node, as {2, 2, 2, 1}; empty: it is none.
std::vector<int> parse_tasks_per_node(const std::string& text);

}  // namespace millrace
