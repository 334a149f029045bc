// What an asynchronous run keeps beside the newest weights, in a checkpoint.
#pragma once

#include <cstdint>

#include "runtime/checkpoint/checkpoint.h"

namespace millrace {

/// Adds the store's older weight versions as "stash/AGE/NAME": AGE updates before the newest.
void add_stash(NamedTensors& state, const ParameterStore& store);
/// Adds them to a store of the same stage; returns how many there are. Throws CheckpointError if one is
/// incomplete.
std::int64_t load_stash(const Checkpoint& checkpoint, ParameterStore& store);

/// Adds "rule/updates/NAME" for each parameter that was not updated `usual` times, which the manifest says of
/// the job: replicas of an asynchronous pipeline share the steps.
void add_update_counts(NamedTensors& state, const ParameterStore& store, const UpdateRule& rule,
                       std::int64_t usual);
/// Each parameter gets its own count, whichever stage saved it.
void load_update_counts(const Checkpoint& checkpoint, const ParameterStore& store, UpdateRule& rule,
                        std::int64_t usual);

/// Adds "rule/rate/NAME" for each parameter, of a rule whose next update depends on the rate of the newest.
void add_last_rate(NamedTensors& state, const ParameterStore& store, const UpdateRule& rule);
void load_last_rate(const Checkpoint& checkpoint, const ParameterStore& store, UpdateRule& rule);

}  // namespace millrace
