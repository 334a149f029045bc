#include "runtime/layers/dice_cross_entropy.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

constexpr double kSmooth = 1e-6;
/// planes of a volume that are evaluated at once: bounds the memory
constexpr std::int64_t kSlabPlanes = 16;

/// The sums over voxels that determine a sample's loss and metrics. Sums of parts of a sample can be added.
struct VoxelSums {
  at::Tensor cross_entropy;             ///< float64 [B]
  at::Tensor both, probable, labelled;  ///< float64 [B, C - 1]: sums of p t, p and t
  /// as `both` and `probable`, with the class of the highest score instead of p
  at::Tensor both_highest, highest_count;

  void add(const VoxelSums& other) {
    cross_entropy.add_(other.cross_entropy);
    both.add_(other.both);
    probable.add_(other.probable);
    labelled.add_(other.labelled);
    both_highest.add_(other.both_highest);
    highest_count.add_(other.highest_count);
  }
  at::Tensor denominator() const { return probable.add(labelled).add_(kSmooth); }
};

at::Tensor dice_of(const at::Tensor& both, const at::Tensor& all) {
  return both.mul(2).add_(kSmooth).div_(all.add(kSmooth));
}

/// Returns the sums of log-probabilities [B, C, V] and targets uint8 [B, V]. `probabilities` are exp(log_p).
VoxelSums voxel_sums(const at::Tensor& log_p, const at::Tensor& probabilities, const at::Tensor& target) {
  const std::int64_t voxel[] = {1};
  const auto summed = [&](const at::Tensor& t) { return at::sum(t, voxel, false, at::kDouble); };
  // A voxel with a NaN has no highest class: argmax would return the NaN's class.
  const at::Tensor unknown = log_p.select(1, 0).ne(log_p.select(1, 0));
  const at::Tensor highest = at::argmax(log_p, 1).masked_fill_(unknown, -1);
  std::vector<at::Tensor> both, probable, labelled, both_highest, count;
  for (std::int64_t c = 1; c < log_p.size(1); ++c) {
    const at::Tensor is = target.eq(c), found = highest.eq(c), p = probabilities.select(1, c);
    both.push_back(summed(p.mul(is)));
    probable.push_back(summed(p));
    labelled.push_back(summed(is));
    both_highest.push_back(summed(found.logical_and(is)));
    count.push_back(summed(found));
  }
  const auto by_class = [](const std::vector<at::Tensor>& of) { return at::stack(of, 1); };
  return {
      .cross_entropy = summed(at::gather(log_p, 1, target.to(at::kLong).unsqueeze(1)).select(1, 0)).neg_(),
      .both = by_class(both),
      .probable = by_class(probable),
      .labelled = by_class(labelled),
      .both_highest = by_class(both_highest),
      .highest_count = by_class(count)};
}

/// Returns the sums of the metrics over the samples and the number of samples: float64 [2 + C - 1 + 1].
at::Tensor metric_sums(const VoxelSums& sums, std::int64_t voxels) {
  const std::int64_t over_classes[] = {1}, over_samples[] = {0};
  const at::Tensor soft = dice_of(sums.both, sums.probable.add(sums.labelled)),
                   hard = dice_of(sums.both_highest, sums.highest_count.add(sums.labelled));
  const at::Tensor loss =
      sums.cross_entropy.div(double(voxels)).add_(soft.mean(over_classes).neg_().add_(1)).mul_(0.5);
  const at::Tensor all = at::cat({loss.unsqueeze(1), hard.mean(over_classes).unsqueeze(1), hard,
                                  at::zeros_like(loss).add_(1).unsqueeze(1)},
                                 1);
  return at::sum(all, over_samples);
}

