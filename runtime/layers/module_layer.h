// Makes a layer of a whole torch::nn::Module.
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
  /// Seed of the initial values, which are those that the constructor draws after torch::manual_seed(seed).
  /// Two layers of one module need two seeds. (Layers that come with millrace start from --seed and the
  /// layer's name instead.)
  std::uint64_t seed = 0;
  /// Tells whether the forward draws random numbers (dropout). They are then those after torch::manual_seed
  /// of (job seed, layer name, position of the microbatch), whatever the plan. One thread of a process runs
  /// such a forward at a time. If nothing is drawn, false is faster.
  bool draws = true;
};

/// One instance of a module, and the function that calls it.
struct ModuleInstance {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(std::span<const at::Tensor> inputs)> forward;
};

/// Makes a layer of a module with one output. Parameters and buffers have their names in the module (its
/// state_dict), float32. Gradients are those of LibTorch's autograd.
/// `make` is called once for the description, and once more for each microbatch that is between forward and
/// backward: a module holds tensors, whereas a layer is given them. The output's shape is found by running
/// zeros through the module in evaluation (tokens: the token 0). In training `module->train()` is set.
/// output_shape() throws ConfigError if the module does not take the inputs.
LayerPtr module_layer(std::function<ModuleInstance()> make, const ModuleOptions& options);

/// Makes a layer of what `make` returns: a module's holder or shared_ptr, whose forward takes one, two or
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
