// Orders computations by measured costs under a memory cap.
#pragma once

#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

/// Orders F, I and W of each rank. `cap[rank]` is the most (stage, microbatch) pairs that the rank may have
/// forwarded without having finished W; empty: no cap. A pair counts with its activations and what W needs,
/// because the schedule keeps them together.
///
/// The candidates are greedy orders and fixed schedules. A greedy order takes the earliest start; ties go to
/// I and then to later chunks, or to F; caps vary from one round of the pipeline up. Each fixed flushing
/// schedule that fits shape and cap is tried as it is, and with its W moved into idle time. All candidates
/// are simulated with `costs`. The result has the least makespan, and among equals the least peak stash. It
/// is therefore never worse than the best fixed schedule. Remaining ties go to the fixed schedules in the
/// order of ScheduleKind. Replicas follow the round robin. Pure and deterministic. It is a Problem if a cap
/// is below the number of stages of its rank, or if the shape fits no schedule.
Result<Schedule> list_schedule(const PipelineShape& shape, const ScheduleCosts& costs,
                               const std::vector<int>& cap = {});

}  // namespace millrace
