// One function a model; `registry.cpp` names them.
#pragma once

#include "models/registry.h"

namespace millrace {

Result<LayeredModel> make_mlp(const ModelOptions& options);
Result<LayeredModel> make_vgg16(const ModelOptions& options, bool batch_norm);
Result<LayeredModel> make_alexnet(const ModelOptions& options);
Result<LayeredModel> make_resnet(const std::string& name, const ModelOptions& options);

}  // namespace millrace
