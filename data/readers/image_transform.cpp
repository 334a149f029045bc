#include "data/readers/image_transform.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include "data/readers/augment_image.h"
#include "data/readers/rand_augment.h"
#include "runtime/base/check.h"
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
  std::size_t most = 0;                   ///< taps of any result
  std::vector<std::size_t> first, count;  ///< by result: its first pixel, and how many it reads
  std::vector<float> weights;             ///< by result `most` of them; those beyond `count` are 0
};

double reach_of(double length, int size) {
  return std::max(1.0, length / size);
}

Taps make_taps(double start, double length, int size, int limit) {
  const double scale = length / size, support = reach_of(length, size);
  Taps taps;
  for (int i = 0; i < size; ++i) {
    const double centre = start + (i + 0.5) * scale;
    const int low = std::max(0, static_cast<int>(centre - support + 0.5)),
              high = std::min(limit, static_cast<int>(centre + support + 0.5)),
              first = std::min(low, limit - 1);
    taps.first.push_back(static_cast<std::size_t>(first));
    taps.count.push_back(static_cast<std::size_t>(std::max(high, first + 1) - first));
    taps.most = std::max(taps.most, taps.count.back());
  }
  taps.weights.assign(static_cast<std::size_t>(size) * taps.most, 0);
  for (int i = 0; i < size; ++i) {
    const double centre = start + (i + 0.5) * scale;
    const auto place = static_cast<std::size_t>(i);
    float* weights = taps.weights.data() + place * taps.most;
    double sum = 0;
    for (std::size_t k = 0; k < taps.count[place]; ++k) {
      const double w = std::max(0.0, 1 - std::abs((double(taps.first[place] + k) + 0.5 - centre) / support));
      weights[k] = static_cast<float>(w);
      sum += w;
    }
    if (sum == 0) {
      std::fill_n(weights, taps.count[place], 0.0f);
      taps.count[place] = 1;
      weights[0] = 1;
      sum = 1;
    }
    for (std::size_t k = 0; k < taps.count[place]; ++k) weights[k] = static_cast<float>(weights[k] / sum);
  }
  return taps;
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

/// add_taps() for any number of taps. Short loops of one length cost half.
void add_columns(const float* from, const std::size_t* at, const Taps& taps, float* to) {
  const std::size_t size = taps.first.size();
  const float* weights = taps.weights.data();
  switch (taps.most) {
    case 2:
      return add_taps<2>(from, at, weights, taps.most, size, to);
    case 3:
      return add_taps<3>(from, at, weights, taps.most, size, to);
    case 4:
      return add_taps<4>(from, at, weights, taps.most, size, to);
    case 5:
      return add_taps<5>(from, at, weights, taps.most, size, to);
    case 6:
      return add_taps<6>(from, at, weights, taps.most, size, to);
    default:
      return add_taps<0>(from, at, weights, taps.most, size, to);
  }
}

/// The widest vectors of the machine that round as the narrowest do: no products are fused with sums.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MILLRACE_EXACT_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define MILLRACE_EXACT_VECTORS
#endif

MILLRACE_EXACT_VECTORS void to_floats(const std::uint8_t* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) to[i] = from[i];
}

MILLRACE_EXACT_VECTORS void add_line(float weight, const float* line, std::size_t count, float* row) {
  for (std::size_t i = 0; i < count; ++i) row[i] += weight * line[i];
}

struct PixelPlanes {
  float *red, *green, *blue;
};

/// Divides by a normalisation's numbers. `reciprocal` is 1 / by.
struct PlainDivision {
  float operator()(float value, float by, float) const { return value / by; }
};

/// The same quotient from products, which take a third of the time: the rest that the first guess leaves,
/// with one rounding, corrects it (Markstein). It was compared with divisions of all 2^24 mantissas by 255
/// and by each deviation above.
struct ProductDivision {
  float operator()(float value, float by, float reciprocal) const {
    const float guess = value * reciprocal;
    return __builtin_fmaf(__builtin_fmaf(-by, guess, value), reciprocal, guess);
  }
};

