// What a host says of itself before its ranks start, and how that fits the plan. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/hosts/host_list.h"
#include "runtime/base/json.h"
#include "runtime/base/units.h"

namespace millrace {

struct Plan;  // runtime/plan/plan.h

/// A host as its agent sees it.
struct Machine {
  std::string processor;  ///< as /proc/cpuinfo names it; empty: it does not
  int cores = 0;          ///< that this process may use
  Bytes memory = 0;       ///< bytes that are free for programs; 0: unknown
  int gpus = 0;           ///< NVIDIA devices with a file in /dev
  /// Multiplications and additions of one core, in 1e9 a second, in a loop of 50 ms. It compares hosts: a
  /// host that is busy or slow shows it.
  double speed = 0;
};
Machine this_machine();
Bytes free_memory();  ///< Machine::memory of this host
int gpus_of_this_machine();
Json to_json(const Machine& machine);
/// Members that are missing, or not what they should be, are 0: another version may have sent them.
Machine machine_from(const Json& json);
/// "AMD EPYC 9654, 96 cores, 377.1 GiB, 8 GPUs".
std::string to_string(const Machine& machine);

/// Returns sentences on what a person should know before he trusts the plan: hosts other than those it was
/// made for, more ranks than cores, less memory than the plan's stages need, hosts of different speed.
/// `machines` and `ranks` are by host. `plan` may be null. With `on_gpu`, cores and memory are not judged.
std::vector<std::string> warnings_on(const std::vector<HostEntry>& hosts, const std::vector<int>& ranks,
                                     const std::vector<Machine>& machines, const Plan* plan, bool on_gpu);

}  // namespace millrace
