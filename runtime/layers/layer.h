// The interface of layers. A layer is stateless: it describes its parameters and gets their tensors at each
// call. The forward saves what the backward needs. The backward is split in two: input gradient and weight
// gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/masks_from.h"

namespace millrace {

using Shape = std::vector<std::int64_t>;  // of a whole microbatch, e.g. [B, C, H, W] or [T, B]

/// The shape and type of a tensor, known before the tensor exists.
struct TensorSpec {
  Shape shape;
  at::ScalarType dtype = at::kFloat;
  /// gradients may flow back through it; false for integers and for fields of the batch
  bool differentiable = true;
};

enum class Init {
  Zeros,
  Ones,
  Uniform,   ///< [-a, a]
  Normal,    ///< mean ParameterSpec::mean, standard deviation a
  Constant,  ///< a
};

/// The use of a parameter. Rules may leave some kinds out of weight decay or of layer-wise scaling.
enum class ParameterKind { Weight, Bias, Norm, Embedding };

/// A trainable parameter, or a buffer (running statistics: updated in forward, not versioned, not trained).
/// Name and shape equal torchvision's state_dict entry after the layer's name ("weight", "bias",
/// "running_mean"). float32 except `is_counter` (int64 scalar, e.g. num_batches_tracked) and buffers whose
/// `value` is of another type.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Init init = Init::Zeros;
  double a = 0;
  bool is_buffer = false;
  bool is_counter = false;
  ParameterKind kind = ParameterKind::Weight;
  std::int64_t zero_row = -1;  ///< a row that starts at zero: an embedding's padding
  at::Tensor value{};          ///< its initial value, instead of `init`; on the CPU, never written to
  /// Further full names under which weights are written: a state_dict names a tied parameter at each of its
  /// places.
  std::vector<std::string> also{};
  /// the job that it belongs to in a job array; its name is then "job<b>/" and the job's own name for it
  int job = -1;
  double mean = 0;  ///< mean of Init::Normal
  /// Its names below its layer in the state_dict of another program, instead of `name` or besides it.
  std::vector<std::string> elsewhere{};
  /// Forward writes to it in training (an embedding with a max_norm). The result is the same however often
  /// and in whatever order microbatches are read. Such a parameter may not be tied, replicated, or have
  /// several versions in flight.
  bool written = false;
};

/// The type that a layer computes in if the run has a lower precision (bfloat16 or float16) than its weights.
/// Layers follow the lists of torch.autocast for the CPU. Without a lower precision all layers compute in the
/// precision of the run.
enum class CastPolicy {
  Lower,    ///< floating inputs and parameters are cast to the lower precision: matrix products, convolutions
  Float32,  ///< floating inputs are cast to float32
  /// floating inputs are cast to the widest type among them: layers that only pass values on, and norms
  /// (whose kernels compute in float32 inside)
  Promote,
};

/// Returns the type that the floating inputs of a layer with this policy are cast to. `lower` is the run's
/// lower precision. Undefined: no input is cast.
at::ScalarType compute_dtype(CastPolicy policy, std::span<const TensorSpec> inputs, at::ScalarType lower);

/// Returns `t`, cast to float32 if it is of a lower precision: for sums and exponentials inside a layer.
at::Tensor widened(const at::Tensor& t);

/// Joins the replicas of a stage. Their calls meet in the order in which each makes them.
class ReplicaSum {
 public:
  virtual ~ReplicaSum() = default;
  /// `values` becomes the sum over all replicas, in the order of ranks: the same bits on each. Throws
  /// PeerError.
  virtual void add_up_(const at::Tensor& values, const char* what) = 0;
};

/// The data that a forward keeps for the backwards of the same microbatch. It is freed after the last of
/// them.
struct Saved {
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t> numbers;
  std::vector<Saved> inner{};      ///< of the calls of other layers that the layer makes
  std::shared_ptr<void> extra;     ///< data of other types, e.g. autograd's graph
  ReplicaSum* replicas = nullptr;  ///< CallContext::replicas, if the backward needs it too
};

struct CallContext {
  bool training = true;
  /// a function of (job seed, layer name, position of the microbatch in the run)
  std::uint64_t random_seed = 0;
  /// In training: statistics are taken over the microbatches that all replicas run at the same time. Null:
  /// over this microbatch alone.
  ReplicaSum* replicas = nullptr;
  /// The random_seed of each job of an array; empty for a layer of one job.
  std::span<const std::uint64_t> job_seeds{};
  /// Tells by output of a job (1 or 0) whether a job array may return it together (JobTensors, job_array.h).
  /// Empty: none.
  std::span<const char> together{};
  MasksFrom masks = MasksFrom::Device;
};

