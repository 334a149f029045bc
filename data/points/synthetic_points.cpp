// Makes clouds of points on the surfaces of solids from a seed.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data/loading/samples.h"
#include "data/points/point_datasets.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

constexpr double kNoise = 0.02;

/// Draws a point on the surface of a solid with radius and half height 1: ellipsoid, box, cylinder or cone.
/// The solid is stretched along y by a factor that belongs to the class.
void draw_point(std::uint64_t shape, RandomStream& random, float* xyz) {
  const double angle = random.uniform(0, 2 * std::numbers::pi), height = random.uniform(-1, 1);
  double x = 0, y = height, z = 0;
  if (shape % 4 == 1) {  // a face of the box, and a place on it
    double at[3] = {random.uniform(-1, 1), random.uniform(-1, 1), random.uniform(-1, 1)};
    at[random.below(3)] = random.below(2) == 0 ? -1 : 1;
    x = at[0], y = at[1], z = at[2];
  } else {
    const double radius = shape % 4 == 0   ? std::sqrt(1 - height * height)
                          : shape % 4 == 2 ? 1
                                           : (1 - height) / 2;
    x = radius * std::cos(angle), z = radius * std::sin(angle);
  }
  const double stretched = 0.5 * double(1 + shape / 4 % 8);
  xyz[0] = static_cast<float>(x + kNoise * random.normal());
  xyz[1] = static_cast<float>(y * stretched + kNoise * random.normal());
  xyz[2] = static_cast<float>(z + kNoise * random.normal());
}

class SyntheticPoints final : public Dataset {
 public:
  SyntheticPoints(const DatasetOptions& options, std::int64_t size)
      : options_(options),
        size_(size),
        labels_(field_index(options.fields, "labels")),
        target_(field_index(options.fields, "target")) {}

  std::int64_t size() const override { return size_; }
  int num_classes() const override { return target_ < 0 ? 0 : static_cast<int>(limit(target_)); }
  std::string describe() const override {
    return "synthetic, " + std::to_string(size_) + " clouds of " + std::to_string(num_points()) + " points";
  }
  std::string fingerprint() const override { return describe(); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const std::uint64_t seed =
        derive_seed(options_.seed, to_string(options_.split), static_cast<std::uint64_t>(index));
    const std::uint64_t shape = seed % (target_ < 0 ? kShapes : static_cast<std::uint64_t>(limit(target_)));
    Sample sample(options_.fields.size());
    if (target_ >= 0) sample[target_].number = static_cast<std::int64_t>(shape);
    if (!wanted[0] && labels_ < 0) return sample;
    const at::Tensor points = at::empty({num_points(), 3}, at::kFloat);
    float* xyz = points.mutable_data_ptr<float>();
    RandomStream random(seed);
    for (std::int64_t i = 0; i < num_points(); ++i) draw_point(shape, random, xyz + 3 * i);
    normalise_points_(points);
    if (labels_ >= 0) set_field(sample, wanted, labels_, parts_of(points));
    if (wanted[0]) sample[0].tensor = points;
    return sample;
  }

 private:
  static constexpr std::uint64_t kShapes = 16;
  std::int64_t num_points() const { return options_.fields[0].shape[0]; }
  std::int64_t limit(int field) const { return options_.fields[field].limit; }

  /// Returns the part of each point. Parts are equal slices of the height.
  FieldValue parts_of(const at::Tensor& points) const {
    const float* xyz = points.const_data_ptr<float>();
    std::vector<std::int64_t> parts;
    float low = xyz[1], high = xyz[1];
    for (std::int64_t i = 0; i < num_points(); ++i) {
      low = std::min(low, xyz[3 * i + 1]);
      high = std::max(high, xyz[3 * i + 1]);
    }
    const double slice = std::max(double(high - low), 1e-6) / double(limit(labels_));
    for (std::int64_t i = 0; i < num_points(); ++i)
      parts.push_back(
          std::min(limit(labels_) - 1, static_cast<std::int64_t>((xyz[3 * i + 1] - low) / slice)));
    return integers(parts);
  }

  DatasetOptions options_;
  std::int64_t size_;
  int labels_, target_;
};

}  // namespace

bool reads_points(const std::vector<FieldSpec>& fields) {
  return !fields.empty() && fields[0].form == SampleForm::Points;
}

void normalise_points_(const at::Tensor& points) {
  float* xyz = points.mutable_data_ptr<float>();
  const std::int64_t count = points.size(0);
  double centre[3] = {}, farthest = 0;
  for (std::int64_t i = 0; i < 3 * count; ++i) centre[i % 3] += xyz[i] / double(count);
  for (std::int64_t i = 0; i < count; ++i) {
    double distance = 0;
    for (int d = 0; d < 3; ++d) {
      xyz[3 * i + d] = static_cast<float>(xyz[3 * i + d] - centre[d]);
      distance += double(xyz[3 * i + d]) * xyz[3 * i + d];
    }
    farthest = std::max(farthest, std::sqrt(distance));
  }
  if (farthest == 0) return;  // all points are in one place
  for (std::int64_t i = 0; i < 3 * count; ++i) xyz[i] = static_cast<float>(xyz[i] / farthest);
}

std::shared_ptr<const Dataset> make_synthetic_points(const DatasetOptions& options, std::int64_t size) {
  return std::make_shared<SyntheticPoints>(options, size);
}

}  // namespace millrace
