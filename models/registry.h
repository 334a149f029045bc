// The models by name. To add one: models/<name>.cpp and one line in registry.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/model.h"
#include "runtime/base/result.h"
#include "runtime/model/layered_model.h"
#include "runtime/plan/model_options.h"

namespace millrace {

/// Describes millrace's models, and those that a program adds (`own`).
std::vector<ModelDescription> model_descriptions(const std::vector<Model>& own = {});
std::vector<std::string> model_names();  ///< of those that are made here, not of FILE.pt2
/// `name`: one of them, or the path of an exported program (FILE.pt2). Problem for an unknown name, an option
/// that the model does not have (nearest as hint) or cannot take.
Result<LayeredModel> make_model(const std::string& name, const GivenOptions& options = {},
                                const std::vector<Model>& own = {});
/// (name, value) of what checkpoints record of the options of a model that can be made so.
std::vector<std::pair<std::string, std::string>> recorded_options(const std::string& name,
                                                                  const GivenOptions& options,
                                                                  const std::vector<Model>& own = {});

}  // namespace millrace
