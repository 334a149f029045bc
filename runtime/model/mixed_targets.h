// Classifiers of mixed samples (mixup).
#pragma once

#include "runtime/base/result.h"

namespace millrace {

struct LayeredModel;

/// Makes a classifier one of mixed samples: its heads also read the fields "partner" (the other sample's
/// class) and "share" (float32, the part of the sample's own). Problem: it does not end in cross-entropy of
/// its second field, or it ignores one of the classes.
Status mix_targets(LayeredModel& model);

}  // namespace millrace
