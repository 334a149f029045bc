// Softmax cross-entropy: the heads of classifiers.
#include <algorithm>
#include <array>
#include <cmath>
#include <typeinfo>
#include <utility>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/head.h"
#include "runtime/layers/shape_errors.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {
namespace {

void check_target(std::int64_t label, std::int64_t classes) {
  if (label >= 0 && label < classes) return;
  throw DataError(
      "target " + std::to_string(label) + " is outside the model's " + std::to_string(classes) + " classes",
      "labels count from 0 to classes - 1: a model of millrace takes --classes N, one of your own or an "
      "exported one has its classes already");
}

/// Counts the rows of scores [rows, classes] whose target has the highest score, and those whose target is
/// among the five highest. On equal scores the lower class ranks first. A row with a NaN is wrong: its
/// log-probabilities are all NaN.
template <class Score>
void count_top(const Score* score, const std::int64_t* label, std::int64_t rows, std::int64_t classes,
               double& top1, double& top5) {
  for (std::int64_t i = 0; i < rows; ++i, score += classes) {
    check_target(label[i], classes);
    std::int64_t better = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
      better += score[c] > score[label[i]] || (score[c] == score[label[i]] && c < label[i]);
    }
    if (std::isnan(score[label[i]])) continue;
    top1 += better < 1;
    top5 += better < 5;
  }
}

/// Does the same for log-probabilities [rows, classes] in float32 or float64, on the CPU.
void count_top(const at::Tensor& log_p, const at::Tensor& targets, double& top1, double& top5) {
  const at::Tensor target = targets.contiguous();
  const auto count = [&]<class Score>(const Score* score) {
    count_top(score, target.const_data_ptr<std::int64_t>(), log_p.size(0), log_p.size(1), top1, top5);
  };
  if (log_p.scalar_type() == at::kDouble)
    count(log_p.const_data_ptr<double>());
  else
    count(log_p.const_data_ptr<float>());
}

/// Returns, on the device, whether each row's target has the highest score, and whether it is among the five
/// highest, as count_top does: bool [rows, 2]. `own` [rows, 1] are the targets' scores.
at::Tensor in_top(const at::Tensor& log_p, const at::Tensor& target, const at::Tensor& own) {
  const at::Tensor classes = at::arange(log_p.size(1), target.options());
  // Classes with a higher score, and those with an equal score before the target.
  const at::Tensor better = log_p.gt(own)
                                .logical_or_(log_p.eq(own).logical_and_(classes.lt(target.unsqueeze(1))))
                                .sum(1, /*keepdim=*/true)
                                .add_(own.ne(own), 5);      // NaN: not among the five highest
  return better.lt(at::arange(1, 6, 4, target.options()));  // 1 and 5
}

/// Computes nll_loss_backward with reduction "mean" over `count` rows, times `share`: one number for each
/// target. It bypasses the dispatcher, which for a few rows takes ten times as long as the computation.
at::Tensor gradient_of_nll(const at::Tensor& log_p, const at::Tensor& target, double share, double count) {
  if (!log_p.device().is_cpu()) {
    return at::zeros(log_p.sizes(), log_p.options()).scatter_(1, target.unsqueeze(1), -(share / count));
  }
  at::Tensor grad = at::zeros(log_p.sizes(), log_p.options());
  const at::Tensor labels = target.contiguous();
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  const auto fill = [&]<class Score>(Score* row) {
    const Score each = -(static_cast<Score>(share) / static_cast<Score>(count));
    for (std::int64_t i = 0; i < grad.size(0); ++i, row += grad.size(1)) row[label[i]] = each;
  };
  if (log_p.scalar_type() == at::kDouble)
    fill(grad.mutable_data_ptr<double>());
  else
    fill(grad.mutable_data_ptr<float>());
  return grad;
}

/// Computes log-probabilities in at least float32, for any type of scores.
at::Tensor log_probabilities(const at::Tensor& scores) {
  return at::_log_softmax(scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat), 1,
                          /*half_to_float=*/false);
}

class CrossEntropy final : public Head {
 public:
  bool like(const Head&) const override { return true; }
  HeadPtr over_jobs(std::int64_t jobs) const override;
  std::string kind() const override { return "cross_entropy"; }
  std::vector<std::string> metrics() const override { return {"loss", "top1", "top5"}; }

