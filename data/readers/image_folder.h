#pragma once

#include <memory>

#include "data/dataset.h"

namespace millrace {

/// PATH/train/CLASS/*.jpg, PATH/{test,val}/CLASS/*.jpg, or PATH/CLASS/*.jpg for both splits. Classes and
/// files in the order of their names; the classes of train/ are those of both splits. Train: random-resized
/// crop and flip (small images: shifted crop and flip); test: centre crop. Policy for odd images:
/// docs/data.md. Null: no test/ or val/ beside train/.
Result<std::shared_ptr<const Dataset>> make_image_folder(const DatasetOptions& options);

}  // namespace millrace
