// Softmax over a large vocabulary in clusters (Grave et al., arXiv 1609.04309).
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

struct AdaptiveSoftmaxOptions {
  std::int64_t in = 1, classes = 1;
  /// Rising, above 0 and below `classes`: the classes before the first are frequent, and each pair of
  /// neighbours, the last with `classes`, bounds a cluster of rare ones.
  std::vector<std::int64_t> cutoffs;
  double divisor = 4;           ///< cluster i (from 0) reads floor(in / divisor^(i + 1)) features
  std::int64_t ignored = -100;  ///< labels that do not count
};
/// Features of cluster `cluster`; 0: the divisor is too large for so many clusters.
std::int64_t cluster_features(const AdaptiveSoftmaxOptions& options, std::size_t cluster);

/// x [..., in], labels int64 [...] -> the logarithm of each label's probability [...], 0 where it is ignored:
/// torch.nn.AdaptiveLogSoftmaxWithLoss, whose parameters it has: head.weight [cutoffs[0] + clusters, in],
/// tail.i.0.weight [features, in], tail.i.1.weight [classes of the cluster, features]. A cluster is computed
/// for its own labels alone. Throws DataError on a label beyond `classes`.
LayerPtr adaptive_log_softmax(const AdaptiveSoftmaxOptions& options);

/// Ends a model in such logarithms. Inputs: logarithms [...], labels int64 [...]. Metrics: loss and nll,
/// which are one; shown with perplexity. Not accuracy: the most likely class is not known. `smoothing` is not
/// used.
HeadPtr label_likelihood_head(const TokenLossOptions& options = {});

}  // namespace millrace