  void check(std::span<const TensorSpec> inputs) const override {
    const bool fits = inputs.size() == 2 && inputs[0].shape.size() == 2 && inputs[1].shape.size() == 1 &&
                      inputs[0].shape[0] == inputs[1].shape[0] && at::isFloatingType(inputs[0].dtype) &&
                      inputs[1].dtype == at::kLong;
    if (fits) return;
    std::string found;
    for (const TensorSpec& input : inputs) found += (found.empty() ? "" : " and ") + text_of(input.shape);
    throw ConfigError("cross_entropy got " + found + ", expected scores [B, C] and int64 targets [B]");
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    at::Tensor log_p = log_probabilities(inputs[0]);
    count_top(log_p, inputs[1], sums[1], sums[2]);
    const auto samples = static_cast<double>(log_p.size(0));
    sums[0] += mean_loss(log_p, inputs[1]).item<double>() * samples;
    sums[3] += samples;
    if (saved) save(*saved, std::move(log_p), inputs);
  }

  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor log_p = log_probabilities(inputs[0]);
    const at::Tensor& target = inputs[1];
    const at::Tensor tops_of_rows = in_top(log_p, target, log_p.gather(1, target.unsqueeze(1)));
    at::Tensor sums = at::full({4}, double(log_p.size(0)), log_p.options().dtype(at::kDouble));
    sums[0].mul_(mean_loss(log_p, target));
    at::Tensor tops = sums.narrow(0, 1, 2);
    at::sum_out(tops, tops_of_rows, 0);
    if (saved) save(*saved, log_p, inputs);
    return sums;
  }

  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &log_p = saved.tensors[0], &target = saved.tensors[1];
    const at::Tensor grad = gradient_of_nll(log_p, target, scale.share, double(log_p.size(0)));
    return {at::_log_softmax_backward_data(grad, log_p, 1, static_cast<at::ScalarType>(saved.numbers[0])),
            {}};
  }

 private:
  static at::Tensor mean_loss(const at::Tensor& log_p, const at::Tensor& target) {
    return std::get<0>(at::nll_loss_forward(log_p, target, {}, at::Reduction::Mean, -100));
  }
  static void save(Saved& saved, at::Tensor log_p, std::span<const at::Tensor> inputs) {
    saved.numbers = {static_cast<std::int64_t>(log_p.scalar_type())};
    saved.tensors = {std::move(log_p), inputs[1]};
  }
};

/// The head of B jobs: scores [B, N, C], targets [B, N].
class CrossEntropyOfJobs final : public Head {
 public:
  explicit CrossEntropyOfJobs(std::int64_t jobs) : jobs_(jobs) {}
  std::string kind() const override { return "cross_entropy"; }
  std::vector<std::string> metrics() const override {
    return std::vector<std::string>(4 * jobs_ - 1, "loss");  // JobHead names them
  }
  void check(std::span<const TensorSpec>) const override {}

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const at::Tensor scores = inputs[0].reshape({-1, inputs[0].size(2)});  // [B N, C]
    const at::Tensor target = inputs[1].reshape({-1});
    at::Tensor log_p =
        at::_log_softmax(scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat), 1,
                         /*half_to_float=*/false);
    if (log_p.scalar_type() == at::kDouble)
      add_up<double>(log_p, target, sums);
    else
      add_up<float>(log_p, target, sums);
    if (!saved) return;
    saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type())};
    saved->tensors = {std::move(log_p), target};
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor scores = inputs[0].reshape({-1, inputs[0].size(2)});  // [B N, C]
    const at::Tensor target = inputs[1].reshape({-1});
    const at::Tensor log_p =
        at::_log_softmax(scores.scalar_type() == at::kDouble ? scores : scores.to(at::kFloat), 1,
                         /*half_to_float=*/false);
    const at::Tensor own = log_p.gather(1, target.unsqueeze(1));  // [B N, 1]
    at::Tensor sums = at::full({jobs_, 4}, double(log_p.size(0) / jobs_), log_p.options().dtype(at::kDouble));
    at::Tensor losses = sums.select(1, 0), tops = sums.narrow(1, 1, 2);
    at::sum_out(losses, own.view({jobs_, -1}).neg(), 1, /*keepdim=*/false, at::kDouble);
    at::sum_out(tops, in_top(log_p, target, own).view({jobs_, -1, 2}), 1);
    if (saved) {
      saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type())};
      saved->tensors = {log_p, target};
    }
    return sums.view({-1});
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &log_p = saved.tensors[0], &target = saved.tensors[1];
    const at::Tensor grad = gradient_of_nll(log_p, target, scale.share, double(log_p.size(0) / jobs_));
    return {at::_log_softmax_backward_data(grad, log_p, 1, static_cast<at::ScalarType>(saved.numbers[0]))
                .view({jobs_, -1, log_p.size(1)}),
            {}};
  }

 private:
  template <class Score>
  void add_up(const at::Tensor& log_p, const at::Tensor& target, std::span<double> sums) const {
    const std::int64_t rows = log_p.size(0) / jobs_, classes = log_p.size(1);
    const Score* score = log_p.const_data_ptr<Score>();
    const std::int64_t* label = target.const_data_ptr<std::int64_t>();
    for (std::int64_t job = 0; job < jobs_; ++job, score += rows * classes, label += rows) {
      const auto own = sums.subspan(static_cast<std::size_t>(4 * job), 4);
      count_top(score, label, rows, classes, own[1], own[2]);
      for (std::int64_t i = 0; i < rows; ++i) own[0] -= static_cast<double>(score[i * classes + label[i]]);
      own[3] += static_cast<double>(rows);
    }
  }
  std::int64_t jobs_;
};

