#pragma once

#include <memory>
#include <string>
#include <vector>

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

/// Makes a data set of image files without labels, in the order of `paths`; a folder stands for all images in
/// it and below it, in the order of their paths. `classifier`: prepared as make_image_folder() prepares test
/// images, else as make_image_tree() does. A damaged file is a DataError of get(). Problem: a folder without
/// images.
Result<std::shared_ptr<const Dataset>> make_image_files(const std::vector<std::string>& paths, int size,
                                                        bool classifier);

/// Returns the names of the classes, class 0 first: those of a folder that make_image_folder() takes, or the
/// lines of a file. Problem: neither, a folder without classes, an empty line.
Result<std::vector<std::string>> read_class_names(const std::string& path);

}  // namespace millrace
