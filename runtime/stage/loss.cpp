#include "runtime/stage/loss.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/stack.h>

#include <string>

#include "runtime/base/error.h"

namespace millrace {
namespace {

void check_target(std::int64_t label, std::int64_t classes) {
  if (label >= 0 && label < classes) return;
  throw DataError(
      "target " + std::to_string(label) + " is outside the model's " + std::to_string(classes) + " classes",
      "give --classes N as the data set has");
}

/// Rank of the target among the classes: how many score higher (ties count as lower index first).
void count_top(const at::Tensor& scores, const at::Tensor& target, LossResult& result) {
  const at::Tensor rows = scores.cpu().contiguous(), labels = target.cpu().contiguous();
  const float* score = rows.const_data_ptr<float>();
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  const std::int64_t classes = rows.size(1);
  for (std::int64_t i = 0; i < rows.size(0); ++i, score += classes) {
    check_target(label[i], classes);
    std::int64_t better = 0;
    for (std::int64_t c = 0; c < classes; ++c) {
      better += score[c] > score[label[i]] || (score[c] == score[label[i]] && c < label[i]);
    }
    result.top1 += better < 1;
    result.top5 += better < 5;
  }
}

}  // namespace

LossResult cross_entropy(const at::Tensor& logits, const at::Tensor& target, SavedLoss* saved) {
  LossResult result{.samples = logits.size(0)};
  at::Tensor log_probabilities = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  count_top(log_probabilities, target, result);
  auto [loss, weight] = at::nll_loss_forward(log_probabilities, target, {}, at::Reduction::Mean, -100);
  result.loss = loss.item<float>();
  if (saved) *saved = {std::move(log_probabilities), target};
  return result;
}

at::Tensor cross_entropy_sums(const at::Tensor& logits, const at::Tensor& target, SavedLoss* saved) {
  const at::Tensor log_p = at::_log_softmax(logits, 1, /*half_to_float=*/false);  // [B, C]
  const at::Tensor loss = std::get<0>(at::nll_loss_forward(log_p, target, {}, at::Reduction::Mean, -100));
  // As count_top: classes of a higher score, and of an equal one before the target.
  const at::Tensor column = target.unsqueeze(1);   // [B, 1]
  const at::Tensor own = log_p.gather(1, column);  // [B, 1]
  const at::Tensor classes = at::arange(log_p.size(1), target.options());
  const at::Tensor better = log_p.gt(own).logical_or_(log_p.eq(own).logical_and_(classes.lt(column))).sum(1);
  const at::Tensor samples = at::full({}, double(log_p.size(0)), log_p.options().dtype(at::kDouble));
  const at::Tensor mean = loss.to(at::kDouble);
  const at::Tensor sums = at::stack({mean, mean.mul(samples), samples, better.lt(1).sum().to(at::kDouble),
                                     better.lt(5).sum().to(at::kDouble)});
  if (saved) *saved = {log_p, target};
  return sums;
}

void check_targets(const at::Tensor& target, std::int64_t num_classes) {
  const at::Tensor labels = target.contiguous();
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i) check_target(label[i], num_classes);
}

at::Tensor cross_entropy_backward(const SavedLoss& saved, double scale) {
  const at::Tensor& log_p = saved.log_probabilities;
  const auto count = at::full({}, double(log_p.size(0)), log_p.options());
  const at::Tensor grad = at::nll_loss_backward(at::full({}, scale, log_p.options()), log_p, saved.target, {},
                                                at::Reduction::Mean, -100, count);
  return at::_log_softmax_backward_data(grad, log_p, 1, log_p.scalar_type());
}

}  // namespace millrace
