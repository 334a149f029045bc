// Cross-entropy with targets that are shares of several classes: smoothed labels, and those of mixed samples.
#pragma once

#include "runtime/layers/head.h"

namespace millrace {

/// cross_entropy_head with label smoothing, uniform over all classes (arXiv 1512.00567, section 7). Loss and
/// gradient are those of torch's cross_entropy with label_smoothing. The loss of an evaluation is smoothed
/// too.
HeadPtr smoothed_cross_entropy_head(double smoothing);

/// Returns the cross-entropy of two classes for each sample (mixup, arXiv 1710.09412), with the smoothing of
/// `head`. Its inputs are scores, target, partner int64 [B] and share float32 [B]: the target counts `share`,
/// the partner the rest. top1 and top5 are the target's. Returns null if `head` is neither of
/// cross_entropy_head and smoothed_cross_entropy_head.
HeadPtr with_mixed_targets(const Head& head);

}  // namespace millrace
