// What `millrace simulate` simulates, read from its flags: a plan, or a shape. LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "driver/cli/cli.h"
#include "runtime/schedule/simulate.h"

namespace millrace {

constexpr std::int64_t kMostSimulatedRanks = 4096;
constexpr std::int64_t kMostSimulatedMicrobatches = 1 << 20;
constexpr std::int64_t kMostSimulatedArrays = 1024;

struct SimulationSubject {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  PipelineShape shape;
  ScheduleCosts costs;
  SimulationOptions options;
  std::optional<Schedule> schedule;  ///< read from a file, or ordered already; none: to be made
  std::vector<int> stash_cap;        ///< list_schedule's; by rank
  std::vector<std::string> notes;    ///< for the user
};

/// A pipeline of `stages` places with `microbatches`; the rest from --replicas, --chunks, --placement,
/// --arrays (each of `microbatches`), --update-every, --stash-limit and the cost flags.
/// One value of a cost is that of a rank's layers and is divided among its chunks; a list has one for each
/// stage.
SimulationSubject subject_from_flags(Arguments& arguments, ScheduleKind kind, int stages, int microbatches,
                                     Problems& problems);

/// --schedule-file without a plan; costs from flags. Sets `code` for a wrong file.
Result<SimulationSubject> subject_from_file(Arguments& arguments, int& code);

/// --plan with --profile, --cluster, --schedule or --schedule-file, --microbatches. Sets `code` for wrong
/// data files.
Result<SimulationSubject> subject_from_plan(Arguments& arguments, int& code);

/// The flags that a plan answers by itself.
std::vector<const char*> shape_flags();
std::vector<Flag> simulation_subject_flags();

}  // namespace millrace
