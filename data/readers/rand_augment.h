// RandAugment (arXiv 1909.13719) with the operations, ranges and 31 magnitudes of torchvision.transforms.
#pragma once

#include <array>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "runtime/base/choices.h"

namespace millrace {

class RandomStream;

/// The names are torchvision's.
enum class RandOperation {
  Identity,
  ShearX,
  ShearY,
  TranslateX,
  TranslateY,
  Rotate,
  Brightness,
  Color,
  Contrast,
  Sharpness,
  Posterize,
  Solarize,
  AutoContrast,
  Equalize
};
constexpr auto names_of(RandOperation) {
  return std::to_array<std::string_view>({"Identity", "ShearX", "ShearY", "TranslateX", "TranslateY",
                                          "Rotate", "Brightness", "Color", "Contrast", "Sharpness",
                                          "Posterize", "Solarize", "AutoContrast", "Equalize"});
}

/// Applies one operation to float32 [3, H, W] in [0, 1], contiguous. The magnitude is the operation's own: a
/// slope, pixels, degrees, a factor minus 1, bits that are kept, a threshold of 255. Geometry takes the
/// nearest pixel; black moves in. Posterize and Equalize round to 256 values first.
void apply_(at::Tensor& image, RandOperation operation, double magnitude);

/// Applies `operations` operations, each drawn anew with its sign, at `magnitude` of 0 to 30.
void rand_augment_(at::Tensor& image, int operations, int magnitude, RandomStream& random);

}  // namespace millrace
