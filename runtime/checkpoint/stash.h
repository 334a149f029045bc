// Saves and loads an asynchronous run's state in addition to the newest weights.
#pragma once

#include <cstdint>

#include "runtime/checkpoint/checkpoint.h"

namespace millrace {

/// Adds the store's older weight versions as "stash/AGE/NAME": AGE updates before the newest.
void add_stash(NamedTensors& state, const ParameterStore& store);
/// Loads those weight versions into a store of the same stage, and returns their number. Throws
/// CheckpointError if one is incomplete.
std::int64_t load_stash(const Checkpoint& checkpoint, ParameterStore& store);

/// Adds "rule/updates/NAME" for each parameter whose update count is not `usual`, the job's count in the
/// manifest. Counts differ because replicas of an asynchronous pipeline share the steps.
void add_update_counts(NamedTensors& state, const ParameterStore& store, const UpdateRule& rule,
                       std::int64_t usual);
/// Loads each parameter's update count, from any stage's shard.
void load_update_counts(const Checkpoint& checkpoint, const ParameterStore& store, UpdateRule& rule,
                        std::int64_t usual);

/// Adds "rule/rate/NAME" for each parameter, if the rule's next update depends on the rate of the newest.
void add_last_rate(NamedTensors& state, const ParameterStore& store, const UpdateRule& rule);
void load_last_rate(const Checkpoint& checkpoint, const ParameterStore& store, UpdateRule& rule);

}  // namespace millrace
