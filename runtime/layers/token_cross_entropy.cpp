// Cross-entropy per token, with padding left out and label smoothing: the head of language models.
#include <algorithm>
#include <cmath>

#include <ATen/ops/amax.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/head.h"

namespace millrace {
namespace {

/// Returns whether argmax of `scores` [n] is `at`: of equal scores the first.
template <class Score>
bool is_greatest(const Score* scores, std::int64_t n, std::int64_t at) {
  constexpr std::int64_t kBlock = 256;  // one block decides most rows; the inner loop is vectorized
  const Score own = scores[at];
  for (std::int64_t from = 0; from < n; from += kBlock) {
    const std::int64_t end = std::min(n, from + kBlock), before = std::clamp(at, from, end);
    int better = 0;
    for (std::int64_t j = from; j < before; ++j) better |= !(scores[j] < own);
    for (std::int64_t j = before; j < end; ++j) better |= !(scores[j] <= own);
    if (better) return false;
  }
  return true;
}

template <class Score>
void find_right(const at::Tensor& scores, const at::Tensor& labels, double* right) {
  const Score* row = scores.const_data_ptr<Score>();
  const std::int64_t* label = labels.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < scores.size(0); ++i, row += scores.size(1))
    right[i] = is_greatest(row, scores.size(1), label[i]);
}

/// Returns float64 [N]: 1 where the label's score is the row's maximum (the first of equal scores).
at::Tensor right_ones(const at::Tensor& scores, const at::Tensor& labels) {
  if (!scores.is_cpu()) {
    const at::Tensor own = scores.gather(1, labels.unsqueeze(1)).squeeze(1);
    // argmax finds a NaN, whose label does not count as correct.
    return scores.argmax(1).eq(labels).logical_and_(own.eq(own)).to(at::kDouble);
  }
  at::Tensor right = at::empty({scores.size(0)}, at::kDouble);
  auto* to = right.mutable_data_ptr<double>();
  if (scores.scalar_type() == at::kDouble)
    find_right<double>(scores, labels, to);
  else
    find_right<float>(scores, labels, to);
  return right;
}

/// Returns the number of rows per block. On a CPU, a block stays in a core's cache over all passes.
std::int64_t rows_of_block(const at::Tensor& scores) {
  constexpr std::int64_t kElements = 1 << 16;
  return scores.is_cpu() ? std::max<std::int64_t>(1, kElements / scores.size(1)) : scores.size(0);
}

template <class Work>
void for_blocks(const at::Tensor& scores, Work&& work) {
  const std::int64_t rows = rows_of_block(scores);
  for (std::int64_t first = 0; first < scores.size(0); first += rows)
    work(first, std::min(rows, scores.size(0) - first));
}

/// Sums of each row of scores s, with log p_j = s_j - greatest - log_sum.
struct RowSums {
  at::Tensor greatest, log_sum;  ///< [N, 1]
  at::Tensor mean;               ///< [N, 1]: mean of s - greatest; undefined unless requested
};

RowSums sums_of_rows(const at::Tensor& scores, bool with_mean) {
  RowSums sums{.greatest = at::empty({scores.size(0), 1}, scores.options())};
  sums.log_sum = at::empty_like(sums.greatest);
  if (with_mean) sums.mean = at::empty_like(sums.greatest);
  at::Tensor exponents = at::empty({rows_of_block(scores), scores.size(1)}, scores.options());
  for_blocks(scores, [&](std::int64_t first, std::int64_t rows) {
    const at::Tensor own = scores.narrow(0, first, rows);
    at::Tensor greatest = sums.greatest.narrow(0, first, rows), part = exponents.narrow(0, 0, rows),
               log_sum = sums.log_sum.narrow(0, first, rows);
    at::amax_out(greatest, own, 1, true);
    at::sub_out(part, own, greatest);
    if (with_mean) sums.mean.narrow(0, first, rows).copy_(part.mean(1, true));
    log_sum.copy_(part.exp_().sum(1, true).log_());
  });
  return sums;
}

class TokenCrossEntropy final : public Head {
 public:
  /// With `jobs` 0 it is the head of one job. Otherwise inputs have a leading dimension of `jobs`, and sums
  /// are job by job.
  explicit TokenCrossEntropy(const TokenLossOptions& options, std::int64_t jobs = 0)
      : o_(options), jobs_(jobs) {}
  bool like(const Head& other) const override {
    const TokenLossOptions& o = static_cast<const TokenCrossEntropy&>(other).o_;
    return o_.ignored == o.ignored && o_.smoothing == o.smoothing;
  }
  HeadPtr over_jobs(std::int64_t jobs) const override {
    return std::make_shared<TokenCrossEntropy>(o_, jobs);
  }
  std::string kind() const override { return "token_cross_entropy"; }
  std::vector<std::string> metrics() const override { return {"loss", "nll", "accuracy"}; }
  std::string weight() const override { return o_.weight; }

