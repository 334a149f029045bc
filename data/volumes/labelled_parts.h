// The connected parts of a labelled volume.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace {

/// Voxels [begin, end) in each of plane, row and column.
struct VoxelBox {
  std::array<std::int64_t, 3> begin{}, end{};

  std::int64_t voxels() const { return (end[0] - begin[0]) * (end[1] - begin[1]) * (end[2] - begin[2]); }
  bool operator==(const VoxelBox&) const = default;
};

/// A label that occurs, with the boxes around its parts.
struct LabelledParts {
  std::uint8_t label = 0;
  std::vector<VoxelBox> boxes;
};

/// Returns for each label other than 0, ascending, the boxes around its `most` parts with the largest boxes,
/// the largest first. Of equal boxes the part that begins earlier comes first. The voxels of a part touch
/// each other by their faces. `labels` has the volume's voxels in the order of planes, rows and columns.
/// Pure.
std::vector<LabelledParts> labelled_parts(std::span<const std::uint8_t> labels,
                                          const std::array<std::int64_t, 3>& sides, std::size_t most);

}  // namespace millrace
