// A head ends a model. It turns tensors and fields of the batch into named sums, with the loss first, and the
// loss into gradients. Losses, accuracies, perplexity or Dice are sums over microbatches, stages and
// replicas. They are divided by one weight (samples, tokens) at the very end.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/layers/layer.h"

namespace millrace {

/// The factors on the gradient of a microbatch. Both are known before anything is computed, because the
/// weights of all microbatches of a step are known (BatchExtent).
struct LossScale {
  double share = 1;  ///< factor on the microbatch's mean loss: its weight / weight of the step
  double unit = 1;   ///< factor on the microbatch's summed loss: 1 / weight of the step

  bool operator==(const LossScale&) const = default;
};

using NamedValues = std::vector<std::pair<std::string, double>>;

/// Joins several microbatches of an evaluation where they are one sample together, such as the windows of a
/// volume. All functions run under NoGradGuard. Not thread-safe.
class Collector {
 public:
  virtual ~Collector() = default;
  /// Takes what the head reads of the next microbatch, on the CPU. Adds to `sums` as Head::forward does, for
  /// each sample that is whole now. Throws DataError where a microbatch does not follow the one before.
  virtual void add(std::span<const at::Tensor> inputs, std::span<double> sums) = 0;
};

/// Implementations are immutable and thread-safe. All functions run under NoGradGuard.
class Head {
 public:
  virtual ~Head() = default;
  virtual std::string kind() const = 0;
  /// Names of the first sums, "loss" first. The sum of weights is the last one and has no name.
  virtual std::vector<std::string> metrics() const = 0;
  /// The number of further sums, which stand between those of the metrics and the weight. They are whole
  /// numbers that values() computes with, such as a histogram. So they add up to the same in every plan.
  virtual std::size_t num_counts() const { return 0; }
  std::size_t num_sums() const { return metrics().size() + num_counts() + 1; }
  /// The count that the sums are divided by: "samples", or a count that the data set supplies ("tokens").
  virtual std::string weight() const { return "samples"; }
  /// Throws ConfigError if the inputs do not fit.
  virtual void check(std::span<const TensorSpec> inputs) const = 0;

  /// Adds this microbatch's sums to `sums` [num_sums]. `saved` is null in evaluation. Tensors are on the
  /// CPU. Throws DataError if a target is out of range.
  virtual void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const = 0;
  /// Computes the sums of forward() on the inputs' device, so that the CPU does not wait: float64
  /// [num_sums]. By default it waits.
  virtual at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const;
  /// Returns the gradients of the inputs, undefined where `needs[i]` is false.
  virtual std::vector<at::Tensor> backward(Saved& saved, LossScale scale,
                                           std::span<const bool> needs) const = 0;
  /// Does the backward with a scale for each job of an array. A head of one job takes the first scale.
  virtual std::vector<at::Tensor> backward_of_jobs(Saved& saved, std::span<const LossScale> scales,
                                                   std::span<const bool> needs) const {
    return backward(saved, scales.front(), needs);
  }

  /// Turns the final sums [num_sums] into metrics: by default each divided by the weight (0 if that is 0).
  virtual NamedValues values(std::span<const double> sums) const;

  /// Returns what takes the place of forward() in evaluations; null: forward() judges each microbatch alone.
  /// The head must outlive it.
  virtual std::unique_ptr<Collector> collector() const { return nullptr; }

  virtual bool like(const Head& other) const { return this == &other; }  ///< Layer::like
  virtual bool takes_together() const { return false; }                  ///< MultiLayer::takes_together
  /// Layer::over_jobs of a head: inputs have a leading dimension B, sums are [B x num_sums], job by job.
  virtual std::shared_ptr<const Head> over_jobs(std::int64_t /*jobs*/) const { return nullptr; }
};

using HeadPtr = std::shared_ptr<const Head>;

/// Softmax cross-entropy. Inputs: scores [B, C], target int64 [B] in [0, C). Metrics: loss, top1, top5. The
/// gradient is that of torch's cross_entropy with reduction "mean", times LossScale::share.
HeadPtr cross_entropy_head();

struct TokenLossOptions {
  std::int64_t ignored = -100;    ///< a label with this value does not count: padding
  double smoothing = 0;           ///< label smoothing, uniform over all classes (arXiv 1512.00567, section 7)
  std::string weight = "tokens";  ///< the model's name for the number of labels that count
};
/// Cross-entropy of each label that is not ignored. Inputs: scores [..., V], labels int64 [...]. Metrics:
/// loss (smoothed), nll, accuracy; shown with perplexity = exp(nll). The gradient is torch's cross_entropy
/// with reduction "sum", the same ignore_index and label_smoothing, times LossScale::unit.
HeadPtr token_cross_entropy_head(const TokenLossOptions& options = {});

struct ActivationPenaltyOptions {
  double activation = 2;  ///< factor on the mean square of the decoder's input (AR)
  double change = 1;      ///< factor on the mean square of the change of an LSTM's output in a step (TAR)
};
/// Regularises the activations of a recurrent model (arXiv 1708.02182, section 4.7; 1708.01009). It is a head
/// beside that of the loss. Inputs: the output [T, B, F] after dropout and before it; a single input is both.
/// Metrics: loss, activation, change (the two means). The weight "tokens" is T B. In evaluation its sums are
/// zero, as it serves training only.
HeadPtr activation_penalty_head(const ActivationPenaltyOptions& options);

/// Mean squared error. Inputs: prediction and target of one shape [B, ...], floating. Metric: loss, the mean
/// over a sample's elements (torch's mse_loss where all samples weigh the same).
HeadPtr mean_squared_error_head();

}  // namespace millrace