/// Implementations are immutable and thread-safe. All functions run under NoGradGuard.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string kind() const = 0;
  /// Tells whether the layer draws random numbers. CallContext::random_seed is set for such layers alone.
  virtual bool draws() const { return false; }
  /// Returns how inputs are cast. Only CastPolicy::Lower casts parameters with the inputs, and buffers are
  /// never cast. outputs() gets the inputs after the cast.
  virtual CastPolicy cast_policy() const { return CastPolicy::Float32; }
  virtual std::vector<ParameterSpec> parameters() const { return {}; }
  /// Returns the shape of the (first) output. Throws ConfigError on shapes that do not fit, and names both.
  virtual Shape output_shape(std::span<const Shape> inputs) const = 0;
  /// Returns the specs of all outputs; throws as output_shape. By default one output, of the first floating
  /// input's dtype (float32 where there is none), differentiable where a parameter or a differentiable input
  /// acts on it.
  virtual std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const;
  /// Says why inputs of these shapes cannot be trained on, though they can be evaluated: batch normalisation
  /// needs two values of each channel. Empty: they can.
  virtual std::string training_problem(std::span<const Shape> /*inputs*/) const { return {}; }

  /// Computes the output. `parameters` are the trainable ones in the order of parameters(), and `buffers` the
  /// buffers in that order. `saved` is null in evaluation: nothing is kept then.
  virtual at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                             std::span<at::Tensor> buffers, const CallContext& context,
                             Saved* saved) const = 0;

  /// Returns the gradient of each input, undefined where `needs[i]` is false (the first layer's input).
  virtual std::vector<at::Tensor> backward_input(const at::Tensor& grad_output,
                                                 std::span<const at::Tensor> parameters, Saved& saved,
                                                 std::span<const bool> needs) const = 0;

  /// Returns the rows of its only parameter that backward_weight() will add to, for what the forward saved:
  /// int64 [n] on the CPU, in any order, perhaps several times. Undefined: it may add to all of its
  /// parameters.
  virtual at::Tensor rows_of_gradient(const Saved& /*saved*/) const { return {}; }

  /// Adds this microbatch's gradients to `grads`, which has one tensor for each trainable parameter: views
  /// into a flat bucket.
  virtual void backward_weight(const at::Tensor& /*grad_output*/, Saved& /*saved*/,
                               std::span<at::Tensor> /*grads*/) const {}

  /// Computes both gradients at once. Override it if one kernel gives both; the results must be bitwise equal
  /// to the split.
  virtual std::vector<at::Tensor> backward(const at::Tensor& grad_output,
                                           std::span<const at::Tensor> parameters, Saved& saved,
                                           std::span<const bool> needs, std::span<at::Tensor> grads) const {
    auto result = backward_input(grad_output, parameters, saved, needs);
    backward_weight(grad_output, saved, grads);
    return result;
  }

  /// Returns copies of the parameters in an order that the layer's kernels read faster, for microbatches
  /// whose first input has the nominal shape `input`. If many microbatches read a version of the weights, the
  /// copies are made once for it, and follow the parameters in every call. Results have the same bits with
  /// and without copies.
  virtual std::vector<at::Tensor> copies(const Shape& /*input*/,
                                         std::span<const at::Tensor> /*parameters*/) const {
    return {};
  }

  // ---- job arrays (job_array.h) ----
  /// Tells whether `other`, which is of this class, computes the same.
  virtual bool like(const Layer& other) const { return this == &other; }
  /// Tells whether one call with B times as many samples computes B jobs. The layer then has no parameters,
  /// samples are the rows of dimension 0 of every input and output, and samples do not depend on each other.
  /// Such a layer draws by CallContext::job_seeds.
  virtual bool folds() const { return false; }
  /// Returns a layer that computes `jobs` equal layers at once; null: there is none. Its inputs, parameters,
  /// buffers, outputs and gradients have a leading dimension of `jobs`, of any stride. An input that all jobs
  /// share has stride 0 there. It may round differently than a call for each job.
  virtual std::shared_ptr<const Layer> over_jobs(std::int64_t /*jobs*/) const { return nullptr; }
};

using LayerPtr = std::shared_ptr<const Layer>;

/// A layer with several outputs. `grads` has one gradient for each output, undefined if no reader gave one.
class MultiLayer : public Layer {
 public:
  Shape output_shape(std::span<const Shape> inputs) const override;
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override = 0;

  virtual std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs,
                                              std::span<const at::Tensor> parameters,
                                              std::span<at::Tensor> buffers, const CallContext& context,
                                              Saved* saved) const = 0;
  virtual std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor> grads,
                                                     std::span<const at::Tensor> parameters, Saved& saved,
                                                     std::span<const bool> needs) const = 0;
  virtual void backward_weight_all(std::span<const at::Tensor> /*grads_of_outputs*/, Saved& /*saved*/,
                                   std::span<at::Tensor> /*grads*/) const {}
  /// Tells whether inputs and gradients of a job array may come together (JobTensors, job_array.h).
  virtual bool takes_together() const { return false; }

 private:
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const final;
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> parameters,
                                         Saved& saved, std::span<const bool> needs) const final;
};

}  // namespace millrace
