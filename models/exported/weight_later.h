// Calls with a weight under autograd whose weight gradient waits: the backward pass gives the input's
// gradient at once and notes what the weight's is made of. This is what splits a layer of several calls into
// the two halves that zero-bubble schedules place apart.
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
    at::Tensor grad;  ///< of the call's output
    /// Adds to the gradients, which are by the layer's trainable parameters.
    std::function<void(const at::Tensor& grad, std::span<at::Tensor> grads)> add;
  };
  std::vector<One> all;
};

/// A call by its parts.
struct SplitCall {
  std::function<at::Tensor()> forward;
  /// Empty: the input is no number.
  std::function<at::Tensor(const at::Tensor& grad)> input_gradient;
  std::function<void(const at::Tensor& grad, std::span<at::Tensor> grads)> add_weight_gradient;
};

/// The call's output. Where the input needs a gradient or `pending` is given, it is part of autograd's graph.
at::Tensor run_split(const SplitCall& call, const at::Tensor& input, PendingWeights* pending);

/// Places among the trainable parameters; -1: none.
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
