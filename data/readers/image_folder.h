#pragma once

#include <memory>

#include "data/loading/dataset.h"

namespace millrace {

/// PATH/train/CLASS/*.jpg, PATH/{test,val}/CLASS/*.jpg, or PATH/CLASS/*.jpg for both splits. Classes and
/// files in the order of their names; the classes of train/ are those of both splits. Train: random-resized
/// crop and flip (small images: shifted crop and flip); test: centre crop. Policy for odd images:
/// docs/data.md. Null: no test/ or val/ beside train/.
Result<std::shared_ptr<const Dataset>> make_image_folder(const DatasetOptions& options);

/// Makes a data set for models that read square images alone, [3, size, size]. It takes every .jpg, .jpeg
/// and .png below PATH/train and PATH/{test,val}, or below PATH for both splits, in whatever folders, in
/// the order of their paths. The shorter side becomes `size`, the centre is cut out, values lie in [-1, 1];
/// nothing is random. Null: no test/ or val/ beside train/.
Result<std::shared_ptr<const Dataset>> make_image_tree(const DatasetOptions& options);

}  // namespace millrace
