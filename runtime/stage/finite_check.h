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

/// A place in a step where a number was not finite.
struct NonfinitePlace {
  /// Kinds of places, in the order in which a step would meet them.
  enum class Kind { Weight, Activation, Loss, Gradient, WeightGradient };
  /// Where the place stands in a step: the lowest of all ranks is the first one. Not negative, at most 2^53.
  std::int64_t order = 0;
  std::string text;  ///< "the activations of layer fc1 in microbatch 2 (stage 0)"

  /// `layer`: index in the model. Backwards go from the last layer to the first, so of gradients the last
  /// layer is the first place.
  static std::int64_t order_of(Kind kind, std::int64_t microbatch, int layer);
};

/// Returns "NaN", "inf" or "-inf" for a number that is not finite. NaN has no sign for a reader.
std::string nonfinite_text(double number);

/// Whether all elements are finite. Waits for the tensor's device.
bool is_finite(const at::Tensor& tensor);

/// Looks at what layers give forward and backward. It keeps the first place of a step. Not thread-safe.
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
  /// Returns the first place since the previous call.
  std::optional<NonfinitePlace> take() { return std::exchange(first_, std::nullopt); }
  bool found() const { return first_.has_value(); }

 private:
  void look(NonfinitePlace::Kind kind, MicrobatchId microbatch, const LayerStep& step, const at::Tensor& made,
            const std::vector<at::Tensor>& from);

  const StageProgram& program_;
  bool throws_;  ///< NumericError at once: the ranks have no step in common
  std::optional<NonfinitePlace> first_;
};

}  // namespace millrace
