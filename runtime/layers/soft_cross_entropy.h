// Cross-entropy with targets that are shares of several classes: smoothed labels, and those of mixed samples.
// Also cross-entropy with class weights or ignored labels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/layers/head.h"

namespace millrace {

/// cross_entropy_head with label smoothing, uniform over all classes (arXiv 1512.00567, section 7). Loss and
/// gradient are those of torch's cross_entropy with label_smoothing. The loss of an evaluation is smoothed
/// too.
HeadPtr smoothed_cross_entropy_head(double smoothing);

/// Returns the cross-entropy of two classes per sample (mixup, arXiv 1710.09412), with the smoothing of
/// `head`. Its inputs are scores, target, partner int64 [B] and share float32 [B]: the target has weight
/// `share`, the partner the rest. top1 and top5 use the target. Returns null if `head` is neither
/// cross_entropy_head nor smoothed_cross_entropy_head.
HeadPtr with_mixed_targets(const Head& head);

/// Converts class weights to integers in the same ratios, the largest below 2^40. Their sums are exact in any
/// order. Weights are rounded to float32 first, as in torch. A weight of at least 1/65536 of the largest is
/// then exact. Requires a positive weight, and no negative ones.
std::vector<std::int64_t> units_of_weights(std::span<const double> weights);

/// The count by which heads with class weights are divided: the sum of the targets' units.
inline constexpr const char* kClassUnits = "class weight";

/// Returns `head` with a weight for each class, in units. Loss and gradient are those of torch's
/// cross_entropy with `weight`, the head's label_smoothing and reduction "mean". The mean is over the whole
/// step: the sum over its samples, divided by the units of its targets. A step whose targets have weight zero
/// has loss and gradient zero. top1 and top5 weigh all samples equally. Returns null if `head` is neither
/// cross_entropy_head nor smoothed_cross_entropy_head, nor one of them with ignored labels.
HeadPtr with_class_weights(const Head& head, std::vector<std::int64_t> units);

/// The count by which heads that ignore labels are divided: the labels that are not ignored.
inline constexpr const char* kCountedLabels = "labels";

/// A head whose last input, the labels, determines the weight of each sample. Thread-safe, like a Head.
class WeighsLabels {
 public:
  virtual ~WeighsLabels() = default;
  /// Returns a sample's contribution to Head::weight(); -1: a label is out of range. `labels` are those of
  /// the sample, without the batch dimension, in C order. A head that weighs by samples returns the result of
  /// the counting_labels() head.
  virtual std::int64_t weight_of(std::span<const std::int64_t> labels, at::IntArrayRef sizes) const = 0;
  /// Returns the head in which a microbatch's weight is the number of its counted labels: weight() is
  /// kCountedLabels.
  virtual HeadPtr counting_labels() const = 0;
};

/// Labels that a loss ignores.
struct IgnoredLabels {
  std::int64_t label = -100;
  std::vector<std::string> fields;  ///< fields of the data that may contain such labels
  bool made = false;                ///< the model itself may produce such labels
};
/// A head that does not know in advance how many labels its loss ignores.
class IgnoresLabels {
 public:
  virtual ~IgnoresLabels() = default;
  virtual const std::vector<IgnoredLabels>& ignored() const = 0;
};

/// Returns the cross-entropy `head` that ignores targets equal to `ignored`, like torch's ignore_index: in
/// the loss, the gradient, top1, top5 and the weight. It is a WeighsLabels. Before counting_labels(), a
/// microbatch's weight in its step is its number of samples, and a device accepts no ignored target.
HeadPtr ignoring_labels(HeadPtr head, std::int64_t ignored);

/// Returns the units of a head from with_class_weights(); null for any other head.
const std::vector<std::int64_t>* class_units(const Head& head);

}  // namespace millrace
