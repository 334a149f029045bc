// What a model of the registry can be told. LibTorch-free.
#pragma once

namespace millrace {

struct ModelOptions {
  int num_classes = 0;  ///< 0: the paper's
  int image_size = 0;   ///< 0: the paper's (224); 32 gives the CIFAR form of the VGGs and ResNets
  int width = 0;        ///< mlp: width of the hidden layers (0: 256)
  int depth = 0;        ///< mlp: number of (Linear, GELU) pairs (0: 8)
  double dropout = -1;  ///< < 0: the paper's
};

}  // namespace millrace
