#include "runtime/layers/interaction_layers.h"

#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_backward.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logit.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/layers/shape_errors.h"
#include "runtime/layers/sums_on_device.h"
#include "runtime/metrics/roc_auc.h"

namespace millrace {
namespace {

class DotInteraction final : public Layer {
 public:
  explicit DotInteraction(std::int64_t padding) : padding_(padding) { MILLRACE_CHECK(padding >= 0); }
  std::string kind() const override { return "dot_interaction"; }
  CastPolicy cast_policy() const override { return CastPolicy::Lower; }
  bool like(const Layer& other) const override {
    return padding_ == static_cast<const DotInteraction&>(other).padding_;
  }
  bool folds() const override { return true; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    const Shape& x = inputs[0];
    if (x.size() != 2) throw_bad_shape(kind(), x, "[N, D]");
    for (const Shape& vector : inputs)
      if (vector != x) throw_bad_shape(kind(), vector, text_of(x) + " like the first");
    const auto vectors = static_cast<std::int64_t>(inputs.size());
    return {x[0], x[1] + vectors * (vectors - 1) / 2 + padding_};
  }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved* saved) const override {
    const at::Tensor vectors = at::stack(at::TensorList(inputs.data(), inputs.size()), 1);  // [N, F, D]
    const at::Tensor products = at::bmm(vectors, vectors.transpose(1, 2));                  // [N, F, F]
    if (saved) saved->tensors = {vectors};
    std::vector<at::Tensor> parts{inputs[0],
                                  products.flatten(1).index_select(1, places(products.size(1), products))};
    if (padding_ > 0) parts.push_back(at::zeros({products.size(0), padding_}, products.options()));
    return at::cat(parts, 1);
  }
  /// The gradient of a product of vectors i and j is the other vector's values.
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const at::Tensor& vectors = saved.tensors[0];
    const std::int64_t samples = vectors.size(0), count = vectors.size(1), features = vectors.size(2);
    const at::Tensor of_pairs = grad.narrow(1, features, count * (count - 1) / 2);
    at::Tensor of_products = at::zeros({samples, count * count}, grad.options());
    of_products.index_copy_(1, places(count, grad), of_pairs);
    of_products = of_products.view({samples, count, count});
    at::Tensor of_vectors = at::bmm(of_products, vectors);
    of_vectors.add_(at::bmm(vectors.transpose(1, 2), of_products).transpose(1, 2));
    std::vector<at::Tensor> grads(needs.size());
    for (std::size_t i = 0; i < needs.size(); ++i)
      if (needs[i]) grads[i] = of_vectors.select(1, static_cast<std::int64_t>(i)).contiguous();
    if (needs[0]) grads[0].add_(grad.narrow(1, 0, features));
    return grads;
  }

 private:
  /// Returns the indices of the pairs i > j in a row of products, int64 on the device of `like`.
  static at::Tensor places(std::int64_t vectors, const at::Tensor& like) {
    std::vector<std::int64_t> of_pairs;
    for (std::int64_t i = 1; i < vectors; ++i)
      for (std::int64_t j = 0; j < i; ++j) of_pairs.push_back(i * vectors + j);
    return at::tensor(of_pairs, at::kLong).to(like.device());
  }
  std::int64_t padding_;
};

