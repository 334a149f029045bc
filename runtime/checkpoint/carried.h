// What layers carry over text that runs on (CarriesState), in a checkpoint: by layer and row, so that any
// plan goes on with what any other saved.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/stage/stage_executor.h"

namespace millrace {

/// Microbatches that those to come follow, by position.
struct CarriedRows {
  std::int64_t position = 0;
  std::int64_t samples = 0;
};

/// Adds "carried/LAYER/NAME" [rows, ...], the rows of all `microbatches` one after the other. Collective over
/// the stage's replicas (null: none), each of which has some.
void add_carried(NamedTensors& state, StageExecutor& executor, const ParameterStore& store,
                 std::span<const CarriedRows> microbatches, Communicator* replicas);
/// Throws CheckpointError where they are not there or have other rows.
void load_carried(const Checkpoint& checkpoint, StageExecutor& executor, const ParameterStore& store,
                  std::span<const CarriedRows> microbatches);

}  // namespace millrace