/// Normalises a row of pixels and writes it to a plane for each channel, mirrored if `flip`.
template <typename Division>
inline __attribute__((always_inline)) void finish_row_by(Division divided, const float* __restrict row,
                                                         std::ptrdiff_t size, const Normalisation& normal,
                                                         bool flip, const PixelPlanes& planes) {
  float* __restrict red = planes.red, * __restrict green = planes.green, * __restrict blue = planes.blue;
  const Normalisation n = normal;
  const float of_255 = 1 / 255.0f, of_red = 1 / n.deviation[0], of_green = 1 / n.deviation[1],
              of_blue = 1 / n.deviation[2];
  const auto value = [&](std::ptrdiff_t x, int c, float reciprocal) {
    return divided(divided(row[3 * x + c], 255, of_255) - n.mean[c], n.deviation[c], reciprocal);
  };
  if (flip) {
    for (std::ptrdiff_t x = 0; x < size; ++x) {
      red[size - 1 - x] = value(x, 0, of_red);
      green[size - 1 - x] = value(x, 1, of_green);
      blue[size - 1 - x] = value(x, 2, of_blue);
    }
  } else {
    for (std::ptrdiff_t x = 0; x < size; ++x) {
      red[x] = value(x, 0, of_red);
      green[x] = value(x, 1, of_green);
      blue[x] = value(x, 2, of_blue);
    }
  }
}

void finish_row_plainly(const float* row, std::ptrdiff_t size, const Normalisation& normal, bool flip,
                        const PixelPlanes& planes) {
  finish_row_by(PlainDivision(), row, size, normal, flip, planes);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) void finish_row_by_products(const float* row, std::ptrdiff_t size,
                                                                const Normalisation& normal, bool flip,
                                                                const PixelPlanes& planes) {
  finish_row_by(ProductDivision(), row, size, normal, flip, planes);
}
const auto finish_row = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                            ? finish_row_by_products
                            : finish_row_plainly;
#else
constexpr auto finish_row = finish_row_plainly;
#endif

/// The buffers of a thread. Fresh memory for each image would cost as much as the sums do.
struct ResampleBuffers {
  std::vector<float> source, lines, row;
  std::vector<std::size_t> offsets;
};

