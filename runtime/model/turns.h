// Models whose parts are trained against each other: a step is several updates, one after the other, each of
// some layers by some heads. Source of the form: GANs (arXiv 1406.2661, algorithm 1).
#pragma once

#include <string>
#include <vector>

#include "runtime/model/layered_model.h"

namespace millrace {

struct TurnOptions {
  std::string name;
  std::vector<std::string> heads;  ///< of the model's: this turn's loss
  std::string trains;              ///< how the names of the layers begin that it updates
  /// Likewise: layers whose running statistics it leaves alone, because another turn has the same batches.
  std::vector<std::string> keeps_statistics{};
};

/// Appends a turn: the model's layers without what its heads do not depend on (calls of a RepeatedLayer, all
/// of a layer is an error that validate() tells), those that it does not train frozen. Layers and heads are
/// all there.
void add_turn(LayeredModel& model, const TurnOptions& options);

/// What is wrong with the turns of a model: each head and each layer with parameters belongs to exactly one;
/// each runs all layers, and trains layers that follow each other; nothing is tied, nothing carried.
Problems validate_turns(const LayeredModel& model);

}  // namespace millrace
