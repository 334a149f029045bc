// A stage that is compiled once: its layers, heads and borders as integers. It is immutable. The code that
// runs it (StageExecutor, the profiler) looks up no name.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/layers/forward_writes.h"
#include "runtime/model/stage_layout.h"

namespace millrace {

/// A layer whose tensors are places: indices into the stage's list of tensors.
struct LayerStep {
  const NamedLayer* named = nullptr;
  const Layer* layer = nullptr;
  const MultiLayer* multi = nullptr;       ///< `layer` as a MultiLayer, if it has several outputs; else null
  const CarriesState* carrying = nullptr;  ///< `layer` as a CarriesState, if it carries states; else null
  std::size_t num_carried = 0;
  int index = 0;                     ///< in the model
  std::vector<int> inputs, outputs;  ///< places
  /// of a microbatch of nominal extent
  std::vector<Shape> input_shapes{}, output_shapes{};
  std::vector<char> needs;       ///< by input: 1 if it wants a gradient
  std::vector<char> together{};  ///< CallContext::together
  bool has_backward = true;      ///< an output wants a gradient
  bool has_parameters = false;   ///< it has parameters to train
  bool frozen = false;           ///< NamedLayer::frozen
  bool keeps_statistics = false;
  bool draws = false;
  // -- with a lower precision; Undefined and empty without --
  at::ScalarType compute = at::ScalarType::Undefined;       ///< the type that floating inputs are cast to
  bool lowers_parameters = false;                           ///< parameters are cast too
  std::vector<at::ScalarType> input_dtypes, output_dtypes;  ///< types of the tensors and of their gradients
  std::vector<int> read_last;  ///< places that nothing reads after this layer, in this stage or another
};

struct HeadStep {
  const NamedHead* named = nullptr;
  const Head* head = nullptr;
  int use = 0;  ///< its number as a reader: number of layers + index of the head
  std::vector<int> inputs;
  std::vector<char> needs;
  std::vector<at::ScalarType> input_dtypes;  ///< as in LayerStep; a head computes in float32
  int count = -1;        ///< what its loss is weighted by: index in LayeredModel::counts, or -1 for samples
  std::size_t sums = 0;  ///< index of its first sum among the sums of all heads of the model
  std::size_t num_sums = 0;
};

/// A tensor at a border: its index in StageLayout::crossings and its place in this stage.
struct Port {
  int crossing = 0;
  int place = 0;
};

/// The tensors that cross between this stage and one other. Activations cross at all ports, gradients only at
/// those in `gradients`.
struct Border {
  int peer = 0;  ///< the other stage
  std::vector<Port> ports;
  std::vector<Port> gradients;
};

/// Gradients [begin, end) of each job's part of the flat tensor that are reduced together. They are complete
/// once layer `first_layer` (position in the stage) and all after it have given theirs.
struct Bucket {
  int first_layer = 0;
  std::int64_t begin = 0, end = 0;
};

struct StageProgram {
  StageId stage;
  std::vector<LayerStep> steps;
  std::vector<HeadStep> heads;
  std::vector<std::pair<int, int>> fields;  ///< (field of the batch, place)
  /// number of the first places, which hold the fields and then the tensors that other stages send
  int num_incoming = 0;
  int num_places = 0;
  /// stages that send activations to this one, stages that this one sends them to
  std::vector<Border> earlier, later;
  /// 1 for each place whose tensor goes to another stage, or whose gradient goes back use by use
  /// (Crossing::summed). Its gradient is summed when all parts are there.
  std::vector<char> in_parts;
  std::size_t num_sums = 0;  ///< sums of all heads of the model
  ForwardWrites writes;      ///< of all its layers

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
/// Turns the sums of all heads into metrics. One head: its values. Several: "loss", the weighted total, and
/// each head's values as "head.metric". A job array has job_values instead.
NamedValues head_values(const LayeredModel& model, std::span<const double> sums);
/// Turns the sums of all heads into the metrics of each job; one job if the model is no array.
std::vector<NamedValues> job_values(const LayeredModel& model, std::span<const double> sums);
/// Returns the number of sums of all heads: a head has one for each metric, and one for its weight.
std::size_t num_head_sums(const LayeredModel& model);

}  // namespace millrace