/// Resamples the crop to size x size and normalises: [3, size, size] float32. Columns are added up first, to
/// lines as long as the result. Of these only as many are kept as a row of the result reads.
at::Tensor resample(const RgbImage& image, const Crop& crop, int size,
                    const Normalisation& normal = kImageNet) {
  thread_local ResampleBuffers buffers;
  const Taps columns = make_taps(crop.x, crop.width, size, image.width),
             rows = make_taps(crop.y, crop.height, size, image.height);
  const PixelRegion& held = image.held;
  const std::size_t width = static_cast<std::size_t>(size) * 3, distance = width + 1,
                    left = columns.first.front(), right = columns.first.back() + columns.count.back(),
                    bottom = rows.first.back() + rows.count.back(),
                    held_left = static_cast<std::size_t>(held.left),
                    held_top = static_cast<std::size_t>(held.top),
                    held_width = static_cast<std::size_t>(held.width);
  MILLRACE_CHECK(held_left <= left && right <= held_left + held_width && held_top <= rows.first.front() &&
                     bottom <= held_top + static_cast<std::size_t>(held.height),
                 "the image does not hold what is resampled");
  const std::size_t used = (right - left) * 3;
  buffers.offsets.clear();
  for (const std::size_t first : columns.first) buffers.offsets.push_back((first - left) * 3);
  buffers.source.assign(used + 3 * columns.most + 1, 0);  // pixels are read as four floats
  buffers.lines.resize(rows.most * distance);             // and stored as four
  buffers.row.resize(width);
  const auto line_of = [&](std::size_t y) { return buffers.lines.data() + y % rows.most * distance; };
  at::Tensor result = at::empty({3, size, size}, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  const std::size_t plane = static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  float* row = buffers.row.data();
  std::size_t made = rows.first.front();  // the first line that is not there yet
  for (std::size_t y = 0; y < static_cast<std::size_t>(size); ++y) {
    const std::size_t first = rows.first[y], end = first + rows.count[y];
    for (made = std::max(made, first); made < end; ++made) {
      to_floats(image.pixels.data() + ((made - held_top) * held_width + left - held_left) * 3, used,
                buffers.source.data());
      add_columns(buffers.source.data(), buffers.offsets.data(), columns, line_of(made));
    }
    std::fill_n(row, width, 0.0f);
    for (std::size_t k = 0; k < rows.count[y]; ++k)
      add_line(rows.weights[y * rows.most + k], line_of(first + k), width, row);
    float* to = out + y * static_cast<std::size_t>(size);
    finish_row(row, size, normal, crop.flip, {to, to + plane, to + 2 * plane});
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
Crop centre_of(int width, int height, const Preparation& preparation) {
  const double side = std::min(width, height),
               kept = preparation.classifies && preparation.size > kSmall ? side * 7 / 8 : side;
  return {(width - kept) / 2, (height - kept) / 2, kept, kept, false};
}

RandomStream stream_of(const AugmentStep& step, std::uint64_t seed) {
  return RandomStream(derive_seed(seed, "augment", static_cast<std::uint64_t>(step.kind)));
}

/// Returns what is cut out of an image, not mirrored yet. `random`: the stream of `seed`, where the steps of
/// training are the usual ones.
Crop crop_of(int width, int height, const Preparation& preparation, std::uint64_t seed,
             RandomStream& random) {
  Crop crop = centre_of(width, height, preparation);
  if (!preparation.classifies || !preparation.train) return crop;
  if (!preparation.augment)
    return preparation.size <= kSmall ? crop : random_resized_crop(width, height, 0.08, 1, random);
  for (const AugmentStep& step : *preparation.augment) {
    if (step.kind != Augmentation::RandomResizedCrop) continue;
    RandomStream own = stream_of(step, seed);
    crop = random_resized_crop(width, height, step.numbers[0], step.numbers[1], own);
  }
  return crop;
}

/// Augments as `--augment` says.
at::Tensor augmented(const RgbImage& image, const Crop& crop, const Preparation& preparation,
                     std::uint64_t seed) {
  at::Tensor result = resample(image, crop, preparation.size, kUnchanged);
  for (const AugmentStep& step : *preparation.augment) {
    RandomStream random = stream_of(step, seed);
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

PixelRegion needed_pixels(int width, int height, const Preparation& preparation, std::uint64_t seed) {
  RandomStream random(seed);
  const Crop crop = crop_of(width, height, preparation, seed, random);
  const auto range = [&](double start, double length, int limit) {
    const double reach = reach_of(length, preparation.size);
    const int first = std::clamp(static_cast<int>(std::floor(start - reach)), 0, limit - 1),
              end = std::clamp(static_cast<int>(std::ceil(start + length + reach)), first + 1, limit);
    return std::pair(first, end - first);
  };
  const auto [left, columns] = range(crop.x, crop.width, width);
  const auto [top, rows] = range(crop.y, crop.height, height);
  return {left, top, columns, rows};
}

at::Tensor transform(const RgbImage& image, const Preparation& preparation, std::uint64_t seed) {
  const int size = preparation.size;
  RandomStream random(seed);
  Crop crop = crop_of(image.width, image.height, preparation, seed, random);
  if (!preparation.classifies) return resample(image, crop, size, kSymmetric);
  if (!preparation.train) return resample(image, crop, size);
  if (preparation.augment) return augmented(image, crop, preparation, seed);
  crop.flip = random.uniform() < 0.5;
  const at::Tensor result = resample(image, crop, size);
  return size <= kSmall ? shifted(result, random) : result;
}

}  // namespace millrace
