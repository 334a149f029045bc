#include "runtime/stage/finite_check.h"

#include <cmath>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace millrace {

std::int64_t NonfinitePlace::order_of(Kind kind, std::int64_t microbatch, int layer) {
  constexpr std::int64_t kLayers = 1 << 20, kMicrobatches = std::int64_t{1} << 30;
  const bool backward = kind == Kind::Gradient || kind == Kind::WeightGradient;
  const std::int64_t place = backward ? kLayers - 1 - layer : layer;
  return (static_cast<std::int64_t>(kind) * kMicrobatches + microbatch) * kLayers + place;
}

std::string nonfinite_text(double number) {
  return std::isnan(number) ? "NaN" : std::to_string(number);
}

bool is_finite(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.numel() == 0) return true;
  // A sum is not finite if an element is not. A sum of large elements may overflow: then each element is
  // checked.
  if (std::isfinite(tensor.sum().item<double>())) return true;
  return at::isfinite(tensor).all().item<bool>();
}

void FiniteCheck::look(NonfinitePlace::Kind kind, MicrobatchId microbatch, const LayerStep& step,
                       const at::Tensor& made, const std::vector<at::Tensor>& from) {
  const std::int64_t order = NonfinitePlace::order_of(kind, microbatch.value, step.index);
  if ((first_ && first_->order <= order) || is_finite(made)) return;
  std::string text =
      std::string(kind == NonfinitePlace::Kind::Activation ? "the activations" : "the gradients") +
      " of layer " + step.named->name + " in microbatch " + std::to_string(microbatch.value) + " (stage " +
      std::to_string(program_.stage.value) + ")";
  const at::Tensor* given = nullptr;
  for (const at::Tensor& tensor : from)
    if (!given && tensor.defined() && tensor.is_floating_point() && tensor.numel() > 0) given = &tensor;
  if (given) {
    const auto [least, most] = at::aminmax(*given);
    text += std::isnan(least.item<double>()) ? ", made from numbers that hold NaN"
                                             : printed(", made from numbers between %.3g and %.3g",
                                                       least.item<double>(), most.item<double>());
  }
  if (throws_) throw NumericError("not finite: " + text, "lower --lr or add --warmup-steps");
  first_ = NonfinitePlace{order, std::move(text)};
}

}  // namespace millrace
