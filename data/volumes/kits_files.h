// The files of a folder of KiTS's form: which there are, and boxes of their voxels.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/files/left_out.h"
#include "data/volumes/labelled_parts.h"
#include "runtime/base/result.h"

namespace millrace {

using VoxelSides = std::array<std::int64_t, 3>;  ///< depth, height, width

/// An array of voxels in an NPY file.
struct VolumeFile {
  std::filesystem::path path;
  std::int64_t data_offset = 0;
};

struct KitsCase {
  std::int64_t number = 0;  ///< the NNNNN of its names
  VolumeFile values, labels;
  VoxelSides sides{};
};

/// Returns the numbers of the 42 cases that MLPerf evaluates on.
bool is_evaluation_case(std::int64_t number);

/// Reads the headers of all cases in the folder for which `wants` holds, by number. Problems, all at once: no
/// folder, a file without its partner, files that are no float32 or uint8 arrays [1, d, h, w] or cut short,
/// shapes of a pair that differ, a side below `smallest`. Other files go to `left_out`.
Result<std::vector<KitsCase>> read_kits_folder(const std::filesystem::path& folder, std::int64_t smallest,
                                               bool (*wants)(std::int64_t number), LeftOut& left_out);

/// Reads a box of voxels of a file of `sides`, as a tensor [1, depth, height, width] of float32 or uint8.
/// Voxels of the box outside of the volume are `outside`. Throws DataError.
at::Tensor read_box(const VolumeFile& file, const VoxelSides& sides, at::ScalarType dtype,
                    const VoxelBox& box, double outside);

}  // namespace millrace
