// A model: an ordered list of named layers, the named tensors between them, the fields of a batch that they
// read, and the heads in which it ends.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"
#include "runtime/model/batch.h"

namespace millrace {

/// In a FieldSpec's shape: the length of dimension `d` of the model, which varies from microbatch to
/// microbatch.
constexpr std::int64_t dimension(int d) {
  return -1 - d;
}

/// What samples are, where data sets make them by rules of their own (docs/data.md, docs/language.md).
enum class SampleForm {
  Tensors,      ///< any, of the fields' shapes and types
  Translation,  ///< pairs of sentences: fields source, target, labels
  RunningText,  ///< fields tokens, labels
  BertPairs,    ///< pairs of segments: input_ids, token_type_ids, masked_positions, masked_labels,
                ///< next_sentence
  Captions,     ///< of videos: fields frames, tokens, labels
  Points,       ///< clouds: fields points and target or labels
};

/// A tensor of the batch. Layers and heads read it by name, like the output of a layer; every stage that
/// reads it loads it itself.
struct FieldSpec {
  std::string name;
  Shape shape;  ///< of one sample, without the batch dimension: {3, 224, 224}, {} for a label, {dimension(0)}
  at::ScalarType dtype = at::kFloat;
  std::int64_t limit = 0;    ///< integers: values lie in [0, limit); 0: no bound
  std::int64_t padding = 0;  ///< fills a sample that is shorter than the longest of its microbatch
  int batch_dimension = 0;   ///< where the samples stand in the batch's tensor: 1 for time-major [T, B]
  SampleForm form = SampleForm::Tensors;  ///< of all fields of a model, and so of its samples
};

/// Of the field's tensor in a microbatch.
Shape field_shape(const FieldSpec& field, const BatchExtent& extent);

/// A length that varies: each microbatch is padded to its own longest sample.
struct Dimension {
  std::string name;
  std::int64_t nominal = 16;  ///< what a profile takes, if it is not told otherwise
};

/// `inputs` are fields or outputs of earlier layers.
struct NamedLayer {
  std::string name;  ///< unique; parameters are `name + "." + spec.name` (the reference's state_dict names)
  LayerPtr layer;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;  ///< names of the tensors made, unique; empty: one, the layer's name
  /// (own parameter, full name of another layer's parameter): the other layer owns it. Both use the same
  /// values; gradients of all uses are summed, the owner's first, then by layer.
  std::vector<std::pair<std::string, std::string>> tied;
  bool full_names = false;  ///< its specs' names are full already: its parameters are not below one module
  /// Full names of parameters that ask for a gradient, but from which no path leads to the loss. They are
  /// among its buffers.
  std::vector<std::string> unreached{};
  // -- in a turn (turns.h) --
  bool frozen = false;            ///< another turn trains its parameters: gradients only pass through it
  bool keeps_statistics = false;  ///< its running statistics stay as they are: another turn updates them

  std::string parameter_name(const ParameterSpec& spec) const;
  /// Whether another layer owns the parameter.
  bool is_tied(const ParameterSpec& spec) const;
  std::vector<std::string> output_names() const { return outputs.empty() ? std::vector{name} : outputs; }
};

/// `inputs` as a layer's. All heads are computed by the last stage: what they read of earlier ones crosses.
struct NamedHead {
  std::string name;  ///< unique among the heads
  HeadPtr head;
  std::vector<std::string> inputs;
  double weight = 1;  ///< of its loss in the sum that is trained
};

struct Turn;

/// Pure description, cheap to copy. A skip connection is a layer with two inputs (Add).
struct LayeredModel {
  std::string name;
  std::vector<FieldSpec> fields;
  std::vector<Dimension> dimensions;
  std::vector<std::string> counts;  ///< what a BatchExtent counts beside samples, e.g. "tokens"
  std::vector<NamedLayer> layers;
  std::vector<NamedHead> heads;
  /// Of a job array (fuse.h): the models that it was made of. Its layers have the names of theirs.
  std::vector<LayeredModel> of_jobs;
  /// A step is an update by each of them, one after the other; empty: one update of everything.
  std::vector<Turn> turns;

  int jobs() const { return of_jobs.empty() ? 1 : static_cast<int>(of_jobs.size()); }
  std::vector<std::string> layer_names() const;
  std::int64_t num_parameters() const;                    ///< trainable elements; a tied one counts once
  const FieldSpec* field(const std::string& name) const;  ///< nullptr: there is none
  /// `samples` samples of nominal lengths; every count equals `samples` times the longest of them.
  BatchExtent nominal_extent(std::int64_t samples) const;
};

/// One of the updates that make a step of a model whose parts are trained against each other (turns.h).
struct Turn {
  std::string name;
  LayeredModel model;  ///< the whole one's layers as far as this turn's heads depend on them, some frozen
};

/// What is wrong with a model by itself: names that are not unique or not there, ties to nowhere, no head,
/// turns that do not fit it.
Problems validate(const LayeredModel& model);

/// A model that reads images or vectors ("input", float32 of `sample_shape`) and integer labels ("target" in
/// [0, classes)). Its layers and head are still to be added.
LayeredModel classifier(std::string name, Shape sample_shape, std::int64_t classes);
/// Ends a classifier: softmax cross-entropy on the last layer's output.
void end_in_cross_entropy(LayeredModel& model);

/// Where the owner of a tied parameter is.
struct ParameterPlace {
  int layer = 0;  ///< index in the model
  int spec = 0;   ///< index in its parameters()
};
std::optional<ParameterPlace> find_parameter(const LayeredModel& model, const std::string& full_name);

}  // namespace millrace
