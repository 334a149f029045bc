// Finds the processes of a trace that are workers, those that are a worker's data loaders, and those that
// have nothing to do with the run.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/io/trace/app_log.h"

namespace millrace {

/// The name that a process of PyTorch's DataLoader gives itself.
inline constexpr std::string_view kLoaderName = "pt_data_worker";

/// The reads of one process.
struct ReadActivity {
  std::int64_t rows = 0;
  bool dataset_files = false;                         ///< of the names that the workload's data have
  bool loader = false;                                ///< it has the name of PyTorch's loader processes
  std::map<std::uint64_t, std::uint64_t> by_pattern;  ///< bytes by name pattern; at most 64
};
using ReadActivities = std::map<std::uint32_t, ReadActivity>;
void add(ReadActivities& to, const ReadActivities& more);

/// PIDs of `docker top -efT` (pids_*.out): the container's processes when it was asked.
std::set<std::uint32_t> read_container_pids(std::string_view text);

struct ProcessEvidence {
  ReadActivities reads;
  std::set<std::uint32_t> on_gpu;           ///< without those beside another on one GPU
  std::set<std::uint32_t> gpu_before_init;  ///< seen on a GPU before the run began
  std::set<std::uint32_t> container;        ///< empty: not known
  std::set<std::uint32_t> excluded;         ///< what the user said is foreign
};

struct ProcessGroups {
  std::vector<std::uint32_t> parents;  ///< ascending: worker i
  std::vector<std::uint32_t> loaders;  ///< ascending: loader k is of worker k mod parents
  std::vector<std::pair<std::uint32_t, std::string>> foreign;  ///< and why
  std::vector<std::uint32_t> gpu_without_reads;
};

/// Parents are on a GPU and read; loaders read files of the data set and are on none (BERT has none of its
/// own). DLIO needs no GPU: all that read are parents; so it is with any command that ran without one, but
/// for its named loaders. Of a number of loaders that the parents do not divide, those furthest from any
/// parent's PID go. No parents: the caller's to refuse.
ProcessGroups classify(const ProcessEvidence& evidence, TracedWorkload workload);

}  // namespace millrace
