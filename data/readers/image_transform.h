// Decoded images to the tensors that models read: cut, resampled, augmented, normalised.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/files/augmentation.h"
#include "data/readers/jpeg.h"

namespace millrace {

enum class DamagedImages {
  Replace,  ///< another image takes the place of a damaged one
  Fail,     ///< a damaged image is a DataError
};

/// The way in which an image becomes a sample. A classifier gets an image, augmented in training, and its
/// label, if it has one. Other models get the image alone.
struct Preparation {
  int size = 0;  ///< height and width of the result
  bool train = true;
  int num_classes = 0;                ///< of the labels; 0: the images have none
  bool classifies = num_classes > 0;  ///< a classifier reads the image
  DamagedImages damaged = DamagedImages::Replace;
  /// The steps of training, in this order, after the image was cut and resampled. Without: the usual ones of
  /// its size (docs/data.md).
  std::optional<std::vector<AugmentStep>> augment = {};
  bool mixes = false;  ///< the model reads the class of a partner and a share too (mixup)
};

/// Returns the pixels that transform() reads of an image of this size, and perhaps a few more. Pure.
PixelRegion needed_pixels(int width, int height, const Preparation& preparation, std::uint64_t seed);

/// Returns the image as float32 [3, size, size]. Resampling is bilinear with antialiasing. Each step
/// draws from a stream of its own, of `seed` and its name. The image holds what needed_pixels() says. Pure.
at::Tensor transform(const RgbImage& image, const Preparation& preparation, std::uint64_t seed);

}  // namespace millrace