/// Cross-entropy with targets that are shares of several classes: smoothed labels, and those of mixed
/// samples.
class SoftCrossEntropy final : public Head {
 public:
  SoftCrossEntropy(double smoothing, bool mixed) : smoothing_(smoothing), mixed_(mixed) {}
  double smoothing() const { return smoothing_; }
  bool mixed() const { return mixed_; }
  bool like(const Head& other) const override {
    const auto* same = dynamic_cast<const SoftCrossEntropy*>(&other);
    return same && same->smoothing_ == smoothing_ && same->mixed_ == mixed_;
  }
  std::string kind() const override { return "soft_cross_entropy"; }
  std::vector<std::string> metrics() const override { return {"loss", "top1", "top5"}; }

  void check(std::span<const TensorSpec> inputs) const override {
    bool fits = inputs.size() == (mixed_ ? 4 : 2) && inputs[0].shape.size() == 2 &&
                at::isFloatingType(inputs[0].dtype) && inputs[1].dtype == at::kLong;
    for (std::size_t i = 1; fits && i < inputs.size(); ++i)
      fits = inputs[i].shape.size() == 1 && inputs[i].shape[0] == inputs[0].shape[0];
    if (fits) return;
    std::string found;
    for (const TensorSpec& input : inputs) found += (found.empty() ? "" : " and ") + text_of(input.shape);
    throw ConfigError("soft_cross_entropy got " + found + ", expected scores [B, C] and " +
                      (mixed_ ? "targets, partners and shares [B]" : "int64 targets [B]"));
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    at::Tensor log_p = log_probabilities(inputs[0]);
    count_top(log_p, inputs[1], sums[1], sums[2]);
    at::Tensor wanted = wanted_of(log_p, inputs);
    sums[0] -= log_p.mul(wanted).sum(at::kDouble).item<double>();
    sums[3] += static_cast<double>(log_p.size(0));
    if (saved) save(*saved, std::move(log_p), std::move(wanted), inputs[0]);
  }

  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    at::Tensor log_p = log_probabilities(inputs[0]);
    const at::Tensor& target = inputs[1];
    const at::Tensor tops_of_rows = in_top(log_p, target, log_p.gather(1, target.unsqueeze(1)));
    at::Tensor wanted = wanted_of(log_p, inputs);
    at::Tensor sums = at::full({4}, double(log_p.size(0)), log_p.options().dtype(at::kDouble));
    sums[0].copy_(log_p.mul(wanted).sum(at::kDouble).neg());
    at::Tensor tops = sums.narrow(0, 1, 2);
    at::sum_out(tops, tops_of_rows, 0);
    if (saved) save(*saved, std::move(log_p), std::move(wanted), inputs[0]);
    return sums;
  }

  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &log_p = saved.tensors[0], &wanted = saved.tensors[1];
    const at::Tensor grad = wanted.mul(-(scale.share / double(log_p.size(0))));
    std::vector<at::Tensor> grads(mixed_ ? 4 : 2);
    grads[0] = at::_log_softmax_backward_data(grad, log_p, 1, static_cast<at::ScalarType>(saved.numbers[0]));
    return grads;
  }

 private:
  /// Returns the target share of each class: [B, C]. Rows sum to one.
  at::Tensor wanted_of(const at::Tensor& log_p, std::span<const at::Tensor> inputs) const {
    at::Tensor wanted =
        at::full(log_p.sizes(), smoothing_ / static_cast<double>(log_p.size(1)), log_p.options());
    // Added by index: a row has one element of each column, so the order of sums does not matter.
    const auto add = [&](const at::Tensor& classes, const at::Tensor& amount) {
      const at::Tensor column = classes.unsqueeze(1);
      wanted.scatter_(1, column, wanted.gather(1, column).add_(amount));
    };
    if (!mixed_) {
      add(inputs[1], at::full({log_p.size(0), 1}, 1 - smoothing_, log_p.options()));
      return wanted;
    }
    const at::Tensor share = inputs[3].unsqueeze(1).to(log_p.scalar_type());
    add(inputs[1], share.mul(1 - smoothing_));
    add(inputs[2], share.neg().add_(1).mul_(1 - smoothing_));
    return wanted;
  }
  static void save(Saved& saved, at::Tensor log_p, at::Tensor wanted, const at::Tensor& scores) {
    saved.numbers = {static_cast<std::int64_t>(scores.scalar_type())};
    saved.tensors = {std::move(log_p), std::move(wanted)};
  }
  double smoothing_;
  bool mixed_;
};

