// Cross-entropy per token, with padding left out and label smoothing: the head of language models.
#include <algorithm>
#include <cmath>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/layers/head.h"

namespace millrace {
namespace {

class TokenCrossEntropy final : public Head {
 public:
  /// `jobs` 0: of one job; else inputs have a leading dimension of as many, and sums are theirs one after the
  /// other.
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
    const at::Tensor &log_p = saved.tensors[0], &labels = saved.tensors[1], &counted = saved.tensors[2];
    const auto classes = static_cast<double>(log_p.size(1));
    // d loss / d log p: -(1 - eps) at the label, -eps / V everywhere; zero for rows that are not counted.
    at::Tensor grad = at::zeros(log_p.sizes(), log_p.options());
    if (o_.smoothing > 0) grad.fill_(-o_.smoothing * scale.unit / classes);
    grad.scatter_add_(1, labels.unsqueeze(1),
                      at::zeros({log_p.size(0), 1}, log_p.options()).fill_(-(1 - o_.smoothing) * scale.unit));
    grad.mul_(counted.to(log_p.scalar_type()).unsqueeze(1));
    Shape shape(saved.numbers.begin() + 1, saved.numbers.end());
    return {at::_log_softmax_backward_data(grad, log_p, 1, static_cast<at::ScalarType>(saved.numbers[0]))
                .reshape(shape),
            {}};
  }

  NamedValues values(std::span<const double> sums) const override {
    NamedValues result = Head::values(sums);
    result.insert(result.begin() + 2, {"perplexity", std::exp(result[1].second)});
    return result;
  }

 private:
  /// Of a term for each label [N]: a number, or one for each job [B].
  at::Tensor sum(const at::Tensor& terms) const {
    return jobs_ > 0 ? terms.view({jobs_, -1}).sum(1) : terms.sum();
  }

  /// float64 [4]: smoothed loss, negative log-likelihood, right ones, counted ones.
  at::Tensor sums_of(std::span<const at::Tensor> inputs, Saved* saved) const {
    const at::Tensor& scores = inputs[0];
    const at::Tensor flat = scores.reshape({-1, scores.size(-1)});
    at::Tensor log_p =
        at::_log_softmax(flat.scalar_type() == at::kDouble ? flat : flat.to(at::kFloat), 1, false);  // [N, V]
    const at::Tensor given = inputs[1].reshape({-1});                                                // [N]
    at::Tensor counted = given.ne(o_.ignored);
    at::Tensor labels = given.mul(counted);  // class 0 where ignored: read, then not counted
    const at::Tensor weight = counted.to(at::kDouble);
    const at::Tensor nll =
        sum(log_p.gather(1, labels.unsqueeze(1)).squeeze(1).to(at::kDouble).mul(weight)).neg();
    at::Tensor loss = nll;
    if (o_.smoothing > 0) {
      const at::Tensor uniform = sum(log_p.mean(1).to(at::kDouble).mul(weight)).neg();
      loss = nll.mul(1 - o_.smoothing).add(uniform, o_.smoothing);
    }
    const at::Tensor right = sum(log_p.argmax(1).eq(labels).to(at::kDouble).mul(weight));
    const at::Tensor sums = at::stack({loss, nll, right, sum(weight)}, jobs_ > 0 ? 1 : 0).view({-1});
    if (saved) {
      saved->numbers = {static_cast<std::int64_t>(scores.scalar_type())};
      saved->numbers.insert(saved->numbers.end(), scores.sizes().begin(), scores.sizes().end());
      saved->tensors = {std::move(log_p), std::move(labels), std::move(counted)};
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
