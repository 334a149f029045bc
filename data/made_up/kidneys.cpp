#include "data/made_up/kidneys.h"

#include <algorithm>
#include <cmath>

#include "data/made_up/payload.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

constexpr float kDeviation = 0.5F, kKidneyMean = 1.25F, kTumourMean = -1;

/// The kind of a voxel. All but Outside are labels.
enum class Voxel : std::uint8_t { Body = 0, Kidney = 1, Tumour = 2, Outside = 255 };

/// Returns the columns [begin, end) of a row that lie in the ellipsoid.
std::array<std::int64_t, 2> columns_in(const Ellipsoid& e, std::int64_t plane, std::int64_t row) {
  const double z = (double(plane) - e.centre[0]) / e.radii[0], y = (double(row) - e.centre[1]) / e.radii[1];
  const double left = 1 - z * z - y * y;
  if (left < 0) return {0, 0};
  const double half = std::sqrt(left) * e.radii[2];
  return {static_cast<std::int64_t>(std::ceil(e.centre[2] - half)),
          static_cast<std::int64_t>(std::floor(e.centre[2] + half)) + 1};
}

/// Calls `use(voxel, count)` for each stretch of equal voxels among [first, first + count), in order.
template <class Use>
void for_stretches(const KidneyVolume& v, std::int64_t first, std::int64_t count, Use&& use) {
  const std::int64_t last = first + count;
  while (first < last) {
    const std::int64_t line = first / v.side, plane = line / v.side, row = line % v.side;
    const std::int64_t begin = first % v.side, end = std::min(v.side, begin + last - first);
    // Each later shape lies over the earlier ones.
    struct Shape {
      std::array<std::int64_t, 2> columns;
      Voxel voxel;
    };
    const Shape shapes[] = {
        {columns_in(v.body, plane, row), Voxel::Body},
        {columns_in(v.kidneys[0], plane, row), Voxel::Kidney},
        {columns_in(v.kidneys[1], plane, row), Voxel::Kidney},
        {v.has_tumour ? columns_in(v.tumour, plane, row) : std::array<std::int64_t, 2>{}, Voxel::Tumour}};
    for (std::int64_t at = begin; at < end;) {
      Voxel here = Voxel::Outside;
      std::int64_t until = end;
      for (const Shape& shape : shapes) {
        if (shape.columns[0] <= at && at < shape.columns[1]) here = shape.voxel;
        for (const std::int64_t edge : shape.columns)
          if (edge > at) until = std::min(until, edge);
      }
      use(here, until - at);
      at = until;
    }
    first += end - begin;
  }
}

/// Returns noise of deviation 1, the same on every machine: the sum of four uniform numbers, which is nearly
/// normal.
float noise(std::uint64_t random) {
  const auto sum = static_cast<std::int32_t>((random & 0xffff) + (random >> 16 & 0xffff) +
                                             (random >> 32 & 0xffff) + (random >> 48));
  constexpr float kScale = 1.7320508F / 65536;  // four numbers of variance 1/12 each
  return static_cast<float>(sum - 2 * 65535) * kScale;
}

}  // namespace

KidneyVolume draw_kidney_volume(std::uint64_t seed, std::int64_t number, std::int64_t side) {
  const double factor =
      RandomStream(derive_seed(seed, "kidneys.size", static_cast<std::uint64_t>(number))).uniform();
  const auto scaled = [&](double by) { return std::max<std::int64_t>(2, std::llround(double(side) * by)); };
  return draw_kidney_volume(seed, number, scaled(0.5 + factor), scaled(0.75 + factor / 2));
}

KidneyVolume draw_kidney_volume(std::uint64_t seed, std::int64_t number, std::int64_t depth,
                                std::int64_t side) {
  const auto n = static_cast<std::uint64_t>(number);
  RandomStream random(derive_seed(seed, "kidneys.shape", n));
  KidneyVolume v{.key = derive_seed(seed, "kidneys.noise", n), .depth = depth, .side = side};
  const std::array<double, 3> sides{double(depth), double(side), double(side)};
  const auto ellipsoid = [&](std::array<double, 3> centre, std::array<double, 3> radii, double change) {
    Ellipsoid e;
    for (std::size_t d = 0; d < 3; ++d) {
      e.centre[d] = sides[d] * (centre[d] + change * random.uniform(-0.5, 0.5));
      e.radii[d] = sides[d] * radii[d] * random.uniform(0.85, 1.15);
    }
    return e;
  };
  v.body = ellipsoid({0.5, 0.5, 0.5}, {0.6, 0.42, 0.42}, 0.04);
  for (std::size_t k = 0; k < 2; ++k)
    v.kidneys[k] = ellipsoid({0.5, 0.55, k == 0 ? 0.3 : 0.7}, {0.16, 0.095, 0.085}, 0.1);
  v.has_tumour = random.below(2) == 0;
  const Ellipsoid& of = v.kidneys[random.below(2)];
  v.tumour = ellipsoid({0, 0, 0}, {0.07, 0.06, 0.06}, 0);
  for (std::size_t d = 0; d < 3; ++d)
    v.tumour.centre[d] = of.centre[d] + of.radii[d] * random.uniform(-0.5, 0.5);
  return v;
}

void fill_kidney_values(const KidneyVolume& volume, std::int64_t first, std::int64_t count, float* values) {
  auto index = static_cast<std::uint64_t>(first);
  for_stretches(volume, first, count, [&](Voxel voxel, std::int64_t stretch) {
    if (voxel == Voxel::Outside) {
      std::fill_n(values, stretch, kOutsideBody);
    } else {
      const float mean = voxel == Voxel::Kidney ? kKidneyMean : voxel == Voxel::Tumour ? kTumourMean : 0;
      for (std::int64_t i = 0; i < stretch; ++i)
        values[i] = mean + kDeviation * noise(hashed(volume.key, index + static_cast<std::uint64_t>(i)));
    }
    values += stretch;
    index += static_cast<std::uint64_t>(stretch);
  });
}

void fill_kidney_labels(const KidneyVolume& volume, std::int64_t first, std::int64_t count,
                        std::uint8_t* labels) {
  for_stretches(volume, first, count, [&](Voxel voxel, std::int64_t stretch) {
    std::fill_n(labels, stretch,
                voxel == Voxel::Outside ? std::uint8_t{0} : static_cast<std::uint8_t>(voxel));
    labels += stretch;
  });
}

}  // namespace millrace
