#include "data/readers/image_transform.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <ATen/ops/empty.h>

#include "data/readers/augment_image.h"
#include "data/readers/rand_augment.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

struct Normalisation {
  float mean[3], deviation[3];
};
// torchvision's constants for ImageNet, and constants that put values into [-1, 1], the range of a
// generator's tanh.
constexpr Normalisation kImageNet{{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}},
    kSymmetric{{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}}, kUnchanged{{0, 0, 0}, {1, 1, 1}};
constexpr int kSmall = 64;  // training shifts images up to this size instead of rescaling them (as for CIFAR)
constexpr int kShift = 4;

/// A rectangle of the source image in pixels; `flip` mirrors it.
struct Crop {
  double x = 0, y = 0, width = 0, height = 0;
  bool flip = false;
};

/// Draws a crop as torchvision's RandomResizedCrop does: `least` to `most` of the area, with a ratio of 3/4
/// to 4/3. If ten tries do not fit, it returns the centre. `flip` stays false.
Crop random_resized_crop(int width, int height, double least, double most, RandomStream& random) {
  const double area = double(width) * height;
  Crop crop;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(least, most),
                 ratio = std::exp(random.uniform(std::log(3.0 / 4), std::log(4.0 / 3)));
    const double w = std::round(std::sqrt(target * ratio)), h = std::round(std::sqrt(target / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    crop = {std::floor(random.uniform() * (width - w + 1)), std::floor(random.uniform() * (height - h + 1)),
            w, h, false};
    break;
  }
  if (crop.width == 0) {
    const double side = std::min(width, height);
    crop = {(width - side) / 2, (height - side) / 2, side, side, false};
  }
  return crop;
}

/// Weights of a triangle filter as wide as the shrink factor: bilinear resampling with antialiasing.
struct Taps {
  int first = 0;
  std::vector<float> weights;
};

std::vector<Taps> make_taps(double start, double length, int size, int limit) {
  const double scale = length / size, support = std::max(1.0, scale);
  std::vector<Taps> all(size);
  for (int i = 0; i < size; ++i) {
    const double centre = start + (i + 0.5) * scale;
    const int low = std::max(0, static_cast<int>(centre - support + 0.5)),
              high = std::min(limit, static_cast<int>(centre + support + 0.5));
    Taps& taps = all[i];
    taps.first = std::min(low, limit - 1);
    double sum = 0;
    for (int k = taps.first; k < std::max(high, taps.first + 1); ++k) {
      const double w = std::max(0.0, 1 - std::abs((k + 0.5 - centre) / support));
      taps.weights.push_back(static_cast<float>(w));
      sum += w;
    }
    if (sum == 0) taps.weights.assign(1, 1), sum = 1;
    for (float& w : taps.weights) w = static_cast<float>(w / sum);
  }
  return all;
}

/// A pixel's three channels, and one more that nobody uses: what SSE adds at once.
using FourFloats = float __attribute__((vector_size(16)));

/// Writes `size` pixels, each the sum of `taps` pixels of `from` by their weights. kTaps: `taps`, or 0.
template <std::size_t kTaps>
void add_taps(const float* from, const std::size_t* at, const float* weight, std::size_t taps,
              std::size_t size, float* to) {
  const std::size_t count = kTaps > 0 ? kTaps : taps;
  for (std::size_t x = 0; x < size; ++x, to += 3, weight += count) {
    const float* pixel = from + at[x];
    FourFloats sum{};
    for (std::size_t k = 0; k < count; ++k, pixel += 3) {
      FourFloats value;
      std::memcpy(&value, pixel, sizeof value);
      sum += weight[k] * value;
    }
    std::memcpy(to, &sum, sizeof sum);
  }
}

/// Resamples the crop to size x size and normalises: [3, size, size] float32.
at::Tensor resample(const RgbImage& image, const Crop& crop, int size,
                    const Normalisation& normal = kImageNet) {
  const auto columns = make_taps(crop.x, crop.width, size, image.width),
             rows = make_taps(crop.y, crop.height, size, image.height);
  const int top = rows.front().first,
            bottom = rows.back().first + static_cast<int>(rows.back().weights.size());
  const std::size_t width = static_cast<std::size_t>(size) * 3;
  std::vector<float> lines(static_cast<std::size_t>(bottom - top) * width + 1);  // a pixel is stored as four
  const int left = columns.front().first;
  const std::size_t right = static_cast<std::size_t>(columns.back().first) + columns.back().weights.size();
  // All columns have as many taps, some of weight 0: short loops of one length cost half.
  std::size_t taps = 0;
  for (const Taps& one : columns) taps = std::max(taps, one.weights.size());
  std::vector<float> weights(static_cast<std::size_t>(size) * taps, 0);
  std::vector<std::size_t> offsets;
  for (const Taps& one : columns) {
    std::ranges::copy(one.weights, weights.begin() + static_cast<std::ptrdiff_t>(offsets.size() * taps));
    offsets.push_back(static_cast<std::size_t>(one.first - left) * 3);
  }
  const std::size_t used = (right - static_cast<std::size_t>(left)) * 3;
  std::vector<float> source(used + 3 * taps + 1);  // and read as four
  const auto add_columns = [&](const float* from, const std::size_t* at, const float* weight, float* to) {
    switch (taps) {
      case 2:
        return add_taps<2>(from, at, weight, taps, offsets.size(), to);
      case 3:
        return add_taps<3>(from, at, weight, taps, offsets.size(), to);
      case 4:
        return add_taps<4>(from, at, weight, taps, offsets.size(), to);
      case 5:
        return add_taps<5>(from, at, weight, taps, offsets.size(), to);
      case 6:
        return add_taps<6>(from, at, weight, taps, offsets.size(), to);
      default:
        return add_taps<0>(from, at, weight, taps, offsets.size(), to);
    }
  };
  float* line = lines.data();
  for (int y = top; y < bottom; ++y) {
    const std::uint8_t* bytes =
        image.pixels.data() + (static_cast<std::size_t>(y) * static_cast<std::size_t>(image.width) +
                               static_cast<std::size_t>(left)) *
                                  3;
    for (std::size_t i = 0; i < used; ++i) source[i] = bytes[i];
    add_columns(source.data(), offsets.data(), weights.data(), line);
    line += width;
  }
  at::Tensor result = at::empty({3, size, size}, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  const std::size_t plane = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  std::vector<float> row(width), means(width), deviations(width);
  for (std::size_t i = 0; i < width; ++i)
    means[i] = normal.mean[i % 3], deviations[i] = normal.deviation[i % 3];
  for (int y = 0; y < size; ++y) {
    const Taps& taps = rows[static_cast<std::size_t>(y)];
    std::ranges::fill(row, 0.0f);
    const float* from = lines.data() + static_cast<std::size_t>(taps.first - top) * width;
    for (const float w : taps.weights) {
      for (std::size_t i = 0; i < width; ++i) row[i] += w * from[i];
      from += width;
    }
    for (std::size_t i = 0; i < width; ++i) row[i] = (row[i] / 255 - means[i]) / deviations[i];
    float* to = out + static_cast<std::size_t>(y) * static_cast<std::size_t>(size);
    for (std::size_t c = 0; c < 3; ++c, to += plane) {
      const float* value = row.data() + c;
      if (crop.flip) {
        for (int x = size - 1; x >= 0; --x, value += 3) to[x] = *value;
      } else {
        for (int x = 0; x < size; ++x, value += 3) to[x] = *value;
      }
    }
  }
  return result;
}

/// Applies ImageNet's constants to values in [0, 1].
void normalise_(at::Tensor& image) {
  float* value = image.mutable_data_ptr<float>();
  const std::int64_t plane = image.size(1) * image.size(2);
  for (int c = 0; c < 3; ++c) {
    for (std::int64_t i = 0; i < plane; ++i, ++value)
      *value = (*value - kImageNet.mean[c]) / kImageNet.deviation[c];
  }
}

/// Returns a small training image, shifted by up to 4 pixels and mirrored at random. Zeros move in.
at::Tensor shifted(const at::Tensor& image, RandomStream& random) {
  const int dx = static_cast<int>(random.below(2 * kShift + 1)) - kShift,
            dy = static_cast<int>(random.below(2 * kShift + 1)) - kShift;
  const std::int64_t size = image.size(1);
  at::Tensor result = at::empty(image.sizes(), at::kFloat).zero_();
  const std::int64_t width = size - std::abs(dx), height = size - std::abs(dy);
  result.narrow(1, std::max(0, -dy), height)
      .narrow(2, std::max(0, -dx), width)
      .copy_(image.narrow(1, std::max(0, dy), height).narrow(2, std::max(0, dx), width));
  return result;
}

/// Returns what an evaluation takes: the centre. A large image's shorter side becomes 8/7 of the size first.
Crop centre_of(const RgbImage& image, const Preparation& preparation) {
  const double side = std::min(image.width, image.height),
               kept = preparation.classifies && preparation.size > kSmall ? side * 7 / 8 : side;
  return {(image.width - kept) / 2, (image.height - kept) / 2, kept, kept, false};
}

/// Augments as `--augment` says.
at::Tensor augmented(const RgbImage& image, const Preparation& preparation, std::uint64_t seed) {
  const auto stream_of = [&](const AugmentStep& step) {
    return RandomStream(derive_seed(seed, "augment", static_cast<std::uint64_t>(step.kind)));
  };
  Crop crop = centre_of(image, preparation);
  for (const AugmentStep& step : *preparation.augment) {
    if (step.kind != Augmentation::RandomResizedCrop) continue;
    RandomStream random = stream_of(step);
    crop = random_resized_crop(image.width, image.height, step.numbers[0], step.numbers[1], random);
  }
  at::Tensor result = resample(image, crop, preparation.size, kUnchanged);
  for (const AugmentStep& step : *preparation.augment) {
    RandomStream random = stream_of(step);
    const std::vector<double>& n = step.numbers;
    switch (step.kind) {
      case Augmentation::RandomResizedCrop:
      case Augmentation::Mixup:  // of two samples: data/readers/image_dataset.cpp
        break;
      case Augmentation::RandomCrop:
        random_crop_(result, static_cast<int>(n[0]), random);
        break;
      case Augmentation::RandomHorizontalFlip:
        if (random.uniform() < n[0]) mirror_(result);
        break;
      case Augmentation::RandAugment:
        rand_augment_(result, static_cast<int>(n[0]), static_cast<int>(n[1]), random);
        break;
      case Augmentation::ColorJitter:
        colour_jitter_(result, {n[0], n[1], n[2], n[3]}, random);
        break;
    }
  }
  normalise_(result);
  return result;
}

}  // namespace

at::Tensor transform(const RgbImage& image, const Preparation& preparation, std::uint64_t seed) {
  const int size = preparation.size;
  if (!preparation.classifies) return resample(image, centre_of(image, preparation), size, kSymmetric);
  if (!preparation.train) return resample(image, centre_of(image, preparation), size);
  if (preparation.augment) return augmented(image, preparation, seed);
  RandomStream random(seed);
  const bool small = size <= kSmall;
  Crop crop =
      small ? centre_of(image, preparation) : random_resized_crop(image.width, image.height, 0.08, 1, random);
  crop.flip = random.uniform() < 0.5;
  const at::Tensor result = resample(image, crop, size);
  return small ? shifted(result, random) : result;
}

}  // namespace millrace
