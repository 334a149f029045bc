// Softmax over a large vocabulary in clusters (Grave et al., arXiv 1609.04309).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

struct AdaptiveSoftmaxOptions {
  std::int64_t in = 1, classes = 1;
  /// Ascending class numbers above 0 and below `classes`. Classes below the first cutoff are the frequent
  /// ones. Each pair of adjacent cutoffs, and the last cutoff with `classes`, bounds a cluster of rare
  /// classes.
  std::vector<std::int64_t> cutoffs;
  double divisor = 4;           ///< cluster i (from 0) reads floor(in / divisor^(i + 1)) features
  std::int64_t ignored = -100;  ///< labels with this value are ignored
};
/// Returns the number of features of `cluster`; 0: the divisor is too large for that many clusters.
std::int64_t cluster_features(const AdaptiveSoftmaxOptions& options, std::size_t cluster);

/// x [..., in], labels int64 [...] -> the log-probability of each label [...], 0 for ignored labels. The
/// layer computes torch.nn.AdaptiveLogSoftmaxWithLoss and has its parameters: head.weight [cutoffs[0] +
/// clusters, in], tail.i.0.weight [features, in], tail.i.1.weight [classes of the cluster, features]. A
/// cluster is computed only for its own labels. Throws DataError if a label is not below `classes`.
LayerPtr adaptive_log_softmax(const AdaptiveSoftmaxOptions& options);

/// The loss head for the log-probabilities of adaptive_log_softmax(). Inputs: log-probabilities [...], labels
/// int64 [...]. Metrics: loss and nll, which are equal, and perplexity. There is no accuracy, because the
/// most likely class is unknown. `smoothing` is not used.
HeadPtr label_likelihood_head(const TokenLossOptions& options = {});

}  // namespace millrace