/// Cross-entropy in which a sample has its class's weight. Sums are in units of weight.
class WeightedCrossEntropy final : public Head, public WeighsLabels {
 public:
  WeightedCrossEntropy(double smoothing, std::vector<std::int64_t> units)
      : smoothing_(smoothing), units_(std::move(units)), weights_(at::tensor(units_).to(at::kDouble)) {}
  const std::vector<std::int64_t>& units() const { return units_; }
  bool like(const Head& other) const override {
    const auto* same = dynamic_cast<const WeightedCrossEntropy*>(&other);
    return same && same->smoothing_ == smoothing_ && same->units_ == units_;
  }
  std::string kind() const override { return "weighted_cross_entropy"; }
  std::vector<std::string> metrics() const override { return {"loss", "top1", "top5"}; }
  std::size_t num_counts() const override { return 1; }  // samples
  std::string weight() const override { return kClassUnits; }
  std::int64_t weight_of(std::span<const std::int64_t> labels, at::IntArrayRef) const override {
    const auto classes = static_cast<std::int64_t>(units_.size());
    return labels[0] >= 0 && labels[0] < classes ? units_[static_cast<std::size_t>(labels[0])] : -1;
  }
  HeadPtr counting_labels() const override { return nullptr; }

  void check(std::span<const TensorSpec> inputs) const override {
    cross_entropy_head()->check(inputs);
    const std::int64_t classes = inputs[0].shape[1];
    if (classes != static_cast<std::int64_t>(units_.size()))
      throw ConfigError("there are weights of " + std::to_string(units_.size()) + " classes and scores of " +
                        std::to_string(classes));
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    at::Tensor log_p = log_probabilities(inputs[0]);
    count_top(log_p, inputs[1], sums[1], sums[2]);
    const at::Tensor weights = weights_of(inputs[1]);
    sums[0] += loss_of(log_p, inputs[1], weights).item<double>();
    sums[3] += static_cast<double>(log_p.size(0));
    sums[4] += weights.sum().item<double>();
    if (saved) save(*saved, std::move(log_p), inputs);
  }

  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    at::Tensor log_p = log_probabilities(inputs[0]);
    const at::Tensor &target = inputs[1], weights = weights_of(target);
    const at::Tensor tops_of_rows = in_top(log_p, target, log_p.gather(1, target.unsqueeze(1)));
    at::Tensor sums = at::full({5}, double(log_p.size(0)), log_p.options().dtype(at::kDouble));
    sums[0].copy_(loss_of(log_p, target, weights));
    at::Tensor tops = sums.narrow(0, 1, 2);
    at::sum_out(tops, tops_of_rows, 0);
    sums[4].copy_(weights.sum());
    if (saved) save(*saved, std::move(log_p), inputs);
    return sums;
  }

  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &log_p = saved.tensors[0], &target = saved.tensors[1];
    const at::Tensor of_class = weights_.to(log_p.device()).mul(-scale.unit * smoothed_part()),
                     of_target = weights_of(target).mul(-scale.unit * (1 - smoothing_));
    at::Tensor grad = at::zeros(log_p.sizes(), log_p.options());
    if (smoothing_ > 0) grad.copy_(of_class.expand_as(grad));
    grad.scatter_add_(1, target.unsqueeze(1), of_target.to(grad.scalar_type()).unsqueeze(1));
    return {at::_log_softmax_backward_data(grad, log_p, 1, static_cast<at::ScalarType>(saved.numbers[0])),
            {}};
  }

  NamedValues values(std::span<const double> sums) const override {
    const auto ratio = [&](std::size_t sum, std::size_t of) {
      return sums[of] != 0 ? sums[sum] / sums[of] : 0.0;
    };
    return {{"loss", ratio(0, 4)}, {"top1", ratio(1, 3)}, {"top5", ratio(2, 3)}};
  }

 private:
  double smoothed_part() const { return smoothing_ / static_cast<double>(units_.size()); }
  at::Tensor weights_of(const at::Tensor& target) const {  // float64 [N]
    return weights_.to(target.device()).index_select(0, target);
  }
  /// Returns the sum over samples, in units: a float64 number.
  at::Tensor loss_of(const at::Tensor& log_p, const at::Tensor& target, const at::Tensor& weights) const {
    const at::Tensor own = log_p.gather(1, target.unsqueeze(1)).squeeze(1).to(at::kDouble);
    at::Tensor loss = own.mul(weights).sum().mul(-(1 - smoothing_));
    if (smoothing_ > 0)
      loss.sub_(log_p.to(at::kDouble).mul(weights_.to(log_p.device())).sum(), smoothed_part());
    return loss;
  }
  static void save(Saved& saved, at::Tensor log_p, std::span<const at::Tensor> inputs) {
    saved.numbers = {static_cast<std::int64_t>(inputs[0].scalar_type())};
    saved.tensors = {std::move(log_p), inputs[1]};
  }
  double smoothing_;
  std::vector<std::int64_t> units_;
  at::Tensor weights_;  // float64 [C]: the units
};

