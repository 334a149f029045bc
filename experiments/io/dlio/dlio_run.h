// One process of an emulated job: drives its share of the ranks through generation, epochs, evaluations and
// checkpoints. Several ranks in one thread, because their computation is waiting: a process for each would
// spend a short step on switching between them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "experiments/io/dlio/dlio_config.h"
#include "experiments/io/dlio/process_group.h"
#include "runtime/base/choices.h"

namespace millrace {

enum class EmulationClock { Real, Virtual };
constexpr auto names_of(EmulationClock) {
  return std::to_array<std::string_view>({"real", "virtual"});
}
enum class ContentCheck { None, Contents };
constexpr auto names_of(ContentCheck) {
  return std::to_array<std::string_view>({"none", "contents"});
}

struct DlioRunOptions {
  int ranks = 1;
  EmulationClock clock = EmulationClock::Real;
  ContentCheck check = ContentCheck::None;
  std::chrono::milliseconds timeout{300'000};
  int calibration_steps = 200;    ///< measured before training; 0: none
  std::uint64_t random_seed = 0;  ///< of `random` shuffling: one for all processes
  std::string output;             ///< folder
};

/// Ranks [first, end) of process `process` of `processes`.
struct RankRange {
  int first = 0, end = 0;
};
RankRange ranks_of(int process, int processes, int ranks);

/// Problems of configuration and ranks together.
Problems check_run(const DlioConfig& config, const DlioRunOptions& options);

/// Runs to the end; process 0 writes summary.json and prints the metrics. Throws DataError, CheckpointError,
/// PeerError.
void run_dlio_process(const DlioConfig& config, const DlioRunOptions& options, ProcessGroup& group);

}  // namespace millrace
