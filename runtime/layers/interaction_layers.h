// Layers and the loss head of models that predict clicks (DLRM, arXiv 1906.00091). N is the number of samples
// in a microbatch, D the number of features of a vector, F the number of vectors of a sample.
#pragma once

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// F vectors [N, D], the first from the dense features -> [N, D + F (F - 1) / 2 + padding]. The output is the
/// first vector, then the products of vectors i > j, row by row: (1,0), (2,0), (2,1), ..., then `padding`
/// zeros.
LayerPtr dot_interaction(std::int64_t padding = 0);

/// The kind of scores that binary cross-entropy reads: probabilities in [0, 1], or their logits.
enum class BinaryScores { Probabilities, Logits };

/// Mean binary cross-entropy. Inputs: scores [N, 1], labels int64 [N], each 0 or 1. The values and gradients
/// are those of torch's binary_cross_entropy (logarithms are at least -100) and
/// binary_cross_entropy_with_logits. Metrics: loss; accuracy, with a probability of 1/2 counted as a click;
/// in evaluations also auc, the area under the ROC curve (runtime/metrics/roc_auc.h). There is no auc if all
/// labels are equal.
HeadPtr binary_cross_entropy_head(BinaryScores scores);

}  // namespace millrace
