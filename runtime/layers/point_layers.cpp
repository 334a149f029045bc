#include "runtime/layers/point_layers.h"

#include <algorithm>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "runtime/layers/shape_errors.h"
#include "runtime/layers/sums_on_device.h"

namespace millrace {
namespace {

class MaxOverPoints final : public Layer {
 public:
  std::string kind() const override { return "max_over_points"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 3) throw_bad_shape(kind(), inputs[0], "[N, P, F]");
    return {inputs[0][0], inputs[0][2]};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    auto [values, places] = at::max(inputs[0], 1);
    if (saved) {
      saved->tensors = {places};
      saved->numbers = inputs[0].sizes().vec();
    }
    return values;
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool>) const override {
    return {at::zeros(saved.numbers, grad.options())
                .scatter_(1, saved.tensors[0].unsqueeze(1), grad.unsqueeze(1))};
  }
};

class TransformMatrix final : public Layer {
 public:
  explicit TransformMatrix(std::int64_t size) : size_(size) {}
  std::string kind() const override { return "transform_matrix"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer& other) const override {
    return size_ == static_cast<const TransformMatrix&>(other).size_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 2 || inputs[0][1] != size_ * size_)
      throw_bad_shape(kind(), inputs[0], "[N, " + std::to_string(size_ * size_) + "]");
    return {inputs[0][0], size_, size_};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(inputs[0].reshape({-1, size_, size_}), at::eye(size_, inputs[0].options()));
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad.reshape({-1, size_ * size_})};
  }

 private:
  std::int64_t size_;
};

class TransformPoints final : public Layer {
 public:
  std::string kind() const override { return "transform_points"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() != 3) throw_bad_shape(kind(), x, "points [N, P, K]");
    if (inputs.size() != 2 || inputs[1] != Shape{x[0], x[2], x[2]})
      throw_bad_shape(kind(), inputs.back(), "matrices [N, K, K] beside points [N, P, K]");
    return x;
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    if (saved) saved->tensors = {inputs[0], inputs[1]};
    return at::bmm(inputs[0], inputs[1]);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const at::Tensor &points = saved.tensors[0], &matrices = saved.tensors[1];
    return {needs[0] ? at::bmm(grad, matrices.transpose(1, 2)) : at::Tensor(),
            needs[1] ? at::bmm(points.transpose(1, 2), grad) : at::Tensor()};
  }
};

class ConcatGlobal final : public Layer {
 public:
  std::string kind() const override { return "concat_global"; }
  CastPolicy cast_policy() const override { return CastPolicy::Promote; }
  bool like(const Layer&) const override { return true; }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].size() != 2) throw_bad_shape(kind(), inputs[0], "[N, G] of the cloud");
    if (inputs.size() != 2 || inputs[1].size() != 3 || inputs[1][0] != inputs[0][0])
      throw_bad_shape(kind(), inputs.back(), "points [N, P, F] beside [N, G]");
    return {inputs[1][0], inputs[1][1], inputs[0][1] + inputs[1][2]};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor &cloud = inputs[0], &points = inputs[1];
    if (saved) saved->numbers = {cloud.size(1), points.size(2)};
    return at::cat({cloud.unsqueeze(1).expand({-1, points.size(1), -1}), points}, 2);
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const std::int64_t of_cloud = saved.numbers[0], of_point = saved.numbers[1];
    return {needs[0] ? at::sum(grad.narrow(2, 0, of_cloud), 1) : at::Tensor(),
            needs[1] ? grad.narrow(2, of_cloud, of_point).contiguous() : at::Tensor()};
  }
};

