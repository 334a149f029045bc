// The models by name. To add one: models/<name>.cpp and one line in registry.cpp.
#pragma once

#include <string>
#include <vector>

#include "models/model_options.h"
#include "runtime/base/result.h"
#include "runtime/stage/layered_model.h"

namespace millrace {

std::vector<std::string> model_names();  ///< mlp, vgg16, vgg16_bn, alexnet, resnet18, resnet50
/// Problem for an unknown name (nearest as hint) or options that the model cannot take.
Result<LayeredModel> make_model(const std::string& name, const ModelOptions& options = {});

}  // namespace millrace
