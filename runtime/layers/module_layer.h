// A whole torch::nn::Module as one layer.
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
  /// Initial values are those that the constructor draws after torch::manual_seed(seed). Two layers of one
  /// module want two seeds. (Layers that come with millrace start from --seed and the layer's name instead.)
  std::uint64_t seed = 0;
  /// Its forward draws random numbers (dropout). Then they are those after torch::manual_seed of (job seed,
  /// layer name, position of the microbatch), whatever the plan, and one thread of a process runs such a
  /// forward at a time. False is faster where nothing is drawn.
  bool draws = true;
};

/// One instance, and how it is called.
struct ModuleInstance {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(std::span<const at::Tensor> inputs)> forward;
};

/// Parameters and buffers go by their names in the module (its state_dict), float32. Gradients are LibTorch's
/// autograd's. `make` is called once for the description, and once more for each microbatch that is between
/// forward and backward: a module holds tensors, a layer is given them. The output's shape is found by
/// running zeros through it (tokens: the token 0), in evaluation. In training `module->train()`. One output.
/// Throws ConfigError from the output's shape where the module does not take the inputs.
LayerPtr module_layer(std::function<ModuleInstance()> make, const ModuleOptions& options);

/// `make` returns a module's holder or shared_ptr whose forward takes one, two or three tensors and returns
/// one: module_layer([] { return torch::nn::Sequential(torch::nn::Linear(8, 8), torch::nn::ReLU()); }).
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
