#include "data/readers/augment_image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/base/random.h"

namespace millrace {
namespace {

/// The planes of an image.
struct Planes {
  float *red, *green, *blue;
  std::int64_t size;
  explicit Planes(at::Tensor& image)
      : red(image.mutable_data_ptr<float>()),
        green(red + image.size(1) * image.size(2)),
        blue(green + image.size(1) * image.size(2)),
        size(image.size(1) * image.size(2)) {}
  float grey(std::int64_t i) const { return 0.2989f * red[i] + 0.587f * green[i] + 0.114f * blue[i]; }
};

/// Goes from `other` (factor 0) to `value` (factor 1) and beyond.
float blend(float value, float other, float factor) {
  return std::clamp(factor * value + (1 - factor) * other, 0.0f, 1.0f);
}

/// torchvision's _rgb2hsv, a turn of the hue, and its _hsv2rgb.
void turn_hue(float& red, float& green, float& blue, float turn) {
  const float most = std::max({red, green, blue}), least = std::min({red, green, blue}), range = most - least;
  if (range == 0) return;  // grey
  const float to_red = (most - red) / range, to_green = (most - green) / range,
              to_blue = (most - blue) / range;
  float hue = most == red ? to_blue - to_green : most == green ? 2 + to_red - to_blue : 4 + to_green - to_red;
  hue = std::fmod(hue / 6 + 1, 1.0f) + turn;
  hue -= std::floor(hue);
  const float saturation = range / most, sector = std::floor(hue * 6), within = hue * 6 - sector;
  const auto at = [&](float share) { return std::clamp(most * (1 - saturation * share), 0.0f, 1.0f); };
  const float low = at(1), falling = at(within), rising = at(1 - within);
  const std::array<std::array<float, 3>, 6> sectors{{{most, rising, low},
                                                     {falling, most, low},
                                                     {low, most, rising},
                                                     {low, falling, most},
                                                     {rising, low, most},
                                                     {most, low, falling}}};
  const auto& found = sectors[static_cast<std::size_t>(sector) % 6];
  red = found[0], green = found[1], blue = found[2];
}

/// Draws from the gamma distribution with this shape and scale 1 (Marsaglia and Tsang, 2000).
double draw_gamma(double shape, RandomStream& random) {
  if (shape < 1) {
    const double larger = draw_gamma(shape + 1, random);
    return larger * std::pow(1 - random.uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random.normal(), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root, u = 1 - random.uniform();
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

double draw_beta(double alpha, RandomStream& random) {
  const double a = draw_gamma(alpha, random), b = draw_gamma(alpha, random);
  // Both underflow where alpha is tiny: the limit is one or the other.
  return a + b > 0 ? a / (a + b) : (random.uniform() < 0.5 ? 0.0 : 1.0);
}

void adjust_brightness_(at::Tensor& image, float factor) {
  float* values = image.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < image.numel(); ++i) values[i] = blend(values[i], 0, factor);
}

void adjust_contrast_(at::Tensor& image, float factor) {
  const Planes planes(image);
  double sum = 0;
  for (std::int64_t i = 0; i < planes.size; ++i) sum += planes.grey(i);
  const auto mean = static_cast<float>(sum / static_cast<double>(planes.size));
  float* values = image.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < image.numel(); ++i) values[i] = blend(values[i], mean, factor);
}

void adjust_saturation_(at::Tensor& image, float factor) {
  const Planes planes(image);
  for (std::int64_t i = 0; i < planes.size; ++i) {
    const float grey = planes.grey(i);
    for (float* plane : {planes.red, planes.green, planes.blue}) plane[i] = blend(plane[i], grey, factor);
  }
}

void adjust_hue_(at::Tensor& image, float turn) {
  const Planes planes(image);
  for (std::int64_t i = 0; i < planes.size; ++i)
    turn_hue(planes.red[i], planes.green[i], planes.blue[i], turn);
}

void mirror_(at::Tensor& image) {
  float* row = image.mutable_data_ptr<float>();
  const std::int64_t width = image.size(2);
  for (std::int64_t y = 0; y < image.numel() / width; ++y, row += width) std::reverse(row, row + width);
}

void random_crop_(at::Tensor& image, int padding, RandomStream& random) {
  const auto places = static_cast<std::uint64_t>(2 * padding + 1);
  const auto dx = static_cast<std::int64_t>(random.below(places)) - padding,
             dy = static_cast<std::int64_t>(random.below(places)) - padding;
  const std::int64_t height = image.size(1), width = image.size(2);
  const at::Tensor whole = image.clone();
  const float* from = whole.const_data_ptr<float>();
  float* to = image.mutable_data_ptr<float>();
  for (std::int64_t c = 0; c < 3; ++c) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        const std::int64_t sx = x + dx, sy = y + dy;
        const bool inside = sx >= 0 && sx < width && sy >= 0 && sy < height;
        *to++ = inside ? from[(c * height + sy) * width + sx] : 0.0f;
      }
    }
  }
}

void colour_jitter_(at::Tensor& image, const ColourRanges& ranges, RandomStream& random) {
  const auto around_one = [&](double range) {
    return static_cast<float>(random.uniform(std::max(0.0, 1 - range), 1 + range));
  };
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  for (const int adjustment : order) {
    if (adjustment == 0 && ranges.brightness > 0) adjust_brightness_(image, around_one(ranges.brightness));
    if (adjustment == 1 && ranges.contrast > 0) adjust_contrast_(image, around_one(ranges.contrast));
    if (adjustment == 2 && ranges.saturation > 0) adjust_saturation_(image, around_one(ranges.saturation));
    if (adjustment == 3 && ranges.hue > 0)
      adjust_hue_(image, static_cast<float>(random.uniform(-ranges.hue, ranges.hue)));
  }
}

}  // namespace millrace
