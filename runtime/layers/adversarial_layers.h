// Layers and the loss head of networks that are trained against each other (DCGAN, arXiv 1511.06434).
#pragma once

#include <string>
#include <vector>

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// [B, ...] -> [B, sample...], normal numbers with mean 0 and standard deviation 1, independent of the
/// input's values. Each microbatch draws its own stream (CallContext::random_seed), also in evaluation.
LayerPtr normal_noise(Shape sample);
LayerPtr leaky_relu(double slope);

/// The label for the scores of one input, and the name of the metric: the mean of their sigmoids.
struct JudgedScores {
  double label = 1;
  std::string mean;
};
/// Binary cross-entropy of scores with constant labels: the mean over each input's elements, summed over the
/// inputs. Inputs: scores [B, ...], one for each of `judged`. Metrics: loss, then each input's mean
/// probability. The gradient is that of torch's binary_cross_entropy_with_logits with reduction "mean", times
/// LossScale::share.
HeadPtr adversarial_head(std::vector<JudgedScores> judged);

}  // namespace millrace
