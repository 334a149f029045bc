// Finds the first tensor of a step that is not finite, for --check-finite activations and for messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/ids.h"
#include "runtime/model/stage_program.h"

namespace millrace {

/// The location of a number in a step that is not finite.
struct NonfinitePlace {
  /// Kinds of locations, in the order in which a step reaches them.
  enum class Kind { Weight, Activation, Loss, Gradient, WeightGradient };
  /// The position within a step: the lowest of all ranks is the earliest. Not negative, at most 2^53.
  std::int64_t order = 0;
  std::string text;  ///< "the activations of layer fc1 in microbatch 2 (stage 0)"

  /// `layer`: index in the model. Backwards run from the last layer to the first, so for gradients the last
  /// layer is the earliest.
  static std::int64_t order_of(Kind kind, std::int64_t microbatch, int layer);
};

/// Returns "NaN", "inf" or "-inf" for a number that is not finite. The sign of NaN is omitted.
std::string nonfinite_text(double number);

/// Returns whether all elements are finite. Waits for the tensor's device.
bool is_finite(const at::Tensor& tensor);

/// Checks the results of layers, forward and backward. It keeps a step's first location. Not thread-safe.
class FiniteCheck {
 public:
  FiniteCheck(const StageProgram& program, bool throws) : program_(program), throws_(throws) {}

  void forward(MicrobatchId microbatch, const LayerStep& step, const at::Tensor& output,
               const std::vector<at::Tensor>& inputs) {
    look(NonfinitePlace::Kind::Activation, microbatch, step, output, inputs);
  }
  void backward(MicrobatchId microbatch, const LayerStep& step, const at::Tensor& gradient,
                const std::vector<at::Tensor>& given) {
    look(NonfinitePlace::Kind::Gradient, microbatch, step, gradient, given);
  }
  /// Returns the first location since the previous call.
  std::optional<NonfinitePlace> take() { return std::exchange(first_, std::nullopt); }
  bool found() const { return first_.has_value(); }

 private:
  void look(NonfinitePlace::Kind kind, MicrobatchId microbatch, const LayerStep& step, const at::Tensor& made,
            const std::vector<at::Tensor>& from);

  const StageProgram& program_;
  bool throws_;  ///< throw NumericError immediately: the ranks have no common step
  std::optional<NonfinitePlace> first_;
};

}  // namespace millrace
