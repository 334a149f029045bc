// Saves and loads the states that layers carry over running text (CarriesState). A checkpoint has them by
// layer and row, so any plan can resume from any other plan's checkpoint.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/stage/stage_executor.h"

namespace millrace {

/// A microbatch that a later one follows: its position and its number of samples, which are its rows.
struct CarriedRows {
  std::int64_t position = 0;
  std::int64_t samples = 0;
};

/// Adds "carried/LAYER/NAME" [rows, ...] to `state`: the rows of all `microbatches` in order. Collective over
/// the stage's replicas, each of which has some of the microbatches; null: no replicas.
void add_carried(NamedTensors& state, StageExecutor& executor, const ParameterStore& store,
                 std::span<const CarriedRows> microbatches, Communicator* replicas);
/// Loads the states of `microbatches` into the executor. Throws CheckpointError if they are missing or have
/// another number of rows.
void load_carried(const Checkpoint& checkpoint, StageExecutor& executor, const ParameterStore& store,
                  std::span<const CarriedRows> microbatches);

}  // namespace millrace
