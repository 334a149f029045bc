// Layers and the head of networks that are trained against each other (DCGAN, arXiv 1511.06434).
#pragma once

#include <string>
#include <vector>

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// [B, ...] -> [B, sample...], normal numbers with mean 0 and standard deviation 1, whatever the input's
/// values. Each microbatch draws a stream of its own (CallContext::random_seed), in evaluation too.
LayerPtr normal_noise(Shape sample);
LayerPtr leaky_relu(double slope);

/// The label of the scores of one input, and the name of the metric that is the mean of their sigmoids.
struct JudgedScores {
  double label = 1;
  std::string mean;
};
/// Binary cross-entropy of scores with constant labels: the mean over the elements of each input, summed over
/// the inputs. Inputs: scores [B, ...], one for each of `judged`. Metrics: loss, then each input's mean
/// probability. The gradient is that of torch's binary_cross_entropy_with_logits with reduction "mean", times
/// LossScale::share.
HeadPtr adversarial_head(std::vector<JudgedScores> judged);

}  // namespace millrace
