// Cross-entropy with targets that are shares of several classes: smoothed labels, and those of mixed samples.
// And cross-entropy in which some classes weigh more than others, or some labels are ignored.
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

/// Returns the cross-entropy of two classes for each sample (mixup, arXiv 1710.09412), with the smoothing of
/// `head`. Its inputs are scores, target, partner int64 [B] and share float32 [B]: the target counts `share`,
/// the partner the rest. top1 and top5 are the target's. Returns null if `head` is neither of
/// cross_entropy_head and smoothed_cross_entropy_head.
HeadPtr with_mixed_targets(const Head& head);

/// Turns weights of classes into whole numbers that stand in the same ratios, the greatest below 2^40. Sums
/// of them are exact in any order. Weights are rounded to float32 first, as torch has them. One of at least
/// 1/65536 of the greatest is then exact. Needs a weight above zero, and none below.
std::vector<std::int64_t> units_of_weights(std::span<const double> weights);

/// The count that heads with weights of classes are divided by: the sum of the units of the targets.
inline constexpr const char* kClassUnits = "class weight";

/// Returns `head` with a weight for each class, in units. Loss and gradient are those of torch's
/// cross_entropy with `weight`, the head's label_smoothing and reduction "mean", where the mean is over the
/// whole step: the sum over its samples, divided by the units of its targets. A step whose targets weigh
/// nothing has loss and gradient zero. top1 and top5 count all samples alike. Returns null if `head` is
/// neither of cross_entropy_head and smoothed_cross_entropy_head, nor one of them with ignored labels.
HeadPtr with_class_weights(const Head& head, std::vector<std::int64_t> units);

/// The count that heads over the labels that are not ignored are divided by.
inline constexpr const char* kCountedLabels = "labels";

/// A head whose labels, its last input, decide how much a sample counts. Thread-safe, as a Head.
class WeighsLabels {
 public:
  virtual ~WeighsLabels() = default;
  /// Returns what a sample adds to Head::weight(); -1: a label is out of range. `labels` are those of the
  /// sample, without the batch dimension, in C order. A head that weighs by samples returns what the head of
  /// counting_labels() does.
  virtual std::int64_t weight_of(std::span<const std::int64_t> labels, at::IntArrayRef sizes) const = 0;
  /// Returns the head in which a microbatch weighs as many as labels of it count: weight() is kCountedLabels.
  virtual HeadPtr counting_labels() const = 0;
};

/// Labels that do not count in a loss.
struct IgnoredLabels {
  std::int64_t label = -100;
  std::vector<std::string> fields;  ///< the data may hold such labels in them
  bool made = false;                ///< the model itself may make such labels
};
/// A head that does not know how many labels its loss ignores.
class IgnoresLabels {
 public:
  virtual ~IgnoresLabels() = default;
  virtual const std::vector<IgnoredLabels>& ignored() const = 0;
};

/// Returns the cross-entropy `head` for targets of which those equal to `ignored` do not count, as torch's
/// ignore_index: not in the loss, the gradient, top1 and top5, nor in the weight. It is a WeighsLabels. Until
/// counting_labels() a microbatch weighs in its step as its samples, and a device takes no ignored target.
HeadPtr ignoring_labels(HeadPtr head, std::int64_t ignored);

/// Returns the units of a head of with_class_weights; null for any other.
const std::vector<std::int64_t>* class_units(const Head& head);

}  // namespace millrace
