// Decoded images to the tensors that models read: cut, resampled, augmented, normalised.
#pragma once

#include <ATen/core/Tensor.h>

#include "data/readers/jpeg.h"

namespace millrace {

class RandomStream;

/// The way in which an image becomes a sample. A classifier gets an image, augmented in training, and its
/// label. A model without labels gets the image alone.
struct Preparation {
  int size = 0;  ///< height and width of the result
  bool train = true;
  int num_classes = 0;  ///< of the labels; 0: the images have none
};

/// Returns the image as float32 [3, size, size]. Resampling is bilinear with antialiasing. Pure.
at::Tensor transform(const RgbImage& image, const Preparation& preparation, RandomStream& random);

}  // namespace millrace
