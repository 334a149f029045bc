// The launchers of MPI: Open MPI, PRRTE, MPICH's hydra. Jobs are printed for them, and for torchrun.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "driver/queues/engine.h"
#include "driver/queues/shell_words.h"

namespace millrace {
namespace mpi {
namespace {

using Words = std::vector<std::string>;

/// One process, which binds to no core: its ranks share them. Open MPI, PRRTE and hydra know these flags.
Words over_mpirun(const AgentPlace& place) {
  return joined({place.client, "-n", "1", "-host", place.host.name, "-bind-to", "none"}, place.agent);
}

Result<std::string> for_torchrun(const JobSpec& job, const Words&) {
  const JobHosts placed = printed_hosts(job);
  const std::vector<HostEntry>& hosts = placed.entries;
  const std::vector<int>& counts = placed.ranks;
  if (std::ranges::any_of(counts, [&](int count) { return count != counts.front(); }))
    return Problem{"--print torchrun", "needs as many ranks on each host as on the others",
                   "give hosts equal numbers, or print another form"};
  std::string text;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    Words words{"torchrun",
                "--no-python",
                "--nnodes=" + std::to_string(hosts.size()),
                "--node-rank=" + std::to_string(h),
                "--nproc-per-node=" + std::to_string(counts.front()),
                "--master-addr=" + hosts.front().name,
                "--master-port=" + std::to_string(kPrintedPort)};
    std::string set;
    for (const auto& [name, value] : printed_variables(job)) set += name + "=" + quoted(value) + " ";
    text += "# on " + hosts[h].name + "\n" + set +
            command_line(joined(std::move(words), printed_command(job))) + "\n";
  }
  return text;
}

Result<std::string> for_mpi(const JobSpec& job, const Words&) {
  std::string list;
  const JobHosts placed = printed_hosts(job);
  const std::vector<HostEntry>& hosts = placed.entries;
  for (std::size_t h = 0; h < hosts.size(); ++h)
    list += (h ? "," : "") + hosts[h].name + ":" + std::to_string(placed.ranks[h]);
  Words words{"mpirun", "-n", std::to_string(job.ranks), "--host", list, "--bind-to", "none"};
  NamedTexts variables = printed_variables(job);
  variables.emplace_back("MASTER_ADDR", hosts.front().name);
  variables.emplace_back("MASTER_PORT", std::to_string(kPrintedPort));
  for (const auto& [name, value] : variables) words.insert(words.end(), {"-x", name + "=" + value});
  return command_line(joined(std::move(words), printed_command(job))) + "\n";
}

constexpr PrintedForm kForms[] = {{"torchrun", for_torchrun}, {"mpi", for_mpi}};

}  // namespace
}  // namespace mpi

Result<std::vector<HostEntry>> hosts_of_node_file() {
  for (const char* name : {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"})
    if (const char* path = std::getenv(name); path && *path) return parse_hosts(std::string("@") + path);
  return Problem{"environment",
                 "no scheduler names the hosts (PBS_NODEFILE and LSB_DJOB_HOSTFILE are not set)",
                 "list them: hosts: [node1:2, node2:2], or hosts: @FILE"};
}

constinit const Engine kMpi{.name = "mpi",
                            .title = "MPI",
                            .client = "mpirun",
                            .through_shell = false,
                            .starts = 2,
                            .command = mpi::over_mpirun,
                            .allocated = hosts_of_node_file,
                            .forms = mpi::kForms};

}  // namespace millrace
