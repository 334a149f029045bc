// The head of models that label every voxel of a volume: soft Dice plus cross-entropy. Shapes: B samples, C
// classes of which class 0 is the background, D H W the sides of a sample.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/layers/head.h"

namespace millrace {

/// The numbers of the field "window": they place a sample in the volume that it is a window of. In training
/// all are zero: a sample then stands by itself.
struct VolumeWindow {
  std::int64_t windows = 0;             ///< of the volume
  std::int64_t number = 0;              ///< of this window; windows come in their order
  std::array<std::int64_t, 3> begin{};  ///< its first voxel: plane, row, column
  std::array<std::int64_t, 3> sides{};  ///< depth, height and width of the volume
};
inline constexpr std::int64_t kVolumeWindowNumbers = 8;
/// The label of the voxels that windows have beyond the volume. It is no class, as a model has at most 255.
inline constexpr std::int64_t kOutsideVolume = 255;

/// Inputs: scores [B, C, D, H, W], target uint8 [B, 1, D, H, W] below C, window int64 [B, 8] (VolumeWindow).
/// Loss: (CE + mean over samples and classes of (1 - dice)) / 2, with CE over all voxels and dice = (2 sum pt
/// + 1e-6) / (sum p + sum t + 1e-6) of the softmax p, without the background. Metrics: loss, dice, and
/// dice_1, dice_2, ... of each class, of the highest scores; dice is their mean. A metric is the mean over
/// samples.
///
/// In an evaluation the windows of a volume are one sample. Scores of voxels in several windows are averaged,
/// with weights exp(-(r^2 - 0.75) / (6 (side/8)^2)) at distance r from a window's centre. The source is
/// MLPerf's UNET3D, whose configured sigma of side/8 becomes sqrt(3) times as wide by a cube root. Voxels
/// with the label kOutsideVolume count in no metric.
HeadPtr dice_cross_entropy_head(std::int64_t classes);

}  // namespace millrace
