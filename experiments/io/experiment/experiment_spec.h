// The file of `millrace experiment`: workloads, and what of each is varied. LibTorch-free.
//   name, output_dir, seed, repeats, order: listed | shuffled, cache: [warm, cold],
//   variants: [original, ...], captured
//   workloads: a list of
//     name, job (a file or the job itself), ranks: [1, 2], ranks_are: replicas | stages, batch: [2, 4],
//     microbatches (of each replica), data: a list of what --data takes, or of
//       {name, path, generate: {flags of `millrace data generate`}, folder, generated}
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/flags/compute_specs.h"
#include "experiments/sweep/swept_job.h"
#include "runtime/base/choices.h"

namespace millrace {

enum class CacheState {
  Warm,  ///< the data are read once before the run, as far as they fit
  Cold   ///< their pages are dropped before the run
};
constexpr auto names_of(CacheState) {
  return std::to_array<std::string_view>({"warm", "cold"});
}
enum class CellOrder { Listed, Shuffled };
constexpr auto names_of(CellOrder) {
  return std::to_array<std::string_view>({"listed", "shuffled"});
}
enum class RanksAre { Replicas, Stages };
constexpr auto names_of(RanksAre) {
  return std::to_array<std::string_view>({"replicas", "stages"});
}

/// Data of a workload.
struct ExperimentData {
  std::string name;
  std::string path;                   ///< as --data has it; {}: the folder of what is generated
  std::vector<std::string> generate;  ///< flags of `millrace data generate`; empty: the data are there
  std::string folder;                 ///< below the generated folder, where the files go; or empty
  std::string generated;              ///< --variant-from of the generated variant; or empty
};

struct ExperimentWorkload {
  std::string name;
  SweptJob job;
  RanksAre ranks_are = RanksAre::Replicas;
  std::vector<int> ranks, batch;
  int microbatches = 1;  ///< of each replica in a step
  std::vector<ExperimentData> data;
};

/// One run.
struct ExperimentCell {
  std::size_t workload = 0, data = 0;
  RunVariant variant = RunVariant::Original;
  int ranks = 1, batch = 1, repeat = 1;
  CacheState cache = CacheState::Warm;
};

struct ExperimentSpec {
  std::string name, source, output_dir;
  std::uint64_t seed = 1;
  int captured = 0;  ///< repeats of each variant, and of DLIO, under `trace capture`
  std::vector<ExperimentWorkload> workloads;
  std::vector<ExperimentCell> cells;  ///< in the order in which they run
  Json identity;                      ///< all that decides the results

  const ExperimentWorkload& workload_of(const ExperimentCell& cell) const { return workloads[cell.workload]; }
  const ExperimentData& data_of(const ExperimentCell& cell) const {
    return workloads[cell.workload].data[cell.data];
  }
  /// "unet3d data=small ranks=1 batch=2 warm": all runs of it do the same but for the variant.
  std::string group_of(const ExperimentCell& cell) const;
  /// "cells/unet3d-small-r1-b2-warm-sleep-1": key of the journal, and folder below the output folder.
  std::string key_of(const ExperimentCell& cell) const;
  /// The instrumented run of the first repeat, from which a sleeping one takes its times.
  ExperimentCell source_of(ExperimentCell sleeping) const;
  /// --data of the cell's runs.
  std::string path_of(const ExperimentData& data, const ExperimentWorkload& workload) const;
  std::string generated_folder(const ExperimentData& data, const ExperimentWorkload& workload) const;
  /// Everything but the output folder.
  Result<JobSpec> job_of(const ExperimentCell& cell) const;
};

/// Problems: everything that is wrong with the file, with its places.
Result<ExperimentSpec> load_experiment(const std::string& path);

}  // namespace millrace
