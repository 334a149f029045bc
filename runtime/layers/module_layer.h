// Wraps a whole torch::nn::Module as a layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/layers/layer.h"

namespace torch::nn {
class Module;
}

namespace millrace {

struct ModuleOptions {
  std::string kind = "module";
  /// Seed of the initial values, which the constructor draws after torch::manual_seed(seed). Two layers of
  /// the same module need different seeds. (millrace's own layers derive initial values from --seed and the
  /// layer's name instead.)
  std::uint64_t seed = 0;
  /// Whether the forward draws random numbers (dropout). They are then drawn after torch::manual_seed of (job
  /// seed, layer name, position of the microbatch), for any plan. Only one thread of a process runs such a
  /// forward at a time. If nothing is drawn, false is faster.
  bool draws = true;
};

/// One instance of a module, and the function that calls it.
struct ModuleInstance {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(std::span<const at::Tensor> inputs)> forward;
};

/// Wraps a module with one output as a layer. Parameters and buffers have their names in the module (its
/// state_dict), float32. Gradients are computed by LibTorch's autograd.
/// `make` is called once for the description, and once more for each microbatch between forward and backward:
/// a module holds tensors, whereas a layer receives them. The output's shape is found by running the module
/// on zeros in evaluation mode (tokens: the token 0). In training `module->train()` is set. output_shape()
/// throws ConfigError if the module does not accept the inputs.
LayerPtr module_layer(std::function<ModuleInstance()> make, const ModuleOptions& options);

/// Wraps the result of `make` as a layer: a module's holder or shared_ptr, whose forward takes one, two or
/// three tensors and returns one. For example: module_layer([] { return
/// torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::ReLU()); }).
template <class Make>
requires(!std::is_same_v<std::invoke_result_t<Make>, ModuleInstance>) LayerPtr
    module_layer(Make make, const ModuleOptions& options = {}) {
  const auto instance = [make = std::move(make), kind = options.kind] {
    auto module = make();
    const auto forward = [module, kind](std::span<const at::Tensor> in) mutable -> at::Tensor {
      if constexpr (requires { at::Tensor(module->forward(in[0])); }) {
        if (in.size() == 1) return module->forward(in[0]);
      }
      if constexpr (requires { at::Tensor(module->forward(in[0], in[1])); }) {
        if (in.size() == 2) return module->forward(in[0], in[1]);
      }
      if constexpr (requires { at::Tensor(module->forward(in[0], in[1], in[2])); }) {
        if (in.size() == 3) return module->forward(in[0], in[1], in[2]);
      }
      throw ConfigError(kind + " does not take " + std::to_string(in.size()) + " tensors");
    };
    if constexpr (requires { module.ptr(); }) {
      return ModuleInstance{module.ptr(), forward};
    } else {
      return ModuleInstance{module, forward};
    }
  };
  return module_layer(std::function<ModuleInstance()>(instance), options);
}

}  // namespace millrace
