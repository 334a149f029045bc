// Changes of an image's pixels as torchvision.transforms makes them, drawn at random. All take float32
// [3, H, W] on the CPU, contiguous, with values in [0, 1]; results stay in that range.
#pragma once

#include <ATen/core/Tensor.h>

namespace millrace {

class RandomStream;

// -- with a factor, as torchvision.transforms.functional.adjust_* do for tensors --
void adjust_brightness_(at::Tensor& image, float factor);  ///< factor >= 0; 1 changes nothing, as below
void adjust_contrast_(at::Tensor& image, float factor);    ///< about the mean of the whole image in grey
void adjust_saturation_(at::Tensor& image, float factor);
void adjust_hue_(at::Tensor& image, float turn);  ///< -0.5 to 0.5 of the circle of hues; 0 changes nothing

/// Mirrors left and right.
void mirror_(at::Tensor& image);

/// Pads with black on each side and cuts the image's size out at a random place (RandomCrop).
void random_crop_(at::Tensor& image, int padding, RandomStream& random);

/// The ranges that factors are drawn of: 1 +- brightness and so on (not below 0), hue in [-hue, hue].
struct ColourRanges {
  double brightness = 0, contrast = 0, saturation = 0, hue = 0;
};
/// Adjusts in a random order (ColorJitter). A range of 0 leaves its adjustment out.
void colour_jitter_(at::Tensor& image, const ColourRanges& ranges, RandomStream& random);

/// Draws from the Beta distribution with both parameters `alpha`: in (0, 1).
double draw_beta(double alpha, RandomStream& random);

}  // namespace millrace
