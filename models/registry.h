// The models by name. To add one: models/<name>.cpp and one line in registry.cpp.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/stage/layered_model.h"

namespace millrace {

struct ModelOptions {
  int num_classes = 0;  ///< 0: the paper's
  int image_size = 0;   ///< 0: the paper's (224); 32 gives the CIFAR form of the VGGs and ResNets
  int width = 0;        ///< mlp: width of the hidden layers (0: 256)
  int depth = 0;        ///< mlp: number of (Linear, GELU) pairs (0: 8)
  double dropout = -1;  ///< < 0: the paper's
};

std::vector<std::string> model_names();  ///< mlp, vgg16, vgg16_bn, alexnet, resnet18, resnet50
/// Problem for an unknown name (nearest as hint) or options that the model cannot take.
Result<LayeredModel> make_model(const std::string& name, const ModelOptions& options = {});

}  // namespace millrace
