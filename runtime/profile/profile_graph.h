// Converts the samples of a profile to the LayerGraph that the planner reads.
#pragma once

#include <string>
#include <vector>

#include "runtime/model/stage_layout.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/profile/profile_options.h"
#include "runtime/profile/profiler.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Seconds of one quantity, one sample per repetition.
using Samples = std::vector<double>;

struct LayerSamples {
  Samples forward, backward_input, backward_weight;
};

/// The times of one of the measured microbatches.
struct BatchSamples {
  Samples forward, loss, backward;  ///< sums over all layers
  std::vector<LayerSamples> layers;
};

/// Samples by turn, then by microbatch. A model without turns has one entry.
using TurnSamples = std::vector<std::vector<BatchSamples>>;

/// By layer, for each tensor that it reads: 1 if the layer keeps the tensor and it counts in an earlier
/// layer.
using KeptInputs = std::vector<std::vector<char>>;

/// The memory measured in the passes of one turn, by layer.
struct PassBytes {
  explicit PassBytes(std::size_t layers)
      : saved_bytes(layers),
        saved_output_bytes(layers),
        saved_input_bytes(layers),
        between_bytes(layers),
        workspace_bytes(layers),
        input_workspace_bytes(layers),
        weight_workspace_bytes(layers) {}
  std::vector<Bytes> saved_bytes, saved_output_bytes, saved_input_bytes, between_bytes, workspace_bytes,
      input_workspace_bytes, weight_workspace_bytes;
  KeptInputs keeps_counted;
};

struct ProfileMeasurements {
  const LayeredModel& model;
  const ProfileOptions& options;
  const StageLayout& layout;
  const ParameterStore& store;
  const ProfileBatches& batches;
  const TurnSamples& times;
  std::vector<const PassBytes*> bytes;  ///< by turn
  /// Prefetched batches are in the device's memory; else in the host's.
  bool batches_wait_on_device;
  std::string device;
};

std::int64_t elements_of(const Shape& shape);
/// Returns the bytes of each tensor for a microbatch of `extent`, by index in StageLayout::tensors.
std::vector<Bytes> tensor_bytes(const StageLayout& layout, const BatchExtent& extent);
/// Returns the bytes of each layer's outputs. `tensors` has the bytes of each tensor.
std::vector<Bytes> output_bytes(const StageLayout& layout, const std::vector<Bytes>& tensors);
/// Returns the layouts of all turns; for a model without turns the layout itself.
std::vector<const StageLayout*> turns_of(const StageLayout& layout);
/// Returns the microbatch for which memory is measured.
const ProfileBatches::One& longest_of(const ProfileBatches& batches);

/// Returns the graph of all turns together, without the times of updates and sums.
LayerGraph graph_of(const ProfileMeasurements& measured);
/// Adds the costs of each turn to `graph`, which must otherwise be complete.
void add_turns(LayerGraph& graph, const ProfileMeasurements& measured);

}  // namespace millrace
