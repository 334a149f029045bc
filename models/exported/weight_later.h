// Calls under autograd whose weight gradients can be computed later. The backward pass gives the input's
// gradient at once, and keeps the tensors for the weight's gradient. So the backward of a layer of several
// calls has two halves, which zero-bubble schedules place apart.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace millrace {

/// Weight gradients that a backward pass left to be computed, in its order. Not thread-safe.
struct PendingWeights {
  struct One {
    at::Tensor grad;  ///< gradient of the call's output
    /// Adds to the gradients of the layer's trainable parameters.
    std::function<void(const at::Tensor& grad, std::span<at::Tensor> grads)> add;
  };
  std::vector<One> all;
};

/// The parts of a call.
struct SplitCall {
  std::function<at::Tensor()> forward;
  /// Returns the input's gradient. Empty: the input has no gradient.
  std::function<at::Tensor(const at::Tensor& grad)> input_gradient;
  std::function<void(const at::Tensor& grad, std::span<at::Tensor> grads)> add_weight_gradient;
};

/// Runs the call and returns its output. It is part of autograd's graph if the input needs a gradient or
/// `pending` is given.
at::Tensor run_split(const SplitCall& call, const at::Tensor& input, PendingWeights* pending);

/// The indices of a call's weight and bias among the trainable parameters; -1: none.
struct WeightPlaces {
  int weight = -1;
  int bias = -1;
};

/// y = x w^T + b; x [..., in], w [out, in], b [out] or undefined.
SplitCall split_linear(at::Tensor x, at::Tensor w, at::Tensor b, WeightPlaces places);
/// y = b + x w; x [N, in], w [in, out], b [out].
SplitCall split_addmm(at::Tensor b, at::Tensor x, at::Tensor w, WeightPlaces places);
struct ConvolutionNumbers {
  std::vector<std::int64_t> stride, padding, dilation;  ///< one for each dimension of the kernel
  std::int64_t groups = 1;
};
/// x [B, in, ...], w [out, in / groups, ...], b [out] or undefined.
SplitCall split_convolution(at::Tensor x, at::Tensor w, at::Tensor b, ConvolutionNumbers numbers,
                            WeightPlaces places);
/// w [V, F], indices int64 [...].
SplitCall split_embedding(at::Tensor w, at::Tensor indices, std::int64_t padding, WeightPlaces places);

}  // namespace millrace