class PointCrossEntropy final : public Head {
 public:
  explicit PointCrossEntropy(std::int64_t parts) : parts_(parts) {}
  bool like(const Head& other) const override {
    return parts_ == static_cast<const PointCrossEntropy&>(other).parts_;
  }
  std::string kind() const override { return "point_cross_entropy"; }
  std::vector<std::string> metrics() const override {
    std::vector<std::string> names{"loss", "accuracy", "mean_iou"};
    for (std::int64_t c = 0; c < parts_; ++c) names.push_back(name_of(c) + "_right");
    for (std::int64_t c = 0; c < parts_; ++c) names.push_back(name_of(c) + "_points");
    return names;
  }
  void check(std::span<const TensorSpec> inputs) const override {
    const bool fits = inputs.size() == 2 && inputs[0].shape.size() == 3 && inputs[0].shape[2] == parts_ &&
                      inputs[1].shape == Shape{inputs[0].shape[0], inputs[0].shape[1]} &&
                      at::isFloatingType(inputs[0].dtype) && inputs[1].dtype == at::kLong;
    if (!fits)
      throw ConfigError("point_cross_entropy needs scores [N, P, " + std::to_string(parts_) +
                        "] and int64 labels [N, P]");
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    at::Tensor log_p =
        at::_log_softmax(widened(inputs[0]).reshape({-1, parts_}), 1, /*half_to_float=*/false);  // [N P, K]
    const at::Tensor labels = inputs[1].reshape({-1});
    check_labels(labels);
    const auto clouds = static_cast<double>(inputs[0].size(0));
    sums[0] +=
        std::get<0>(at::nll_loss_forward(log_p, labels, {}, at::Reduction::Mean, -100)).item<double>() *
        clouds;
    // A point with a NaN has no part; argmax would return the first one.
    const at::Tensor unknown = log_p.select(1, 0).ne(log_p.select(1, 0));
    count(log_p.argmax(1).masked_fill_(unknown, -1), labels, inputs[0].size(0), sums);
    sums.back() += clouds;
    if (!saved) return;
    saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type()), inputs[0].size(0)};
    saved->tensors = {std::move(log_p), labels};
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const std::int64_t clouds = inputs[0].size(0);
    const at::Tensor log_p =
        at::_log_softmax(widened(inputs[0]).reshape({-1, parts_}), 1, /*half_to_float=*/false);  // [N P, K]
    const at::Tensor labels = inputs[1].reshape({-1});
    const at::Tensor unknown = log_p.select(1, 0).ne(log_p.select(1, 0));
    // One-hot rows by part, zeros for a point without a part: [N, P, K].
    const at::Tensor classes = at::arange(parts_, labels.options());
    const auto columns = [&](const at::Tensor& of_points) {
      return of_points.unsqueeze(1).eq(classes).view({clouds, -1, parts_});
    };
    const at::Tensor predicted = columns(log_p.argmax(1).masked_fill_(unknown, -1)),
                     labelled = columns(labels);
    const at::Tensor both = predicted.logical_and(labelled).sum(1, /*keepdim=*/false, at::kDouble);  // [N, K]
    const at::Tensor either = predicted.logical_or(labelled).sum(1, /*keepdim=*/false, at::kDouble);
    const at::Tensor mean_loss =
        std::get<0>(at::nll_loss_forward(log_p, labels, {}, at::Reduction::Mean, -100));
    const at::Tensor accuracy = both.sum().div_(double(std::max<std::int64_t>(1, labels.numel())));
    const at::Tensor iou = both.div(either).masked_fill_(either.eq(0), 1).mean();
    if (saved) {
      saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type()), clouds};
      saved->tensors = {log_p, labels};
    }
    const at::Tensor means = sums_on_device({mean_loss.to(at::kDouble), accuracy, iou}, double(clouds));
    return at::cat({means.narrow(0, 0, kMeans), both.sum(0),
                    labelled.sum(at::IntArrayRef{0, 1}, /*keepdim=*/false, at::kDouble),
                    means.narrow(0, kMeans, 1)});
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &log_p = saved.tensors[0], &labels = saved.tensors[1];
    const auto points = at::full({}, double(log_p.size(0)), log_p.options());
    const at::Tensor grad = at::nll_loss_backward(at::full({}, scale.share, log_p.options()), log_p, labels,
                                                  {}, at::Reduction::Mean, -100, points);
    return {at::_log_softmax_backward_data(grad, log_p, 1, static_cast<at::ScalarType>(saved.numbers[0]))
                .view({saved.numbers[1], -1, parts_}),
            {}};
  }
  NamedValues values(std::span<const double> sums) const override {
    NamedValues shown;
    for (std::size_t i = 0; i < kMeans; ++i)
      shown.emplace_back(metrics()[i], sums.back() != 0 ? sums[i] / sums.back() : 0.0);
    const auto right = sums.subspan(kMeans, parts()), points = sums.subspan(kMeans + parts(), parts());
    for (std::size_t c = 0; c < parts(); ++c)
      shown.emplace_back(name_of(static_cast<std::int64_t>(c)), points[c] != 0 ? right[c] / points[c] : 0.0);
    return shown;
  }

 private:
  static constexpr std::size_t kMeans = 3;  ///< loss, accuracy, mean_iou
  std::size_t parts() const { return static_cast<std::size_t>(parts_); }
  static std::string name_of(std::int64_t part) { return "part" + std::to_string(part); }

  void check_labels(const at::Tensor& labels) const {
    const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < labels.numel(); ++i) {
      if (label[i] >= 0 && label[i] < parts_) continue;
      throw DataError("label " + std::to_string(label[i]) + " of a point is outside the model's " +
                          std::to_string(parts_) + " parts",
                      "give --classes N as the category has parts");
    }
  }

  /// Adds each cloud's accuracy and IoU to `sums`, and each part's predicted and labelled points.
  void count(const at::Tensor& found, const at::Tensor& labels, std::int64_t clouds,
             std::span<double> sums) const {
    const std::int64_t *one = found.const_data_ptr<std::int64_t>(),
                       *other = labels.const_data_ptr<std::int64_t>();
    const std::int64_t points = labels.numel() / std::max<std::int64_t>(clouds, 1);
    std::vector<std::int64_t> predicted(parts()), labelled(parts()), both(parts());
    for (std::int64_t n = 0; n < clouds; ++n, one += points, other += points) {
      for (auto* counts : {&predicted, &labelled, &both}) counts->assign(parts(), 0);
      std::int64_t right = 0;
      for (std::int64_t i = 0; i < points; ++i) {
        if (one[i] >= 0) ++predicted[one[i]];
        ++labelled[other[i]];
        if (one[i] != other[i]) continue;
        ++both[one[i]];
        ++right;
      }
      double iou = 0;
      for (std::size_t c = 0; c < parts(); ++c) {
        const std::int64_t either = predicted[c] + labelled[c] - both[c];
        iou += either > 0 ? double(both[c]) / double(either) : 1.0;
        sums[kMeans + c] += double(both[c]);
        sums[kMeans + parts() + c] += double(labelled[c]);
      }
      sums[1] += double(right) / double(points);
      sums[2] += iou / double(parts_);
    }
  }

  std::int64_t parts_;
};