class BinaryCrossEntropy final : public Head {
 public:
  explicit BinaryCrossEntropy(BinaryScores scores) : logits_(scores == BinaryScores::Logits) {}
  std::string kind() const override { return "binary_cross_entropy"; }
  bool like(const Head& other) const override {
    return logits_ == static_cast<const BinaryCrossEntropy&>(other).logits_;
  }
  std::vector<std::string> metrics() const override { return {"loss", "accuracy"}; }
  std::size_t num_counts() const override { return 2 * kRocBins; }
  void check(std::span<const TensorSpec> inputs) const override {
    if (inputs.size() == 2 && inputs[0].shape.size() == 2 && inputs[0].shape[1] == 1 &&
        at::isFloatingType(inputs[0].dtype) && inputs[1].shape == Shape{inputs[0].shape[0]} &&
        inputs[1].dtype == at::kLong)
      return;
    throw ConfigError("binary_cross_entropy needs scores [N, 1] and int64 labels [N]");
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const at::Tensor named = named_sums(inputs, saved);
    const double* const found = named.const_data_ptr<double>();
    sums[0] += found[0];
    sums[1] += found[1];
    sums.back() += found[2];
    if (saved) return;
    const at::Tensor counts = counts_of(inputs);
    for (std::size_t bin = 0; bin < 2 * kRocBins; ++bin)
      sums[2 + bin] += counts.const_data_ptr<double>()[bin];
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const at::Tensor named = named_sums(inputs, saved);
    const at::Tensor counts =
        saved ? at::zeros({2 * std::int64_t{kRocBins}}, named.options()) : counts_of(inputs);
    return at::cat({named.narrow(0, 0, 2), counts, named.narrow(0, 2, 1)});
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale, std::span<const bool>) const override {
    const at::Tensor &scores = saved.tensors[0], &target = saved.tensors[1];
    const double samples = double(scores.size(0));
    const at::Tensor grad = logits_ ? at::sigmoid(scores).sub_(target).mul_(scale.share / samples)
                                    : at::binary_cross_entropy_backward(
                                          at::tensor(scale.share, scores.options()), scores, target);
    return {grad.unsqueeze(1).to(static_cast<at::ScalarType>(saved.numbers[0])), {}};
  }

  NamedValues values(std::span<const double> sums) const override {
    const double weight = sums.back();
    NamedValues found{{"loss", weight != 0 ? sums[0] / weight : 0},
                      {"accuracy", weight != 0 ? sums[1] / weight : 0}};
    const double auc = roc_auc(sums.subspan(2, kRocBins), sums.subspan(2 + kRocBins, kRocBins));
    if (!std::isnan(auc)) found.emplace_back("auc", auc);
    return found;
  }

 private:
  static at::Tensor scores_of(std::span<const at::Tensor> inputs) { return widened(inputs[0]).select(1, 0); }

  /// Returns the sums of loss and accuracy, and the number of samples: float64 [3].
  at::Tensor named_sums(std::span<const at::Tensor> inputs, Saved* saved) const {
    const at::Tensor scores = scores_of(inputs), target = inputs[1].to(scores.scalar_type());
    const at::Tensor loss = logits_ ? at::binary_cross_entropy_with_logits(scores, target)
                                    : at::binary_cross_entropy(scores, target);
    const at::Tensor right = scores.gt(logits_ ? 0 : 0.5).eq(inputs[1].gt(0)).to(at::kDouble).mean();
    if (saved) {
      saved->tensors = {scores, target};
      saved->numbers = {static_cast<std::int64_t>(inputs[0].scalar_type())};
    }
    return sums_on_device({loss.to(at::kDouble), right}, double(scores.size(0)));
  }

  /// Returns the number of samples by label and score bin: float64 [2 kRocBins], label 0 first. A NaN score
  /// is counted in the last bin; the loss is NaN then.
  at::Tensor counts_of(std::span<const at::Tensor> inputs) const {
    const at::Tensor scores = scores_of(inputs).to(at::kDouble);
    const at::Tensor bins = (logits_ ? scores : at::logit(scores))
                                .sub(kLowestRocLogit)
                                .mul_(kRocBinsPerUnit)
                                .nan_to_num_(double(kRocBins))
                                .clamp_(0, double(kRocBins - 1))
                                .to(at::kLong)
                                .add_(inputs[1], std::int64_t{kRocBins});
    return at::bincount(bins, {}, 2 * std::int64_t{kRocBins}).to(at::kDouble);
  }
  bool logits_;
};

}  // namespace

LayerPtr dot_interaction(std::int64_t padding) {
  return std::make_shared<DotInteraction>(padding);
}
HeadPtr binary_cross_entropy_head(BinaryScores scores) {
  return std::make_shared<BinaryCrossEntropy>(scores);
}

}  // namespace millrace
