// A trained model's layers as what decodes uses them: weights found by name, a position at a time.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/initial_weights.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// One of the given weights, not yet read.
struct FoundWeight {
  std::string where;  ///< its file
  Shape shape;
  std::function<at::Tensor()> read;
};
/// The first of `names`, which are names of one weight.
using FindWeight = std::function<std::optional<FoundWeight>(const std::vector<std::string>& names)>;
/// `files`, or the tensors, outlive it; `whose` names these in messages.
FindWeight finder_of(const WeightFiles& files);
FindWeight finder_of(const NamedTensors& weights, const std::string& whose);

/// A layer with its parameters, float32; a tied one's are its owner's.
struct HeldLayer {
  NamedLayer layer;
  std::vector<at::Tensor> parameters;
};
/// Returns the layers of `model` that `holds` names, in the model's order. The tensors of the others are
/// only looked up. Problems: tensors that are missing (in `first`) or of another shape than in `kind`
/// ("GNMT of 8 units").
Result<std::vector<HeldLayer>> hold_layers(const LayeredModel& model, const FindWeight& find,
                                           const std::string& first, const std::string& kind,
                                           const std::function<bool(const std::string& layer)>& holds);

/// Tensors by the name of the field, or of the layer that made them.
using TensorsByName = std::map<std::string, at::Tensor>;
/// The states of LSTMs by their names, with a row for each hypothesis that goes on.
using LstmStates = std::map<std::string, LstmState>;

/// Evaluates a layer with `parameters` as its own.
at::Tensor forward_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                      const TensorsByName& values);
/// Evaluates a layer at one position, [R, features]. An LSTM goes on from its state.
at::Tensor step_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                   const TensorsByName& values, LstmStates& states);
/// Row r goes on from what row `from[r]` was.
void reorder(LstmStates& states, const at::Tensor& from);

}  // namespace millrace