class Orthogonality final : public Head {
 public:
  bool like(const Head&) const override { return true; }
  std::string kind() const override { return "orthogonality"; }
  std::vector<std::string> metrics() const override { return {"loss"}; }
  void check(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() == 1 && inputs[0].shape.size() == 3 && inputs[0].shape[1] == inputs[0].shape[2] &&
        at::isFloatingType(inputs[0].dtype))
      return;
    throw ConfigError("orthogonality needs matrices [N, K, K]");
  }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const at::Tensor t = widened(inputs[0]);
    at::Tensor off = at::bmm(t, t.transpose(1, 2)).sub_(at::eye(t.size(1), t.options()));  // [N, K, K]
    const std::int64_t matrix[] = {1, 2};
    at::Tensor norm = at::linalg_vector_norm(off, 2, matrix, /*keepdim=*/true);  // [N, 1, 1]
    sums[0] += at::sum(norm).item<double>();
    sums[1] += static_cast<double>(t.size(0));
    if (!saved) return;
    saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type())};
    saved->tensors = {t, std::move(off), std::move(norm)};
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor t = widened(inputs[0]);
    const at::Tensor off = at::bmm(t, t.transpose(1, 2)).sub_(at::eye(t.size(1), t.options()));
    const std::int64_t matrix[] = {1, 2};
    const at::Tensor norm = at::linalg_vector_norm(off, 2, matrix, /*keepdim=*/true);
    if (saved) {
      saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type())};
      saved->tensors = {t, off, norm};
    }
    return sums_on_device({at::mean(norm)}, double(t.size(0)));
  }
  /// Computes d ||T T' - I|| / dT = 2 (T T' - I) T / ||T T' - I||, which is defined as 0 where T is
  /// orthogonal.
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &t = saved.tensors[0], &off = saved.tensors[1], &norm = saved.tensors[2];
    const at::Tensor direction = off.div(norm).masked_fill_(norm.eq(0), 0);
    return {at::bmm(direction, t)
                .mul_(2 * scale.share / double(t.size(0)))
                .to(static_cast<at::ScalarType>(saved.numbers[0]))};
  }
};

}  // namespace

LayerPtr max_over_points() {
  return std::make_shared<MaxOverPoints>();
}
LayerPtr transform_matrix(std::int64_t size) {
  return std::make_shared<TransformMatrix>(size);
}
LayerPtr transform_points() {
  return std::make_shared<TransformPoints>();
}
LayerPtr concat_global() {
  return std::make_shared<ConcatGlobal>();
}
HeadPtr point_cross_entropy_head(std::int64_t parts) {
  return std::make_shared<PointCrossEntropy>(parts);
}
HeadPtr orthogonality_head() {
  return std::make_shared<Orthogonality>();
}

}  // namespace millrace
