// What networks that are trained against each other need (DCGAN, arXiv 1511.06434).
#pragma once

#include <string>
#include <vector>

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// [B, ...] -> [B, sample...], normal of mean 0 and deviation 1, whatever the input's values: a stream of its
/// own for each microbatch (CallContext::random_seed), in evaluation too.
LayerPtr normal_noise(Shape sample);
LayerPtr leaky_relu(double slope);

/// Scores of one input that are to tell samples of class `label`, and what the mean of their sigmoids is
/// called.
struct JudgedScores {
  double label = 1;
  std::string mean;
};
/// Binary cross-entropy of scores with constant labels, its mean over the elements of each input, added over
/// the inputs. Inputs: scores [B, ...], one for each of `judged`. Metrics: loss, then each one's mean
/// probability. Gradient as torch's binary_cross_entropy_with_logits with reduction "mean" times
/// LossScale::share.
HeadPtr adversarial_head(std::vector<JudgedScores> judged);

}  // namespace millrace
