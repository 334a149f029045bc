// What `millrace simulate` simulates, read from its flags: a plan, or a shape. LibTorch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "driver/cli.h"
#include "runtime/schedule/simulate.h"

namespace millrace {

constexpr std::int64_t kMostSimulatedRanks = 4096;
constexpr std::int64_t kMostSimulatedMicrobatches = 1 << 20;

struct SimulationSubject {
  ScheduleKind kind = ScheduleKind::OneFOneB;
  PipelineShape shape;
  ScheduleCosts costs;
  SimulationOptions options;
};

/// A pipeline of `stages` places with `microbatches`; the rest from --replicas, --chunks and the cost flags.
/// One value of a cost is that of a rank's layers and is divided among its chunks; a list has one for each
/// stage.
SimulationSubject subject_from_flags(Arguments& arguments, ScheduleKind kind, int stages, int microbatches,
                                     Problems& problems);

/// --plan with --profile, --cluster, --schedule, --microbatches. Sets `code` for wrong data files.
Result<SimulationSubject> subject_from_plan(Arguments& arguments, int& code);

/// The flags that a plan answers by itself.
std::vector<const char*> shape_flags();
std::vector<Flag> simulation_subject_flags();

}  // namespace millrace
