#include "data/readers/rand_augment.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "data/readers/augment_image.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

constexpr int kBins = 31;

/// Where a pixel of the result comes from: x' = xx x + xy y + x0, likewise y'. Coordinates begin at the
/// middle of the image, in pixels.
struct Affine {
  double xx = 1, xy = 0, x0 = 0, yx = 0, yy = 1, y0 = 0;
};

void move_(at::Tensor& image, const Affine& map) {
  const std::int64_t height = image.size(1), width = image.size(2), plane = height * width;
  const at::Tensor whole = image.clone();
  const float* from = whole.const_data_ptr<float>();
  float* to = image.mutable_data_ptr<float>();
  const double middle_x = static_cast<double>(width) / 2, middle_y = static_cast<double>(height) / 2;
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const double px = static_cast<double>(x) + 0.5 - middle_x, py = static_cast<double>(y) + 0.5 - middle_y;
      const double sx = std::nearbyint(map.xx * px + map.xy * py + map.x0 + middle_x - 0.5),
                   sy = std::nearbyint(map.yx * px + map.yy * py + map.y0 + middle_y - 0.5);
      const bool inside =
          sx >= 0 && sx < static_cast<double>(width) && sy >= 0 && sy < static_cast<double>(height);
      const std::int64_t source =
          inside ? static_cast<std::int64_t>(sy) * width + static_cast<std::int64_t>(sx) : 0;
      for (std::int64_t c = 0; c < 3; ++c)
        to[c * plane + y * width + x] = inside ? from[c * plane + source] : 0.0f;
    }
  }
}

/// Goes from a blurred image (factor 0) to itself (1) and beyond. The border stays.
void adjust_sharpness_(at::Tensor& image, float factor) {
  const std::int64_t height = image.size(1), width = image.size(2);
  const at::Tensor whole = image.clone();
  for (std::int64_t c = 0; c < 3; ++c) {
    const float* from = whole.const_data_ptr<float>() + c * height * width;
    float* to = image.mutable_data_ptr<float>() + c * height * width;
    for (std::int64_t y = 1; y + 1 < height; ++y) {
      for (std::int64_t x = 1; x + 1 < width; ++x) {
        const std::int64_t at = y * width + x;
        float sum = 4 * from[at];  // the kernel has 5 in the middle and 1 around it
        for (std::int64_t dy = -1; dy <= 1; ++dy)
          for (std::int64_t dx = -1; dx <= 1; ++dx) sum += from[at + dy * width + dx];
        to[at] = std::clamp(factor * from[at] + (1 - factor) * (sum / 13), 0.0f, 1.0f);
      }
    }
  }
}

int level_of(float value) {
  return std::clamp(static_cast<int>(std::lround(value * 255)), 0, 255);
}

void posterize_(at::Tensor& image, int bits) {
  const int mask = 255 & ~((1 << (8 - bits)) - 1);
  float* value = image.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < image.numel(); ++i)
    value[i] = static_cast<float>(level_of(value[i]) & mask) / 255;
}

void solarize_(at::Tensor& image, double threshold) {
  float* value = image.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < image.numel(); ++i)
    if (level_of(value[i]) >= threshold) value[i] = 1 - value[i];
}

void auto_contrast_(at::Tensor& image) {
  const std::int64_t plane = image.size(1) * image.size(2);
  for (std::int64_t c = 0; c < 3; ++c) {
    float* value = image.mutable_data_ptr<float>() + c * plane;
    const auto [least, most] = std::minmax_element(value, value + plane);
    const float low = *least, range = *most - *least;
    if (range == 0) continue;
    for (std::int64_t i = 0; i < plane; ++i) value[i] = (value[i] - low) / range;
  }
}

