// A stage compiled once: its layers, heads and borders as integers. Immutable; what runs it (StageExecutor,
// the profiler) looks up no name.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/layers/carrying_layer.h"
#include "runtime/model/stage_layout.h"

namespace millrace {

/// A layer with its tensors as places among the stage's values.
struct LayerStep {
  const NamedLayer* named = nullptr;
  const Layer* layer = nullptr;
  const MultiLayer* multi = nullptr;       ///< the same, if it has several outputs
  const CarriesState* carrying = nullptr;  ///< the same, if it goes on where it ended
  std::size_t num_carried = 0;
  int index = 0;                     ///< in the model
  std::vector<int> inputs, outputs;  ///< places
  std::vector<char> needs;           ///< by input: wants a gradient
  std::vector<char> together{};      ///< CallContext::together
  bool has_backward = true;          ///< an output wants a gradient
  bool has_parameters = false;       ///< to be trained
  bool frozen = false;               ///< NamedLayer::frozen
  bool keeps_statistics = false;
  bool draws = false;
  // -- with a lower precision; Undefined and empty without --
  at::ScalarType compute = at::ScalarType::Undefined;       ///< what floating inputs are cast to
  bool lowers_parameters = false;                           ///< and parameters with them
  std::vector<at::ScalarType> input_dtypes, output_dtypes;  ///< of the tensors, which gradients share
  std::vector<int> read_last;  ///< places that nothing of this stage or another reads after it
};

struct HeadStep {
  const NamedHead* named = nullptr;
  const Head* head = nullptr;
  int use = 0;  ///< as a reader: number of layers + index of the head
  std::vector<int> inputs;
  std::vector<char> needs;
  std::vector<at::ScalarType> input_dtypes;  ///< as LayerStep's: a head computes in float32
  int count = -1;                            ///< what weighs it: index in LayeredModel::counts, -1: samples
  std::size_t sums = 0;                      ///< where its sums begin among those of all heads of the model
  std::size_t num_sums = 0;
};

/// A tensor at a border: its number in the layout and its place here.
struct Port {
  int crossing = 0;
  int place = 0;
};

/// The tensors that cross between this stage and one other. Activations cross at all ports, gradients only at
/// those in `gradients`.
struct Border {
  int peer = 0;  ///< stage
  std::vector<Port> ports;
  std::vector<Port> gradients;
};

/// Gradients [begin, end) of each job's part of the flat tensor that are reduced together once layer
/// `first_layer` (position in the stage) and all after it have given theirs.
struct Bucket {
  int first_layer = 0;
  std::int64_t begin = 0, end = 0;
};

struct StageProgram {
  StageId stage;
  std::vector<LayerStep> steps;
  std::vector<HeadStep> heads;
  std::vector<std::pair<int, int>> fields;  ///< (field of the batch, place)
  int num_incoming = 0;                     ///< the first places: fields, then what other stages send
  int num_places = 0;
  std::vector<Border> earlier, later;  ///< stages that send to this one, stages that this one sends to
  /// By place: 1 if several stages read the tensor. Its gradient is then summed when all parts are there.
  std::vector<char> in_parts;
  std::size_t num_sums = 0;  ///< of all heads of the model
  bool carries = false;      ///< a layer CarriesState

  bool reads_batch() const { return !fields.empty(); }
  const Border* earlier_from(int peer) const;
  const Border* later_to(int peer) const;
};

/// `dtypes`: as LayerStep's; nothing is cast if it is empty.
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
