// Classifiers trained on mixed samples (mixup).
#pragma once

#include "runtime/base/result.h"

namespace millrace {

struct LayeredModel;

/// Makes a classifier accept mixed samples: its heads also read the fields "partner" (the other sample's
/// class) and "share" (float32, the share of the sample's own class). Returns an error if its heads are not
/// cross-entropy of its second field, or if it ignores a class.
Status mix_targets(LayeredModel& model);

}  // namespace millrace