/// Makes all levels of a channel about equally frequent.
void equalize_(at::Tensor& image) {
  const std::int64_t plane = image.size(1) * image.size(2);
  for (std::int64_t c = 0; c < 3; ++c) {
    float* value = image.mutable_data_ptr<float>() + c * plane;
    std::vector<std::int64_t> count(256, 0);
    for (std::int64_t i = 0; i < plane; ++i) ++count[static_cast<std::size_t>(level_of(value[i]))];
    const auto last =
        std::ranges::find_if(count.rbegin(), count.rend(), [](std::int64_t n) { return n > 0; });
    const std::int64_t step = (plane - *last) / 255;
    std::vector<float> level(256);
    std::int64_t before = 0;
    for (std::size_t v = 0; v < 256; ++v) {
      const auto mapped = step == 0 ? static_cast<std::int64_t>(v) : (before + step / 2) / step;
      level[v] = static_cast<float>(std::min<std::int64_t>(mapped, 255)) / 255;
      before += count[v];
    }
    for (std::int64_t i = 0; i < plane; ++i) value[i] = level[static_cast<std::size_t>(level_of(value[i]))];
  }
}

/// Returns the operation's magnitude in its own unit, and whether its sign is drawn.
struct Magnitude {
  double value = 0;
  bool has_sign = false;
};
Magnitude magnitude_of(RandOperation operation, int bin, std::int64_t height, std::int64_t width) {
  const double share = static_cast<double>(bin) / (kBins - 1);
  switch (operation) {
    case RandOperation::Identity:
    case RandOperation::AutoContrast:
    case RandOperation::Equalize:
      return {};
    case RandOperation::ShearX:
    case RandOperation::ShearY:
      return {0.3 * share, true};
    case RandOperation::TranslateX:
      return {150.0 / 331 * static_cast<double>(width) * share, true};
    case RandOperation::TranslateY:
      return {150.0 / 331 * static_cast<double>(height) * share, true};
    case RandOperation::Rotate:
      return {30 * share, true};
    case RandOperation::Brightness:
    case RandOperation::Color:
    case RandOperation::Contrast:
    case RandOperation::Sharpness:
      return {0.9 * share, true};
    case RandOperation::Posterize:
      return {8 - std::nearbyint(4 * share), false};
    case RandOperation::Solarize:
      return {255 * (1 - share), false};
  }
  return {};
}

}  // namespace

void apply_(at::Tensor& image, RandOperation operation, double magnitude) {
  const double middle_x = static_cast<double>(image.size(2)) / 2,
               middle_y = static_cast<double>(image.size(1)) / 2;
  const auto factor = static_cast<float>(1 + magnitude);
  const double turn = magnitude * std::numbers::pi / 180;
  switch (operation) {
    case RandOperation::Identity:
      return;
    case RandOperation::ShearX:  // about the corner, as Pillow's affine maps are
      return move_(image, {.xy = magnitude, .x0 = magnitude * middle_y});
    case RandOperation::ShearY:
      return move_(image, {.yx = magnitude, .y0 = magnitude * middle_x});
    case RandOperation::TranslateX:
      return move_(image, {.x0 = -std::trunc(magnitude)});
    case RandOperation::TranslateY:
      return move_(image, {.y0 = -std::trunc(magnitude)});
    case RandOperation::Rotate:
      return move_(image,
                   {.xx = std::cos(turn), .xy = -std::sin(turn), .yx = std::sin(turn), .yy = std::cos(turn)});
    case RandOperation::Brightness:
      return adjust_brightness_(image, factor);
    case RandOperation::Color:
      return adjust_saturation_(image, factor);
    case RandOperation::Contrast:
      return adjust_contrast_(image, factor);
    case RandOperation::Sharpness:
      return adjust_sharpness_(image, factor);
    case RandOperation::Posterize:
      return posterize_(image, static_cast<int>(magnitude));
    case RandOperation::Solarize:
      return solarize_(image, magnitude);
    case RandOperation::AutoContrast:
      return auto_contrast_(image);
    case RandOperation::Equalize:
      return equalize_(image);
  }
}

void rand_augment_(at::Tensor& image, int operations, int magnitude, RandomStream& random) {
  constexpr std::uint64_t kOperations = names_of(RandOperation{}).size();
  for (int i = 0; i < operations; ++i) {
    const auto operation = static_cast<RandOperation>(random.below(kOperations));
    auto [value, has_sign] = magnitude_of(operation, magnitude, image.size(1), image.size(2));
    if (has_sign && random.below(2) == 1) value = -value;
    apply_(image, operation, value);
  }
}

}  // namespace millrace
