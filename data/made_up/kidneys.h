// Volumes that look like scans of a body with two kidneys, and the label of each voxel. A network can learn
// them: a kidney is brighter than the body around it, a tumour is darker than both.
#pragma once

#include <array>
#include <cstdint>

namespace millrace {

inline constexpr float kOutsideBody = -2.340702F;  ///< the lowest value of MLPerf's normalised KiTS volumes

/// An axis-parallel ellipsoid, in voxels: plane, row, column.
struct Ellipsoid {
  std::array<double, 3> centre{}, radii{1, 1, 1};
};

/// One volume. A value type; its voxels are a function of it alone, the same on every machine.
struct KidneyVolume {
  std::uint64_t key = 0;  ///< of the noise
  std::int64_t depth = 0, side = 0;
  Ellipsoid body;
  std::array<Ellipsoid, 2> kidneys;
  bool has_tumour = false;
  Ellipsoid tumour;

  std::int64_t voxels() const { return depth * side * side; }
};

/// Draws volume `number`. `side` is the mean height and width. A volume's height and width are equal and
/// within a quarter of it; one random factor gives them and the depth, which is 0.5 to 1.5 times `side`. Half
/// of the volumes have a tumour. The kidneys are about 1 % of the voxels.
KidneyVolume draw_kidney_volume(std::uint64_t seed, std::int64_t number, std::int64_t side);
/// The same with the given sides.
KidneyVolume draw_kidney_volume(std::uint64_t seed, std::int64_t number, std::int64_t depth,
                                std::int64_t side);

/// Write `count` voxels from voxel `first` on, in the order of planes, rows and columns. Values: kOutsideBody
/// outside of the body, else noise of deviation 0.5 around 0, around 1.25 in a kidney, around -1 in a tumour.
/// Labels: 0, 1 in a kidney, 2 in a tumour.
void fill_kidney_values(const KidneyVolume& volume, std::int64_t first, std::int64_t count, float* values);
void fill_kidney_labels(const KidneyVolume& volume, std::int64_t first, std::int64_t count,
                        std::uint8_t* labels);

}  // namespace millrace
