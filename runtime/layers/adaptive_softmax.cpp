#include "runtime/layers/adaptive_softmax.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include "runtime/base/error.h"
#include "runtime/layers/forward_layer.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

class AdaptiveLogSoftmax final : public ForwardLayer {
 public:
  explicit AdaptiveLogSoftmax(const AdaptiveSoftmaxOptions& options) : o_(options), ends_(options.cutoffs) {
    ends_.push_back(o_.classes);
  }
  std::string kind() const override { return "adaptive_log_softmax"; }
  bool draws() const override { return false; }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> specs{weight("head.weight", ends_[0] + std::ssize(o_.cutoffs), o_.in)};
    for (std::size_t i = 0; i < o_.cutoffs.size(); ++i) {
      const std::string tail = "tail." + std::to_string(i);
      const std::int64_t features = cluster_features(o_, i);
      specs.push_back(weight(tail + ".0.weight", features, o_.in));
      specs.push_back(weight(tail + ".1.weight", ends_[i + 1] - ends_[i], features));
    }
    return specs;
  }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (inputs[0].empty() || inputs[0].back() != o_.in)
      throw_bad_shape(kind(), inputs[0], "[..., " + std::to_string(o_.in) + "]");
    if (inputs.size() != 2 || inputs[1] != Shape(inputs[0].begin(), inputs[0].end() - 1))
      throw_bad_shape(kind(), inputs.back(), "labels [...] beside [..., F]");
    return inputs[1];
  }

  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor> p, std::span<at::Tensor>,
                     const CallContext&) const override {
    const at::Tensor x = inputs[0].reshape({-1, o_.in});  // [N, in]
    const at::Tensor labels = inputs[1].reshape({-1});    // [N]
    const at::Tensor counted = labels.ne(o_.ignored);     // [N]
    check_range(labels, counted);
    // index in the head's output: the label, or that of its cluster
    at::Tensor place = at::where(counted, labels, 0);
    std::vector<at::Tensor> members;  // by cluster: the rows whose labels are in it
    for (std::size_t i = 0; i < o_.cutoffs.size(); ++i) {
      const at::Tensor here = labels.ge(ends_[i]).logical_and(labels.lt(ends_[i + 1]));
      place = at::where(here, ends_[0] + static_cast<std::int64_t>(i), place);
      members.push_back(here.nonzero().squeeze(1));
    }
    at::Tensor result = at::log_softmax(at::linear(x, p[0]), 1).gather(1, place.unsqueeze(1)).squeeze(1);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const at::Tensor& rows = members[i];
      if (rows.numel() == 0) continue;
      const at::Tensor scores = at::linear(at::linear(x.index_select(0, rows), p[1 + 2 * i]), p[2 + 2 * i]);
      const at::Tensor within = labels.index_select(0, rows).sub(ends_[i]).unsqueeze(1);
      result = result.index_add(0, rows, at::log_softmax(scores, 1).gather(1, within).squeeze(1));
    }
    return at::where(counted, result, 0).view(inputs[1].sizes());
  }

 private:
  /// Returns the spec of a weight with the initial values of torch's Linear without bias.
  static ParameterSpec weight(std::string name, std::int64_t out, std::int64_t in) {
    return {
        .name = std::move(name), .shape = {out, in}, .init = Init::Uniform, .a = 1 / std::sqrt(double(in))};
  }
  void check_range(const at::Tensor& labels, const at::Tensor& counted) const {
    const at::Tensor bad = labels.lt(0).logical_or(labels.ge(o_.classes)).logical_and(counted);
    if (!bad.any().item<bool>()) return;
    throw DataError("a label is " + std::to_string(labels.masked_select(bad)[0].item<std::int64_t>()) +
                    ", the model has " + std::to_string(o_.classes) + " classes");
  }

  AdaptiveSoftmaxOptions o_;
  std::vector<std::int64_t> ends_;  ///< end of the frequent classes, then of each cluster
};

class LabelLikelihood final : public Head {
 public:
  explicit LabelLikelihood(const TokenLossOptions& options) : o_(options) {}
  std::string kind() const override { return "label_likelihood"; }
  bool like(const Head& other) const override {
    return o_.ignored == static_cast<const LabelLikelihood&>(other).o_.ignored;
  }
  std::vector<std::string> metrics() const override { return {"loss", "nll"}; }
  std::string weight() const override { return o_.weight; }
  void check(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() != 2 || inputs[0].shape != inputs[1].shape || !at::isFloatingType(inputs[0].dtype) ||
        inputs[1].dtype != at::kLong)
      throw ConfigError("label_likelihood needs logarithms [...] and int64 labels [...]");
  }
  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const at::Tensor all = forward_on_device(inputs, saved);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += all.const_data_ptr<double>()[i];
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor counted = inputs[1].ne(o_.ignored);
    const at::Tensor nll = inputs[0].to(at::kDouble).mul(counted).sum().neg();
    if (saved) saved->tensors = {counted.to(inputs[0].scalar_type())};
    return at::stack({nll, nll, counted.sum().to(at::kDouble)});
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    return {saved.tensors[0].mul(-scale.unit), {}};
  }
  NamedValues values(std::span<const double> sums) const override {
    NamedValues result = Head::values(sums);
    result.emplace_back("perplexity", std::exp(result[1].second));
    return result;
  }

 private:
  TokenLossOptions o_;
};

}  // namespace

std::int64_t cluster_features(const AdaptiveSoftmaxOptions& options, std::size_t cluster) {
  return static_cast<std::int64_t>(
      std::floor(double(options.in) / std::pow(options.divisor, double(cluster + 1))));
}
LayerPtr adaptive_log_softmax(const AdaptiveSoftmaxOptions& options) {
  return std::make_shared<AdaptiveLogSoftmax>(options);
}
HeadPtr label_likelihood_head(const TokenLossOptions& options) {
  return std::make_shared<LabelLikelihood>(options);
}

}  // namespace millrace