  void check(std::span<const TensorSpec> inputs) const override {
    const bool fits = inputs.size() == 2 && inputs[0].shape.size() == inputs[1].shape.size() + 1 &&
                      std::equal(inputs[1].shape.begin(), inputs[1].shape.end(), inputs[0].shape.begin()) &&
                      at::isFloatingType(inputs[0].dtype) && inputs[1].dtype == at::kLong;
    if (!fits) throw ConfigError("token_cross_entropy needs scores [..., V] and int64 labels [...]");
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const at::Tensor all = sums_of(inputs, saved);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += all.const_data_ptr<double>()[i];
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    return sums_of(inputs, saved);
  }

  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &scores = saved.tensors[0], &labels = saved.tensors[1], &counted = saved.tensors[2],
                     &greatest = saved.tensors[3], &log_sum = saved.tensors[4];
    // d loss / d s_j = unit (p_j - (1 - eps) [j is the label] - eps / V); zero for rows that are not counted.
    const at::Tensor unit = counted.to(scores.scalar_type()).mul_(scale.unit).unsqueeze(1);  // [N, 1]
    const at::Tensor of_label = unit.mul(-(1 - o_.smoothing)), column = labels.unsqueeze(1),
                     factor = log_sum.neg().exp_().mul_(unit);
    at::Tensor grad = at::empty_like(scores);
    for_blocks(scores, [&](std::int64_t first, std::int64_t rows) {
      at::Tensor part = grad.narrow(0, first, rows);
      at::sub_out(part, scores.narrow(0, first, rows), greatest.narrow(0, first, rows));
      part.exp_().mul_(factor.narrow(0, first, rows));
      if (o_.smoothing > 0)
        part.sub_(unit.narrow(0, first, rows), o_.smoothing / static_cast<double>(scores.size(1)));
      part.scatter_add_(1, column.narrow(0, first, rows), of_label.narrow(0, first, rows));
    });
    Shape shape(saved.numbers.begin() + 1, saved.numbers.end());
    return {grad.to(static_cast<at::ScalarType>(saved.numbers[0])).reshape(shape), {}};
  }

  NamedValues values(std::span<const double> sums) const override {
    NamedValues result = Head::values(sums);
    result.insert(result.begin() + 2, {"perplexity", std::exp(result[1].second)});
    return result;
  }

 private:
  /// Sums a term per label [N]: returns one number, or one per job [B].
  at::Tensor sum(const at::Tensor& terms) const {
    return jobs_ > 0 ? terms.view({jobs_, -1}).sum(1) : terms.sum();
  }

  /// Returns float64 [4], for B jobs [4 B] job by job: smoothed loss, negative log-likelihood, correctly
  /// predicted labels, counted labels.
  at::Tensor sums_of(std::span<const at::Tensor> inputs, Saved* saved) const {
    const at::Tensor& scores = inputs[0];
    const at::Tensor flat = scores.reshape({-1, scores.size(-1)})
                                .to(scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)
                                .contiguous();         // [N, V]
    const at::Tensor given = inputs[1].reshape({-1});  // [N]
    at::Tensor counted = given.ne(o_.ignored);
    at::Tensor labels = given.mul(counted);  // class 0 where the label is ignored: it is read but not counted
    const at::Tensor weight = counted.to(at::kDouble), column = labels.unsqueeze(1);
    RowSums rows = sums_of_rows(flat, o_.smoothing > 0);
    const auto negative = [&](const at::Tensor& log_p) {
      return sum(log_p.squeeze(1).to(at::kDouble).mul(weight)).neg();
    };
    const at::Tensor nll = negative(flat.gather(1, column).sub_(rows.greatest).sub_(rows.log_sum));
    at::Tensor loss = nll;
    if (o_.smoothing > 0)
      loss = nll.mul(1 - o_.smoothing).add(negative(rows.mean.sub(rows.log_sum)), o_.smoothing);
    const at::Tensor right = sum(right_ones(flat, labels).mul_(weight));
    const at::Tensor sums = at::stack({loss, nll, right, sum(weight)}, jobs_ > 0 ? 1 : 0).view({-1});
    if (saved) {
      saved->numbers = {static_cast<std::int64_t>(scores.scalar_type())};
      saved->numbers.insert(saved->numbers.end(), scores.sizes().begin(), scores.sizes().end());
      saved->tensors = {flat, std::move(labels), std::move(counted), std::move(rows.greatest),
                        std::move(rows.log_sum)};
    }
    return sums;
  }

  TokenLossOptions o_;
  std::int64_t jobs_;
};

}  // namespace

HeadPtr token_cross_entropy_head(const TokenLossOptions& options) {
  return std::make_shared<TokenCrossEntropy>(options);
}

}  // namespace millrace