class DiceCrossEntropy final : public Head {
 public:
  explicit DiceCrossEntropy(std::int64_t classes) : classes_(classes) {
    MILLRACE_CHECK(classes > 1, classes << " classes");
  }
  std::string kind() const override { return "dice_cross_entropy"; }
  bool like(const Head& other) const override {
    return classes_ == static_cast<const DiceCrossEntropy&>(other).classes_;
  }
  std::vector<std::string> metrics() const override {
    std::vector<std::string> names{"loss", "dice"};
    for (std::int64_t c = 1; c < classes_; ++c) names.push_back("dice_" + std::to_string(c));
    return names;
  }
  void check(std::span<const TensorSpec> inputs) const override {
    bool fits = inputs.size() == 3 && inputs[0].shape.size() == 5 && inputs[0].shape[1] == classes_ &&
                at::isFloatingType(inputs[0].dtype) && inputs[1].dtype == at::kByte &&
                inputs[2].dtype == at::kLong;
    if (fits) {
      Shape one = inputs[0].shape;
      one[1] = 1;
      fits = inputs[1].shape == one && inputs[2].shape == Shape{one[0], kVolumeWindowNumbers};
    }
    if (!fits)
      throw ConfigError("dice_cross_entropy needs scores [B, " + std::to_string(classes_) +
                        ", D, H, W], uint8 targets [B, 1, D, H, W] and int64 windows [B, 8]");
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    check_labels(inputs[1]);
    const at::Tensor found = forward_on_device(inputs, saved);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += found.const_data_ptr<double>()[i];
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor log_p = log_probabilities(inputs[0]);
    at::Tensor p = at::exp(log_p), target = inputs[1].flatten(1);
    const VoxelSums sums = voxel_sums(log_p, p, target);
    at::Tensor metrics = metric_sums(sums, target.size(1));
    if (!saved) return metrics;
    saved->numbers = inputs[0].sizes().vec();
    saved->numbers.push_back(static_cast<std::int64_t>(inputs[0].scalar_type()));
    saved->tensors = {std::move(p), std::move(target), sums.both, sums.denominator()};
    return metrics;
  }

  /// With dice = (2 b + e) / d: d(1 - dice) / dp = (2 b + e) / d^2 - 2 t / d. Cross-entropy gives (p - t) /
  /// voxels for the scores directly.
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &p = saved.tensors[0], &target = saved.tensors[1];
    const double classes = double(classes_ - 1), samples = double(p.size(0)), voxels = double(p.size(2));
    const at::Tensor by_target = saved.tensors[3].reciprocal().mul_(-2 / classes).to(p.scalar_type()),
                     constant = saved.tensors[2]
                                    .mul(2)
                                    .add_(kSmooth)
                                    .div_(saved.tensors[3].square())
                                    .div_(classes)
                                    .to(p.scalar_type());
    at::Tensor of_p = at::zeros_like(p), grad = p.div(voxels);
    for (std::int64_t c = 0; c < classes_; ++c) {
      const at::Tensor is = target.eq(c).to(p.scalar_type());
      grad.select(1, c).sub_(is, 1 / voxels);
      if (c == 0) continue;
      of_p.select(1, c)
          .add_(is.mul_(by_target.select(1, c - 1).unsqueeze(1)))
          .add_(constant.select(1, c - 1).unsqueeze(1));
    }
    grad.add_(at::_softmax_backward_data(of_p, p, 1, p.scalar_type())).mul_(scale.share / (2 * samples));
    const auto dtype = static_cast<at::ScalarType>(saved.numbers.back());
    return {grad.view(at::IntArrayRef(saved.numbers.data(), saved.numbers.size() - 1)).to(dtype), {}, {}};
  }

  std::unique_ptr<Collector> collector() const override;

  /// Returns float32 [B, C, D H W], or float64 if the scores are.
  static at::Tensor log_probabilities(const at::Tensor& scores) {
    return at::_log_softmax(widened(scores).flatten(2), 1, /*half_to_float=*/false);
  }

  void check_labels(const at::Tensor& target) const {
    if (target.numel() == 0) return;
    const auto largest = target.max().item<std::int64_t>();
    if (largest >= classes_)
      throw DataError("label " + std::to_string(largest) + " of a voxel is outside the model's " +
                          std::to_string(classes_) + " classes",
                      "give --classes N as the data set has");
  }

 private:
  std::int64_t classes_;
};

/// Joins the windows of one volume after another.
class Windows final : public Collector {
 public:
  explicit Windows(const DiceCrossEntropy& head) : head_(head) {}

  void add(std::span<const at::Tensor> inputs, std::span<double> sums) override {
    for (std::int64_t n = 0; n < inputs[0].size(0); ++n) {
      const at::Tensor one[] = {inputs[0].narrow(0, n, 1), inputs[1].narrow(0, n, 1)};
      const VolumeWindow window = window_of(inputs[2].select(0, n).contiguous());
      if (window.windows == 0) {
        head_.forward(one, nullptr, sums);
        continue;
      }
      begin(window, one[0]);
      put(window, one[0].select(0, 0), one[1].select(0, 0).select(0, 0));
      if (++taken_ == window.windows) finish(sums);
    }
  }

