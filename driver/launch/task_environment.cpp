#include "driver/launch/task_environment.h"

#include <cstdlib>
#include <vector>

#include "runtime/base/numbers.h"

namespace millrace {
namespace {

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The variables in which a scheduler says where a task stands.
struct Variables {
  const char* scheduler;
  const char* size;
  const char* rank;
  const char* local_rank;
  const char* local_size;
};

constexpr Variables kOpenMpi{"Open MPI (mpirun)", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Variables kPmi{"PMI (mpiexec)", "PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Variables kSlurmStep{"Slurm (srun)", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", ""};
// Without the variables of a step.
constexpr Variables kSlurmJob{"Slurm", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", ""};

/// Tells whether this is the script of a batch job. Slurm sets its variables there too, but the script is no
/// task.
bool is_batch_script() {
  return value_of("ENVIRONMENT") == "BATCH" && value_of(kSlurmJob.rank) == "0";
}

/// Returns the variables of Slurm that are set; null if none of them speaks of tasks.
const Variables* slurm() {
  if (!value_of(kSlurmStep.size).empty()) return &kSlurmStep;
  const bool speaks = !value_of(kSlurmJob.size).empty() && !value_of(kSlurmJob.rank).empty();
  return speaks && !is_batch_script() ? &kSlurmJob : nullptr;
}

bool say_the_same(const Variables& a, const Variables& b) {
  return value_of(a.size) == value_of(b.size) && value_of(a.rank) == value_of(b.rank);
}

/// The innermost; null: none.
const Variables* scheduler() {
  const Variables* of_slurm = slurm();
  if (!value_of(kOpenMpi.size).empty()) return &kOpenMpi;
  // srun sets PMI's too, and says more itself.
  if (!value_of(kPmi.size).empty() && !(of_slurm && say_the_same(*of_slurm, kPmi))) return &kPmi;
  return of_slurm;
}

std::string text_of(const Variables& variables) {
  std::string text;
  for (const char* name : {variables.size, variables.rank, variables.local_rank, variables.local_size,
                           "SLURM_STEP_NODELIST", "SLURM_DISTRIBUTION", "SLURM_HET_SIZE", "MASTER_ADDR"}) {
    if (const std::string value = value_of(name); !value.empty())
      text += (text.empty() ? "" : " ") + std::string(name) + "=" + value;
  }
  return text;
}

/// Returns the number if it lies between `low` and `high`, both included.
std::optional<int> number_in(const char* name, int low, int high) {
  const std::optional<int> value = number_of<int>(value_of(name));
  return value && *value >= low && *value <= high ? value : std::nullopt;
}

bool is_on_one_host(const Variables& variables, int size) {
  if (*variables.local_size) return number_of<int>(value_of(variables.local_size)) == size;
  return value_of("SLURM_STEP_NUM_NODES") == "1" || value_of("SLURM_JOB_NUM_NODES") == "1";
}

/// Returns the host on which Slurm has put task 0; empty if that is not certain.
std::string host_of_slurm(const Variables& variables) {
  const Variables* of_slurm = slurm();
  const bool by_hand = value_of("SLURM_DISTRIBUTION").starts_with("arbitrary");
  const bool several_parts = !value_of("SLURM_HET_SIZE").empty();
  if (!of_slurm || by_hand || several_parts || !say_the_same(*of_slurm, variables)) return "";
  return first_host(value_of("SLURM_STEP_NODELIST"));
}

constexpr const char* kSetAll =
    "set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for every task, as torchrun does";

}  // namespace

std::string first_host(const std::string& nodelist) {
  std::string host;
  for (std::size_t at = 0; at < nodelist.size() && nodelist[at] != ','; ++at) {
    if (nodelist[at] != '[') {
      host += nodelist[at];
      continue;
    }
    const std::size_t close = nodelist.find(']', at), end = nodelist.find_first_of(",-]", at);
    if (close == std::string::npos) return "";
    host += nodelist.substr(at + 1, end - at - 1);
    at = close;
  }
  return host;
}

bool is_task_of_pmix() {
  const std::string rank = value_of("PMIX_RANK");
  if (value_of("PMIX_NAMESPACE").empty() || rank.empty() || !value_of("MASTER_ADDR").empty()) return false;
  const Variables* variables = scheduler();
  return !variables || (value_of(variables->size) != "1" && value_of(variables->rank) == rank);
}

Result<std::optional<TaskPlace>> task_of_environment() {
  const Variables* variables = scheduler();
  if (!variables || value_of(variables->size) == "1") return std::optional<TaskPlace>();
  TaskPlace place{.scheduler = variables->scheduler, .variables = text_of(*variables)};
  const std::string says = place.scheduler + " says that this is one of several tasks, ";
  const std::optional<int> size = number_in(variables->size, 2, 1 << 20);
  const std::optional<int> rank = size ? number_in(variables->rank, 0, *size - 1) : std::nullopt;
  if (!rank) return Problem{"environment", says + "but not which one: " + place.variables, kSetAll};
  place.size = *size;
  place.rank = *rank;
  place.one_host = is_on_one_host(*variables, *size);
  const std::optional<int> local = number_in(variables->local_rank, 0, *size - 1);
  if (!local && !place.one_host)
    return Problem{"environment", says + "but not which one of its host: " + place.variables, kSetAll};
  place.local_rank = local.value_or(*rank);
  place.host = value_of("MASTER_ADDR");
  if (place.host.empty()) place.host = place.one_host ? "127.0.0.1" : host_of_slurm(*variables);
  if (place.host.empty()) {
    return Problem{"environment", says + "but not on which host task 0 is: " + place.variables,
                   "set MASTER_ADDR to the host of task 0 (and MASTER_PORT, if 29500 is taken there)"};
  }
  if (const std::optional<long> id = number_of<long>(value_of("SLURM_JOB_ID"));
      id && variables->rank == kSlurmStep.rank) {
    const std::string step = value_of("SLURM_STEP_ID");
    place.port = static_cast<int>(20000 + (*id + number_of<long>(step).value_or(0)) % 10000);
    place.job = "slurm " + std::to_string(*id) + (step.empty() ? "" : "." + step);
  }
  return std::optional(place);
}

}  // namespace millrace
