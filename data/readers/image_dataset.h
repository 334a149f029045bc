#pragma once

#include <memory>

#include "data/readers/image_set.h"
#include "data/readers/image_transform.h"

namespace millrace {

/// Makes the data set of the images of a split. docs/data.md has its policy for odd images.
std::shared_ptr<const Dataset> make_image_dataset(ImageSet set, const Preparation& preparation);

}  // namespace millrace