 private:
  static VolumeWindow window_of(const at::Tensor& numbers) {
    const std::int64_t* n = numbers.const_data_ptr<std::int64_t>();
    return {n[0], n[1], {n[2], n[3], n[4]}, {n[5], n[6], n[7]}};
  }

  /// Checks the window, and starts a volume at its first window.
  void begin(const VolumeWindow& window, const at::Tensor& scores) {
    bool inside = window.number == 0 || (window.number == taken_ && volume_.sides == window.sides &&
                                         volume_.windows == window.windows);
    for (std::size_t d = 0; d < 3; ++d)
      inside = inside && window.begin[d] + scores.size(static_cast<std::int64_t>(d) + 2) <= window.sides[d];
    if (!inside)
      throw DataError("window " + std::to_string(window.number) + " of a volume comes after " +
                          std::to_string(taken_) + " others or lies outside of it",
                      "an evaluation needs the windows of a volume one after the other");
    if (window.number > 0) return;
    volume_ = window;
    taken_ = 0;
    const auto& [depth, height, width] = window.sides;
    scores_ = at::zeros({scores.size(1), depth, height, width}, at::kFloat);
    weights_ = at::zeros({depth, height, width}, at::kFloat);
    labels_ = at::zeros({depth, height, width}, at::kByte);
    if (!window_weights_.defined() || window_weights_.sizes() != scores.sizes().slice(2))
      window_weights_ = gaussian(scores.sizes().slice(2));
  }

  static at::Tensor gaussian(at::IntArrayRef sides) {
    at::Tensor exponent = at::zeros(sides, at::kDouble);
    for (std::int64_t d = 0; d < 3; ++d) {
      const double side = double(sides[d]), width = 6 * (side / 8) * (side / 8);
      Shape along{1, 1, 1};
      along[d] = sides[d];
      exponent.sub_(at::arange(sides[d], at::kDouble)
                        .sub_((side - 1) / 2)
                        .square_()
                        .sub_(0.25)
                        .div_(width)
                        .view(along));
    }
    return exponent.exp_().to(at::kFloat);
  }

  at::Tensor part(const at::Tensor& whole, const VolumeWindow& window) const {
    at::Tensor part = whole;
    for (std::int64_t d = 0; d < 3; ++d)
      part = part.narrow(whole.dim() - 3 + d, window.begin[d], window_weights_.size(d));
    return part;
  }

  void put(const VolumeWindow& window, const at::Tensor& scores, const at::Tensor& labels) {
    part(scores_, window).addcmul_(scores.to(at::kFloat), window_weights_);
    part(weights_, window).add_(window_weights_);
    part(labels_, window).copy_(labels);
  }

  void finish(std::span<double> sums) {
    VoxelSums all;
    std::int64_t voxels = 0;
    for (std::int64_t from = 0; from < labels_.size(0); from += kSlabPlanes) {
      const std::int64_t planes = std::min(kSlabPlanes, labels_.size(0) - from);
      at::Tensor log_p = DiceCrossEntropy::log_probabilities(
          scores_.narrow(1, from, planes).div(weights_.narrow(0, from, planes)).unsqueeze(0));
      at::Tensor labels = labels_.narrow(0, from, planes).reshape({1, -1});
      const at::Tensor real = labels.ne(kOutsideVolume).view({-1}).nonzero().view({-1});
      if (real.numel() < labels.numel()) {
        log_p = log_p.index_select(2, real);
        labels = labels.index_select(1, real);
      }
      head_.check_labels(labels);
      const VoxelSums some = voxel_sums(log_p, at::exp(log_p), labels);
      voxels += labels.numel();
      if (from == 0)
        all = some;
      else
        all.add(some);
    }
    const at::Tensor metrics = metric_sums(all, voxels);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += metrics.const_data_ptr<double>()[i];
    scores_ = weights_ = labels_ = at::Tensor();
    taken_ = 0;
  }

  const DiceCrossEntropy& head_;
  VolumeWindow volume_;          ///< the first window of the current volume
  std::int64_t taken_ = 0;       ///< windows of that volume so far
  at::Tensor scores_, weights_;  ///< [C, D, H, W] and [D, H, W]: sums over the windows
  at::Tensor labels_;            ///< [D, H, W]
  at::Tensor window_weights_;    ///< weights of one window
};

std::unique_ptr<Collector> DiceCrossEntropy::collector() const {
  return std::make_unique<Windows>(*this);
}

}  // namespace

HeadPtr dice_cross_entropy_head(std::int64_t classes) {
  return std::make_shared<DiceCrossEntropy>(classes);
}

}  // namespace millrace
