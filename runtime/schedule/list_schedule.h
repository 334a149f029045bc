// Orders computations by measured costs under a memory cap.
#pragma once

#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

/// Orders F, I and W of each rank. `cap[rank]`: (stage, microbatch) pairs that the rank may have forwarded
/// and not yet finished with W; empty: no cap. A pair counts with its activations and what W needs, which the
/// schedule keeps together. Several greedy orders (earliest start; ties to I, then to later chunks, or to F;
/// caps from one round of the pipeline up) are made, every fixed flushing schedule that fits shape and cap is
/// taken as it is and with its W moved into idle time, all are simulated with `costs`, and the one of least
/// makespan is returned, of equals the one with the least peak stash: never worse than the best fixed
/// schedule. Replicas follow the round robin. Pure and deterministic; remaining ties go to the fixed
/// schedules in the order of ScheduleKind.
/// Problem if a cap is below the number of stages of its rank, or the shape fits no schedule at all.
Result<Schedule> list_schedule(const PipelineShape& shape, const ScheduleCosts& costs,
                               const std::vector<int>& cap = {});

}  // namespace millrace
