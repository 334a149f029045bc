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
std::vector<std::string> model_names();  ///< returns the names of millrace's models
/// Makes the model called `name`, or the exported program at this path (FILE.pt2). Problem: an unknown name,
/// an option that the model does not have (with the nearest as hint) or cannot take.
Result<LayeredModel> make_model(const std::string& name, const GivenOptions& options = {},
                                const std::vector<Model>& own = {});
/// Returns the options, as (name, value), that a checkpoint of this model records. make_model must accept the
/// arguments.
std::vector<std::pair<std::string, std::string>> recorded_options(const std::string& name,
                                                                  const GivenOptions& options,
                                                                  const std::vector<Model>& own = {});
/// Returns the choices that the options leave to the model, for users: "stem cifar". Empty: nothing.
/// make_model must accept the arguments.
std::string chosen_form(const std::string& name, const GivenOptions& options,
                        const std::vector<Model>& own = {});

}  // namespace millrace