/// A head of scores [B, C] and targets [B] that uses only the rows whose target counts.
class IgnoringLabels final : public Head, public WeighsLabels {
 public:
  IgnoringLabels(HeadPtr head, std::int64_t ignored, bool counts)
      : head_(std::move(head)), ignored_(ignored), counts_(counts) {}
  const HeadPtr& head() const { return head_; }
  HeadPtr around(HeadPtr other) const {
    return other ? std::make_shared<IgnoringLabels>(std::move(other), ignored_, counts_) : nullptr;
  }
  bool like(const Head& other) const override {
    const auto& o = static_cast<const IgnoringLabels&>(other);
    return o.ignored_ == ignored_ && o.counts_ == counts_ && typeid(*o.head_) == typeid(*head_) &&
           head_->like(*o.head_);
  }
  /// Jobs with different counted targets are computed one after another.
  HeadPtr over_jobs(std::int64_t jobs) const override { return counts_ ? nullptr : head_->over_jobs(jobs); }
  std::string kind() const override { return head_->kind(); }
  std::vector<std::string> metrics() const override { return head_->metrics(); }
  std::size_t num_counts() const override { return head_->num_counts(); }
  std::string weight() const override { return counts_ ? kCountedLabels : head_->weight(); }
  NamedValues values(std::span<const double> sums) const override { return head_->values(sums); }
  void check(std::span<const TensorSpec> inputs) const override { head_->check(inputs); }
  std::int64_t weight_of(std::span<const std::int64_t> labels, at::IntArrayRef sizes) const override {
    if (labels[0] == ignored_) return 0;
    const auto* weighs = dynamic_cast<const WeighsLabels*>(head_.get());
    return weighs ? weighs->weight_of(labels, sizes) : 1;
  }
  HeadPtr counting_labels() const override {
    return std::make_shared<IgnoringLabels>(head_, ignored_, /*counts=*/true);
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const std::vector<at::Tensor> kept = kept_of(inputs, saved);
    if (!kept.empty()) head_->forward(kept, saved ? &saved->inner[0] : nullptr, sums);
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    if (weight() == "samples") {  // to find ignored targets would wait for the device
      if (saved) saved->inner.resize(1);
      return head_->forward_on_device(inputs, saved ? &saved->inner[0] : nullptr);
    }
    const std::vector<at::Tensor> kept = kept_of(inputs, saved);
    if (!kept.empty()) return head_->forward_on_device(kept, saved ? &saved->inner[0] : nullptr);
    return at::zeros({static_cast<std::int64_t>(num_sums())}, inputs[0].options().dtype(at::kDouble));
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale,
                                   std::span<const bool> needs) const override {
    if (saved.tensors.empty()) return head_->backward(saved.inner[0], scale, needs);
    const at::Tensor& rows = saved.tensors[0];
    const auto dtype = static_cast<at::ScalarType>(saved.numbers[2]);
    at::Tensor grad = at::zeros({saved.numbers[0], saved.numbers[1]}, rows.options().dtype(dtype));
    if (rows.numel() > 0)
      grad.index_copy_(0, rows, head_->backward(saved.inner[0], scale, needs)[0].to(dtype));
    return {grad, {}};
  }

