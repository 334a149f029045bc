#pragma once

#include <memory>

#include "data/loading/dataset.h"

namespace millrace {

/// Makes a data set of PATH/train/CLASS/*.jpg and PATH/{test,val}/CLASS/*.jpg, or of PATH/CLASS/*.jpg for
/// both splits. Classes and files are in the order of their names; both splits have the classes of train/.
/// Training images get a random resized crop and a flip (small ones a shifted crop and a flip), test images a
/// centre crop. docs/data.md has the policy for odd images. Returns null if train/ has no test/ or val/
/// beside it.
Result<std::shared_ptr<const Dataset>> make_image_folder(const DatasetOptions& options);

/// Makes a data set for models that read square images alone, [3, size, size]. It takes every .jpg, .jpeg
/// and .png below PATH/train and PATH/{test,val}, or below PATH for both splits, in whatever folders, in
/// the order of their paths. The shorter side becomes `size`, the centre is cut out, values lie in [-1, 1];
/// nothing is random. Returns null if train/ has no test/ or val/ beside it.
Result<std::shared_ptr<const Dataset>> make_image_tree(const DatasetOptions& options);

}  // namespace millrace
