// A model: an ordered list of named layers, the named tensors between them, the batch fields that they read,
// and the heads at its end.
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

/// Returns the placeholder in a FieldSpec's shape for the length of dimension `d` of the model. That length
/// varies between microbatches.
constexpr std::int64_t dimension(int d) {
  return -1 - d;
}

/// The structure of samples for which data sets have special rules (docs/data.md, docs/language.md).
enum class SampleForm {
  Tensors,      ///< any tensors of the fields' shapes and types
  Translation,  ///< pairs of sentences: fields source, target, labels
  RunningText,  ///< fields tokens, labels
  /// pairs of segments: fields input_ids, token_type_ids, masked_positions, masked_labels, next_sentence
  BertPairs,
  Captions,  ///< captions of videos: fields frames, tokens, labels
  Points,    ///< clouds of points: fields points and target or labels
  Volumes,   ///< crops of volumes: fields input, target (a class for each voxel) and window
  Clicks,    ///< clicks: fields dense, category0, category1, ... and label
};

/// A tensor of the batch. Layers and heads read it by name, like a layer's output. Every stage that reads a
/// field loads it itself.
struct FieldSpec {
  std::string name;
  /// shape of one sample without the batch dimension: {3, 224, 224}, {} for a label, {dimension(0)}
  Shape shape;
  at::ScalarType dtype = at::kFloat;
  std::int64_t limit = 0;    ///< integers: values are in [0, limit); 0: unbounded
  std::int64_t padding = 0;  ///< fills samples that are shorter than the longest of their microbatch
  /// the sample dimension of the batch's tensor: 1 for time-major [T, B]
  int batch_dimension = 0;
  SampleForm form = SampleForm::Tensors;  ///< the same for all fields of a model
  /// data sets read from files take a value modulo `limit`; otherwise a larger value is an error
  bool wraps = false;
};

/// Returns the shape of the field's tensor in a microbatch of `extent`.
Shape field_shape(const FieldSpec& field, const BatchExtent& extent);

/// A varying length: each microbatch is padded to its own longest sample.
struct Dimension {
  std::string name;
  std::int64_t nominal = 16;  ///< the default length in a profile
};

/// A layer with its name and its inputs, which are fields or outputs of earlier layers.
struct NamedLayer {
  std::string name;  ///< unique; parameters are `name + "." + spec.name` (the reference's state_dict names)
  LayerPtr layer;
  std::vector<std::string> inputs;
  /// unique names of the output tensors; empty: one output with the layer's name
  std::vector<std::string> outputs;
  /// Pairs (own parameter, full name of another layer's parameter). The other layer owns the parameter, and
  /// both layers use its values. The gradients of all uses are summed: the owner's first, then in layer
  /// order.
  std::vector<std::pair<std::string, std::string>> tied;
  /// its specs already have full names: its parameters are below several modules
  bool full_names = false;
  /// Full names of parameters that require a gradient although no path leads from them to the loss. They are
  /// among the layer's buffers.
  std::vector<std::string> unreached{};
  // -- in a turn (turns.h) --
  bool frozen = false;  ///< another turn trains its parameters: gradients only pass through the layer
  bool keeps_statistics = false;  ///< its running statistics are not updated: another turn updates them

  std::string parameter_name(const ParameterSpec& spec) const;
  /// Returns whether another layer owns the parameter.
  bool is_tied(const ParameterSpec& spec) const;
  std::vector<std::string> output_names() const { return outputs.empty() ? std::vector{name} : outputs; }
};

/// A head with its name and its inputs, which are as a layer's. The last stage computes all heads; tensors
/// that they read from earlier stages are sent to it.
struct NamedHead {
  std::string name;  ///< unique among the heads
  HeadPtr head;
  std::vector<std::string> inputs;
  double weight = 1;  ///< factor on its loss in the trained sum
};

struct Turn;

/// The description of a model; cheap to copy. A skip connection is a layer with two inputs (Add).
struct LayeredModel {
  std::string name;
  std::vector<FieldSpec> fields;
  std::vector<Dimension> dimensions;
  std::vector<std::string> counts;  ///< the names of a BatchExtent's counts other than samples, e.g. "tokens"
  std::vector<NamedLayer> layers;
  std::vector<NamedHead> heads;
  /// For a job array (fuse.h): the models that it combines. Its layers have the same names as theirs.
  std::vector<LayeredModel> of_jobs;
  /// The updates that make up a step, in order; empty: one update of everything.
  std::vector<Turn> turns;

  int jobs() const { return of_jobs.empty() ? 1 : static_cast<int>(of_jobs.size()); }
  std::vector<std::string> layer_names() const;
  std::int64_t num_parameters() const;                    ///< trainable elements; a tied one counts once
  const FieldSpec* field(const std::string& name) const;  ///< nullptr if there is none
  /// Returns the extent of `samples` samples with nominal lengths. Every count equals `samples` times the
  /// longest length.
  BatchExtent nominal_extent(std::int64_t samples) const;
};

/// One of the updates that make up a step of a model whose parts are trained against each other (turns.h).
struct Turn {
  std::string name;
  /// the layers of the whole model that this turn's heads depend on, some of them frozen
  LayeredModel model;
};

/// Returns an error for each defect of a model: names that are not unique or do not exist, ties to no
/// parameter, no head, turns that do not fit the model.
Problems validate(const LayeredModel& model);

/// Returns a model that reads images or vectors ("input", float32 of `sample_shape`) and integer labels
/// ("target" in [0, classes)). The caller adds layers and head.
LayeredModel classifier(std::string name, Shape sample_shape, std::int64_t classes);
/// Adds a head with softmax cross-entropy of the last layer's output to a classifier.
void end_in_cross_entropy(LayeredModel& model);

/// The location of a tied parameter's owner.
struct ParameterPlace {
  int layer = 0;  ///< index in the model
  int spec = 0;   ///< index in its parameters()
};
std::optional<ParameterPlace> find_parameter(const LayeredModel& model, const std::string& full_name);

}  // namespace millrace
