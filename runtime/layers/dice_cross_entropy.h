// The loss head of models that label every voxel of a volume: soft Dice plus cross-entropy. Shapes: B
// samples, C classes, with class 0 as the background, D H W the sides of a sample.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/layers/head.h"

namespace millrace {

/// The content of the field "window": the position of a sample in its volume. In training all numbers are
/// zero: a sample is then independent.
struct VolumeWindow {
  std::int64_t windows = 0;             ///< number of windows in the volume
  std::int64_t number = 0;              ///< index of this window; windows arrive in order
  std::array<std::int64_t, 3> begin{};  ///< first voxel: plane, row, column
  std::array<std::int64_t, 3> sides{};  ///< depth, height and width of the volume
};
inline constexpr std::int64_t kVolumeWindowNumbers = 8;
/// The label of a window's voxels outside the volume. It is not a class, as a model has at most 255.
inline constexpr std::int64_t kOutsideVolume = 255;

/// Inputs: scores [B, C, D, H, W], target uint8 [B, 1, D, H, W] below C, window int64 [B, 8] (VolumeWindow).
/// Loss: (CE + mean over samples and classes of (1 - dice)) / 2, with CE over all voxels and dice = (2 sum pt
/// + 1e-6) / (sum p + sum t + 1e-6) of the softmax p, without the background. Metrics: loss; dice, the mean
/// of the next ones; dice_1, dice_2, ..., the Dice of each class, where a voxel has the class with the
/// highest score. A metric is the mean over samples.
///
/// In an evaluation the windows of a volume are one sample. Scores of voxels in several windows are averaged,
/// with weights exp(-(r^2 - 0.75) / (6 (side/8)^2)) at distance r from a window's centre. The source is
/// MLPerf's UNET3D, whose cube root widens the configured sigma of side/8 by sqrt(3). Voxels with the label
/// kOutsideVolume are not part of any metric.
HeadPtr dice_cross_entropy_head(std::int64_t classes);

}  // namespace millrace
