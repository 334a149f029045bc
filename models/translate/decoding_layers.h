// The layers of a trained model for decoding: weights are found by name, and layers run one position at a
// time.
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

/// A weight that was found but not read.
struct FoundWeight {
  std::string where;  ///< the weight's file
  Shape shape;
  std::function<at::Tensor()> read;
};
/// Finds a weight by the first of `names` that exists. All are names of one weight.
using FindWeight = std::function<std::optional<FoundWeight>(const std::vector<std::string>& names)>;
/// Return a function that finds weights in files or tensors, which must outlive it. `whose` names the tensors
/// in messages.
FindWeight finder_of(const WeightFiles& files);
FindWeight finder_of(const NamedTensors& weights, const std::string& whose);

/// A layer with its parameters in float32. A tied parameter is its owner's tensor.
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

/// Tensors by the name of the field or of the layer that made them.
using TensorsByName = std::map<std::string, at::Tensor>;
/// The states of LSTMs by layer name, with a row for each hypothesis that is not finished.
using LstmStates = std::map<std::string, LstmState>;

/// Evaluates a layer with `parameters` as its own.
at::Tensor forward_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                      const TensorsByName& values);
/// Evaluates a layer at one position, [R, features]. An LSTM continues from its state.
at::Tensor step_of(const NamedLayer& layer, const std::vector<at::Tensor>& parameters,
                   const TensorsByName& values, LstmStates& states);
/// Makes row r continue the row `from[r]`.
void reorder(LstmStates& states, const at::Tensor& from);

}  // namespace millrace
