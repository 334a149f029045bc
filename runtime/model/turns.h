// Models whose parts are trained against each other. A step is several updates, one after the other. Each
// update trains some layers with the loss of some heads. Source of the form: GANs (arXiv 1406.2661,
// algorithm 1).
#pragma once

#include <string>
#include <vector>

#include "runtime/model/layered_model.h"

namespace millrace {

struct TurnOptions {
  std::string name;
  std::vector<std::string> heads;  ///< the heads of the model that make this turn's loss
  std::string trains;              ///< prefix of the names of the layers that it trains
  /// Prefixes of the names of layers whose running statistics it leaves alone, because another turn has the
  /// same batches.
  std::vector<std::string> keeps_statistics{};
};

/// Appends a turn to a model that has all its layers and heads. The turn has the layers that its heads
/// depend on; those that it does not train are frozen. Calls of a RepeatedLayer that the heads do not
/// depend on are left out. validate() reports a layer that a turn leaves out entirely.
void add_turn(LayeredModel& model, const TurnOptions& options);

/// Returns the problems of a model's turns. Each head and each layer with parameters must belong to exactly
/// one turn. Each turn must run all layers, and train layers that follow each other. Nothing may be tied or
/// carried.
Problems validate_turns(const LayeredModel& model);

}  // namespace millrace
