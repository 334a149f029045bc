// A head ends a model. It computes named sums, with the loss first, from tensors and batch fields, and
// gradients from the loss. Losses, accuracies, perplexity or Dice are sums over microbatches, stages and
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

/// The factors on a microbatch's gradient. Both are known before any computation, because the weights of all
/// microbatches of a step are known (BatchExtent).
struct LossScale {
  double share = 1;  ///< factor on the microbatch's mean loss: its weight / weight of the step
  double unit = 1;   ///< factor on the microbatch's summed loss: 1 / weight of the step

  bool operator==(const LossScale&) const = default;
};

using NamedValues = std::vector<std::pair<std::string, double>>;

/// Joins several microbatches of an evaluation that form one sample, such as the windows of a volume. All
/// functions run under NoGradGuard. Not thread-safe.
class Collector {
 public:
  virtual ~Collector() = default;
  /// Adds the head's inputs of the next microbatch, on the CPU. Adds to `sums` as Head::forward does, for
  /// each sample that is now complete. Throws DataError if a microbatch does not continue the previous one.
  virtual void add(std::span<const at::Tensor> inputs, std::span<double> sums) = 0;
};

/// Implementations are immutable and thread-safe. All functions run under NoGradGuard.
class Head {
 public:
  virtual ~Head() = default;
  virtual std::string kind() const = 0;
  /// Returns the names of the first sums, "loss" first. The last sum is the weight and has no name.
  virtual std::vector<std::string> metrics() const = 0;
  /// Returns the number of further sums, between those of the metrics and the weight. They are integers for
  /// values(), such as a histogram, so their totals are the same for every plan.
  virtual std::size_t num_counts() const { return 0; }
  std::size_t num_sums() const { return metrics().size() + num_counts() + 1; }
  /// Returns the count that the sums are divided by: "samples", or a count that the data set supplies
  /// ("tokens").
  virtual std::string weight() const { return "samples"; }
  /// Throws ConfigError if the inputs do not fit.
  virtual void check(std::span<const TensorSpec> inputs) const = 0;

  /// Adds this microbatch's sums to `sums` [num_sums]. `saved` is null in evaluation. Tensors are on the CPU.
  /// Throws DataError if a target is out of range.
  virtual void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const = 0;
  /// Returns the sums of forward(), computed on the inputs' device so that the CPU does not wait: float64
  /// [num_sums]. The default implementation waits.
  virtual at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const;
  /// Returns the gradients of the inputs, undefined where `needs[i]` is false.
  virtual std::vector<at::Tensor> backward(Saved& saved, LossScale scale,
                                           std::span<const bool> needs) const = 0;
  /// Does the backward with one scale per job of an array. A head of one job uses the first scale.
  virtual std::vector<at::Tensor> backward_of_jobs(Saved& saved, std::span<const LossScale> scales,
                                                   std::span<const bool> needs) const {
    return backward(saved, scales.front(), needs);
  }

  /// Computes metrics from the final sums [num_sums]. The default divides each by the weight (0 if that is
  /// 0).
  virtual NamedValues values(std::span<const double> sums) const;

  /// Returns the replacement of forward() in evaluations; null: forward() evaluates each microbatch by
  /// itself. The head must outlive it.
  virtual std::unique_ptr<Collector> collector() const { return nullptr; }

  virtual bool like(const Head& other) const { return this == &other; }  ///< Layer::like
  virtual bool takes_together() const { return false; }                  ///< MultiLayer::takes_together
  /// Layer::over_jobs for heads: inputs have a leading dimension B, sums are [B x num_sums], job by job.
  virtual std::shared_ptr<const Head> over_jobs(std::int64_t /*jobs*/) const { return nullptr; }
};

using HeadPtr = std::shared_ptr<const Head>;

/// Softmax cross-entropy. Inputs: scores [B, C], target int64 [B] in [0, C). Metrics: loss, top1, top5. The
/// gradient is that of torch's cross_entropy with reduction "mean", times LossScale::share.
HeadPtr cross_entropy_head();

struct TokenLossOptions {
  std::int64_t ignored = -100;    ///< labels with this value are ignored: padding
  double smoothing = 0;           ///< label smoothing, uniform over all classes (arXiv 1512.00567, section 7)
  std::string weight = "tokens";  ///< the model's name for the number of labels that count
};
/// Cross-entropy of each label that is not ignored. Inputs: scores [..., V], labels int64 [...]. Metrics:
/// loss (smoothed), nll, accuracy; shown with perplexity = exp(nll). The gradient is that of torch's
/// cross_entropy with reduction "sum", the same ignore_index and label_smoothing, times LossScale::unit.
HeadPtr token_cross_entropy_head(const TokenLossOptions& options = {});

struct ActivationPenaltyOptions {
  double activation = 2;  ///< factor on the mean square of the decoder's input (AR)
  double change = 1;      ///< factor on the mean square of an LSTM output's change between steps (TAR)
};
/// Regularises the activations of a recurrent model (arXiv 1708.02182, section 4.7; 1708.01009), in addition
/// to the head of the loss. Inputs: the output [T, B, F] after dropout and before it; a single input is both.
/// Metrics: loss, activation, change (the two means). The weight "tokens" is T B. In evaluation its sums are
/// zero, as it is for training only.
HeadPtr activation_penalty_head(const ActivationPenaltyOptions& options);

/// Mean squared error. Inputs: prediction and target of equal shape [B, ...], floating. Metric: loss, the
/// mean over a sample's elements (torch's mse_loss if all samples have equal weight).
HeadPtr mean_squared_error_head();

}  // namespace millrace