 private:
  /// Returns the inputs' rows whose target counts; empty if there are none.
  std::vector<at::Tensor> kept_of(std::span<const at::Tensor> inputs, Saved* saved) const {
    if (saved) saved->inner.resize(1);
    const at::Tensor rows = inputs[1].ne(ignored_).nonzero().squeeze(1);
    if (rows.size(0) == inputs[1].size(0)) return {inputs.begin(), inputs.end()};
    if (saved) {
      saved->tensors = {rows};
      saved->numbers = {inputs[0].size(0), inputs[0].size(1),
                        static_cast<std::int64_t>(inputs[0].scalar_type())};
    }
    if (rows.size(0) == 0) return {};
    return {inputs[0].index_select(0, rows), inputs[1].index_select(0, rows)};
  }

  HeadPtr head_;
  std::int64_t ignored_;
  bool counts_;
};

HeadPtr CrossEntropy::over_jobs(std::int64_t jobs) const {
  return std::make_shared<CrossEntropyOfJobs>(jobs);
}

}  // namespace

HeadPtr cross_entropy_head() {
  return std::make_shared<CrossEntropy>();
}

HeadPtr smoothed_cross_entropy_head(double smoothing) {
  if (smoothing == 0) return cross_entropy_head();
  return std::make_shared<SoftCrossEntropy>(smoothing, false);
}

HeadPtr ignoring_labels(HeadPtr head, std::int64_t ignored) {
  return std::make_shared<IgnoringLabels>(std::move(head), ignored, /*counts=*/false);
}

HeadPtr with_mixed_targets(const Head& head) {
  if (const auto* ignoring = dynamic_cast<const IgnoringLabels*>(&head))
    return with_mixed_targets(*ignoring->head());
  if (const auto* soft = dynamic_cast<const SoftCrossEntropy*>(&head))
    return std::make_shared<SoftCrossEntropy>(soft->smoothing(), true);
  if (dynamic_cast<const CrossEntropy*>(&head)) return std::make_shared<SoftCrossEntropy>(0, true);
  return nullptr;
}

std::vector<std::int64_t> units_of_weights(std::span<const double> weights) {
  constexpr int kBits = 40;
  float greatest = 0;
  for (const double weight : weights) greatest = std::max(greatest, static_cast<float>(weight));
  MILLRACE_CHECK(greatest > 0);
  const int shift = kBits - 1 - std::ilogb(greatest);
  std::vector<std::int64_t> units;
  for (const double weight : weights)
    units.push_back(std::llround(std::ldexp(static_cast<double>(static_cast<float>(weight)), shift)));
  return units;
}

HeadPtr with_class_weights(const Head& head, std::vector<std::int64_t> units) {
  if (const auto* ignoring = dynamic_cast<const IgnoringLabels*>(&head))
    return ignoring->around(with_class_weights(*ignoring->head(), std::move(units)));
  if (const auto* soft = dynamic_cast<const SoftCrossEntropy*>(&head); soft && !soft->mixed())
    return std::make_shared<WeightedCrossEntropy>(soft->smoothing(), std::move(units));
  if (dynamic_cast<const CrossEntropy*>(&head))
    return std::make_shared<WeightedCrossEntropy>(0, std::move(units));
  return nullptr;
}

const std::vector<std::int64_t>* class_units(const Head& head) {
  if (const auto* ignoring = dynamic_cast<const IgnoringLabels*>(&head))
    return class_units(*ignoring->head());
  const auto* weighted = dynamic_cast<const WeightedCrossEntropy*>(&head);
  return weighted ? &weighted->units() : nullptr;
}

}  // namespace millrace
