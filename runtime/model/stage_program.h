// A compiled stage: its layers, heads and borders as integers. It is immutable. The code that runs it
// (StageExecutor, the profiler) needs no name lookups.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/layers/forward_writes.h"
#include "runtime/model/stage_layout.h"

namespace millrace {

/// A layer whose tensors are indices into the stage's list of tensors ("places").
struct LayerStep {
  const NamedLayer* named = nullptr;
  const Layer* layer = nullptr;
  const MultiLayer* multi = nullptr;       ///< `layer` as a MultiLayer, if it has several outputs; else null
  const CarriesState* carrying = nullptr;  ///< `layer` as a CarriesState, if it carries states; else null
  std::size_t num_carried = 0;
  int index = 0;                     ///< in the model
  std::vector<int> inputs, outputs;  ///< places
  /// for a microbatch of nominal extent
  std::vector<Shape> input_shapes{}, output_shapes{};
  std::vector<char> needs;       ///< by input: 1 if it needs a gradient
  std::vector<char> together{};  ///< CallContext::together
  bool has_backward = true;      ///< an output needs a gradient
  bool has_parameters = false;   ///< it has trainable parameters
  bool frozen = false;           ///< NamedLayer::frozen
  bool keeps_statistics = false;
  bool draws = false;
  // -- with a lower precision; otherwise Undefined and empty --
  at::ScalarType compute = at::ScalarType::Undefined;       ///< the type that floating inputs are cast to
  bool lowers_parameters = false;                           ///< parameters are cast too
  std::vector<at::ScalarType> input_dtypes, output_dtypes;  ///< types of the tensors and of their gradients
  std::vector<int> read_last;  ///< places that no reader in any stage needs after this layer
};

struct HeadStep {
  const NamedHead* named = nullptr;
  const Head* head = nullptr;
  int use = 0;  ///< its number as a reader: number of layers + index of the head
  std::vector<int> inputs;
  std::vector<char> needs;
  std::vector<at::ScalarType> input_dtypes;  ///< as in LayerStep; a head computes in float32
  /// the count that weights its loss: index in LayeredModel::counts, or -1 for samples
  int count = -1;
  std::size_t sums = 0;  ///< index of its first sum among the sums of all heads of the model
  std::size_t num_sums = 0;
};

/// A tensor at a border: its index in StageLayout::crossings and its place in this stage.
struct Port {
  int crossing = 0;
  int place = 0;
};

/// The tensors sent between this stage and another one. Activations are sent for all ports, gradients only
/// for those in `gradients`.
struct Border {
  int peer = 0;  ///< the other stage
  std::vector<Port> ports;
  std::vector<Port> gradients;
};

/// Gradients [begin, end) of each job's part of the flat tensor that are reduced together. They are complete
/// after the backward of layer `first_layer` (index in the stage) and of all later layers.
struct Bucket {
  int first_layer = 0;
  std::int64_t begin = 0, end = 0;
};

struct StageProgram {
  StageId stage;
  std::vector<LayerStep> steps;
  std::vector<HeadStep> heads;
  std::vector<std::pair<int, int>> fields;  ///< (field of the batch, place)
  /// number of leading places, which hold the fields and then the tensors received from other stages
  int num_incoming = 0;
  int num_places = 0;
  /// stages from which this one receives activations, and stages to which it sends them
  std::vector<Border> earlier, later;
  /// 1 for each place whose tensor is sent to another stage, or whose gradient is returned per use
  /// (Crossing::summed). Its gradient is summed when all parts are available.
  std::vector<char> in_parts;
  std::size_t num_sums = 0;  ///< sums of all heads of the model
  ForwardWrites writes;      ///< union over all its layers

  bool reads_batch() const { return !fields.empty(); }
  const Border* earlier_from(int peer) const;
  const Border* later_to(int peer) const;
};

/// Casts each tensor to its entry of `dtypes`. An empty `dtypes` casts nothing.
void cast_each(std::vector<at::Tensor>& tensors, const std::vector<at::ScalarType>& dtypes);

StageProgram compile_stage(const StageLayout& layout, StageId stage);

/// Joins the values of jobs. One job: its values. Several: "loss", the mean over the jobs whose loss is
/// finite, then each job's values as "loss.job0" and so on.
NamedValues values_of_jobs(const std::vector<NamedValues>& jobs);
/// Computes metrics from the sums of all heads. One head: its values. Several: "loss", the weighted total,
/// and each head's values as "head.metric". Job arrays use job_values instead.
NamedValues head_values(const LayeredModel& model, std::span<const double> sums);
/// Computes the metrics of each job from the sums of all heads; one job if the model is not an array.
std::vector<NamedValues> job_values(const LayeredModel& model, std::span<const double> sums);
/// Returns the number of sums of all heads: one per metric and one for the weight of each head.
std::size_t num_head_sums(const LayeredModel& model);

}  // namespace millrace
