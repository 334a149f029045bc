// Models whose parts are trained against each other. A step consists of several updates in sequence, called
// turns. Each trains some layers with the loss of some heads. Source: GANs (arXiv 1406.2661, algorithm 1).
#pragma once

#include <string>
#include <vector>

#include "runtime/model/layered_model.h"

namespace millrace {

struct TurnOptions {
  std::string name;
  std::vector<std::string> heads;  ///< the heads whose losses make up this turn's loss
  std::string trains;              ///< name prefix of the layers that it trains
  /// Name prefixes of the layers whose running statistics it does not update, because another turn uses the
  /// same batches.
  std::vector<std::string> keeps_statistics{};
};

/// Appends a turn to a model that has all its layers and heads. The turn has the layers that its heads depend
/// on; layers that it does not train are frozen. It leaves out calls of a RepeatedLayer that the heads do not
/// depend on. validate() reports a layer that a turn leaves out entirely.
void add_turn(LayeredModel& model, const TurnOptions& options);

/// Returns the errors of a model's turns. Each head and each layer with parameters must belong to exactly one
/// turn. Each turn must run all layers, and train consecutive layers. Tied parameters and carried states are
/// not supported.
Problems validate_turns(const LayeredModel& model);

}  // namespace millrace
