// The kit's raw runs to its CSVs: phases, aligned traces, timelines by process, GPU, CPU and disk samples.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/io/trace/process_groups.h"
#include "experiments/io/trace/time_zone.h"
#include "experiments/io/trace/trace_reader.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

struct PreprocessOptions {
  std::string folder;  ///< a raw run
  TracedWorkload workload = TracedWorkload::Unet3d;
  std::string out;               ///< results go to OUT/<name of folder>; empty: folder/processed
  std::optional<TimeZone> zone;  ///< of the machine that was traced; nothing: Montreal's if the log agrees,
                                 ///< else the offset that makes it agree
  std::string app_log;           ///< empty: searched
  std::vector<std::uint32_t> ignore_pids;
  bool app_log_only = false;  ///< the kit's -ml
  int threads = 2;
  std::size_t run_events = std::size_t{1} << 20;                        ///< sorted in memory at once
  std::function<void(std::int64_t done, std::int64_t total)> progress;  ///< bytes of the raw traces
};

struct PreprocessReport {
  std::string folder;  ///< where the results are
  std::string zone;
  TimeReference reference;
  std::int64_t init_start = 0;
  std::array<TraceCounts, 4> traces;  ///< by TraceKind
  std::int64_t events = 0;            ///< rows of all_combined
  Dropped events_dropped;             ///< of the timeline
  ProcessGroups processes;
  std::vector<PhaseSpan> phases;
  std::map<std::string, Dropped> dropped;  ///< of the other files, by name
  std::vector<std::string> notes;

  Json json() const;  ///< preprocess.json
};

/// Writes everything beside the target first and moves it there when all is done: an interrupted run leaves
/// no half results. Problem: files missing (all of them named), input that cannot be trusted, a target that
/// would overwrite the raw files. Throws DataError when the disk fails.
Result<PreprocessReport> preprocess(const PreprocessOptions& options);

}  // namespace millrace
