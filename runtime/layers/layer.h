// A layer is stateless: it describes its parameters and gets their tensors at each call.
// Forward saves what backward needs; backward is split in two (input gradient, weight gradient).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace millrace {

using Shape = std::vector<std::int64_t>;  // [B, ...]: the microbatch first

enum class Init {
  Zeros,
  Ones,
  Uniform,  ///< [-a, a]
  Normal,   ///< mean 0, standard deviation a
};

/// A trainable parameter, or a buffer (running statistics: updated in forward, not versioned, not trained).
/// Name and shape equal torchvision's state_dict entry after the layer's name ("weight", "bias",
/// "running_mean"). float32 except `is_counter` (int64 scalar, e.g. num_batches_tracked).
struct ParameterSpec {
  std::string name;
  Shape shape;
  Init init = Init::Zeros;
  double a = 0;
  bool is_buffer = false;
  bool is_counter = false;
};

/// Filled by forward, consumed by the backwards of the same microbatch; freed after the last of them.
struct Saved {
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t> numbers;
  std::shared_ptr<void> extra;  ///< autograd fallback
};

struct CallContext {
  bool training = true;
  std::uint64_t random_seed = 0;  ///< of (job seed, layer name, step, microbatch): dropout's stream
};

/// Implementations are immutable and thread-safe. All functions run under NoGradGuard.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string kind() const = 0;
  virtual std::vector<ParameterSpec> parameters() const { return {}; }
  /// Throws ConfigError on shapes that do not fit, with both shapes in the message.
  virtual Shape output_shape(std::span<const Shape> inputs) const = 0;

  /// `parameters`: trainable ones in order of parameters(); `buffers`: the buffers in order.
  /// `saved` is nullptr in evaluation: nothing is kept then.
  virtual at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                             std::span<at::Tensor> buffers, const CallContext& context,
                             Saved* saved) const = 0;

  /// Gradient for each input (undefined where `needs[i]` is false: the first layer's input).
  virtual std::vector<at::Tensor> backward_input(const at::Tensor& grad_output,
                                                 std::span<const at::Tensor> parameters, Saved& saved,
                                                 std::span<const bool> needs) const = 0;

  /// Adds this microbatch's gradient into `grads` (one per trainable parameter, views into a flat bucket).
  virtual void backward_weight(const at::Tensor& /*grad_output*/, Saved& /*saved*/,
                               std::span<at::Tensor> /*grads*/) const {}

  /// Both at once; override where one kernel gives both. Bitwise equal to the split.
  virtual std::vector<at::Tensor> backward(const at::Tensor& grad_output,
                                           std::span<const at::Tensor> parameters, Saved& saved,
                                           std::span<const bool> needs, std::span<at::Tensor> grads) const {
    auto result = backward_input(grad_output, parameters, saved, needs);
    backward_weight(grad_output, saved, grads);
    return result;
  }
};

using LayerPtr = std::shared_ptr<const Layer>;

}  // namespace millrace
