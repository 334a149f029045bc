// Weights to start from: a safetensors file by torchvision's names, or a checkpoint of any run and plan.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/stage/layered_model.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// One file, or the shards of a checkpoint. What a checkpoint keeps beside weights and buffers (names with a
/// slash: state of the rule, stashed versions) does not count.
using WeightFiles = std::vector<const SafetensorsFile*>;

/// Compares names, shapes and types only: nothing is read but the headers. Every tensor of `model` must be in
/// `files`, and nothing else, except for names that match one of `left_out` (* and ? as in file names): those
/// of the model keep their initial values. num_batches_tracked may be there or not. Problems: all at once,
/// each with file and name; also a pattern that matches nothing.
Problems check_weights(const WeightFiles& files, const LayeredModel& model,
                       const std::vector<std::string>& left_out);

/// Copies what `files` have for this stage; the rest stays. Only after check_weights.
void load_weights(const WeightFiles& files, const std::vector<std::string>& left_out, ParameterStore& store);

}  // namespace millrace
