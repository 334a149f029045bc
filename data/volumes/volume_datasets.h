// Volumes with a class for each voxel: fields "input" float32 [1, S, S, S], "target" uint8 of the same shape,
// and "window" int64 [8] (VolumeWindow of runtime/layers/dice_cross_entropy.h). S is the side of a crop.
#pragma once

#include <memory>
#include <string>

#include "data/loading/dataset.h"

namespace millrace {

/// Returns whether the model reads SampleForm::Volumes.
bool reads_volumes(const std::vector<FieldSpec>& fields);

/// Makes a data set of files as MLPerf's preprocessing of KiTS19 leaves them: case_NNNNN_x.npy, float32 [1,
/// d, h, w], and case_NNNNN_y.npy, uint8 of the same shape. `text` is FOLDER, whose test split are the cases
/// that MLPerf evaluates on, or TRAIN,TEST for two folders. Training samples are random crops of one volume
/// each. With a chance of 0.4 a crop holds one of the largest connected parts of a class other than 0, or
/// lies in it. Each axis is flipped with a chance of 1/3. With 0.1 each, values are multiplied by
/// U(0.7, 1.3), and get noise N(0, s), s from U(0, 0.1). Test samples are all windows of all volumes, one
/// volume after the other, half a crop apart. Before, each axis is cut or padded at both ends to a multiple
/// of half a crop; voxels that were added have the label kOutsideVolume. Nothing is random. Returns null if
/// there is no case for the split. Problems: labels or values that are missing, files that are no such arrays
/// or cut short, shapes that differ, volumes smaller than the crop. Reading throws DataError.
Result<std::shared_ptr<const Dataset>> make_kits(const DatasetOptions& options, const std::string& text);

/// Makes `size` volumes of the model's crop with two kidneys and, in half of them, a tumour
/// (data/made_up/kidneys.h). A volume is a function of (seed, split, index).
std::shared_ptr<const Dataset> make_synthetic_volumes(const DatasetOptions& options, std::int64_t size);

}  // namespace millrace
