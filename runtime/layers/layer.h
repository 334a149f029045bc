// The interface of layers. A layer is stateless: it describes its parameters and receives their tensors in
// each call. The forward saves the data that the backward needs. The backward consists of two functions:
// input gradient and weight gradient.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/masks_from.h"

namespace millrace {

using Shape = std::vector<std::int64_t>;  // shape of a whole microbatch, e.g. [B, C, H, W] or [T, B]

/// The shape and type of a tensor, known before the tensor exists.
struct TensorSpec {
  Shape shape;
  at::ScalarType dtype = at::kFloat;
  /// gradients may flow back through it; false for integers and for batch fields
  bool differentiable = true;
};

enum class Init {
  Zeros,
  Ones,
  Uniform,   ///< [-a, a]
  Normal,    ///< mean ParameterSpec::mean, standard deviation a
  Constant,  ///< a
};

/// The use of a parameter. Rules may exclude some kinds from weight decay or layer-wise scaling.
enum class ParameterKind { Weight, Bias, Norm, Embedding };

/// A trainable parameter, or a buffer (running statistics: updated in forward, not versioned, not trained).
/// Name and shape equal torchvision's state_dict entry after the layer's name ("weight", "bias",
/// "running_mean"). float32, except `is_counter` (int64 scalar, e.g. num_batches_tracked) and buffers whose
/// `value` has another type.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Init init = Init::Zeros;
  double a = 0;
  bool is_buffer = false;
  bool is_counter = false;
  ParameterKind kind = ParameterKind::Weight;
  std::int64_t zero_row = -1;  ///< a row that is initially zero: an embedding's padding
  at::Tensor value{};          ///< the initial value, instead of `init`; on the CPU, never written to
  /// Further full names under which the weight is saved: a state_dict lists a tied parameter at each of its
  /// uses.
  std::vector<std::string> also{};
  /// the job in a job array that owns it; its name is then "job<b>/" plus the job's own name for it
  int job = -1;
  double mean = 0;  ///< mean of Init::Normal
  /// Names below its layer in another program's state_dict, instead of `name` or in addition to it.
  std::vector<std::string> elsewhere{};
  /// The forward writes to it in training (an embedding with a max_norm). The result does not depend on how
  /// often or in which order microbatches are read. Such a parameter may not be tied, replicated, or have
  /// several versions in flight.
  bool written = false;
};

/// The type in which a layer computes if the run has a lower precision (bfloat16 or float16) than its
/// weights. Layers follow the lists of torch.autocast for the CPU. Without a lower precision, all layers
/// compute in the run's precision.
enum class CastPolicy {
  Lower,    ///< floating inputs and parameters are cast to the lower precision: matrix products, convolutions
  Float32,  ///< floating inputs are cast to float32
  /// floating inputs are cast to the widest type among them: layers that only move values, and norms (whose
  /// kernels compute in float32 internally)
  Promote,
};

/// Returns the type to which a layer with this policy casts its floating inputs. `lower` is the run's lower
/// precision. Undefined: no input is cast.
at::ScalarType compute_dtype(CastPolicy policy, std::span<const TensorSpec> inputs, at::ScalarType lower);

/// Returns `t`, cast to float32 if it has a lower precision: for sums and exponentials inside a layer.
at::Tensor widened(const at::Tensor& t);

/// Connects the replicas of a stage. Calls are matched by their order on each replica.
class ReplicaSum {
 public:
  virtual ~ReplicaSum() = default;
  /// Replaces `values` by the sum over all replicas, in rank order: the same bits on each. Throws PeerError
  /// if a peer fails.
  virtual void add_up_(const at::Tensor& values, const char* what) = 0;
};

/// The data that a forward keeps for the backwards of the same microbatch. It is freed after the last of
/// them.
struct Saved {
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t> numbers;
  std::vector<Saved> inner{};      ///< data of other layers' calls that the layer makes
  std::shared_ptr<void> extra;     ///< data of other types, e.g. autograd's graph
  ReplicaSum* replicas = nullptr;  ///< CallContext::replicas, if the backward needs it too
};

struct CallContext {
  bool training = true;
  /// derived from (job seed, layer name, position of the microbatch in the run)
  std::uint64_t random_seed = 0;
  /// In training: statistics are computed over the microbatches that all replicas run at the same time. Null:
  /// over this microbatch alone.
  ReplicaSum* replicas = nullptr;
  /// The random_seed of each job of an array; empty for a layer of one job.
  std::span<const std::uint64_t> job_seeds{};
  /// By output of a job, 1 or 0: whether a job array may return it together (JobTensors, job_array.h). Empty:
  /// none.
  std::span<const char> together{};
  MasksFrom masks = MasksFrom::Device;
};

/// Implementations are immutable and thread-safe. All functions run under NoGradGuard.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::string kind() const = 0;
  /// Returns whether the layer draws random numbers. CallContext::random_seed is set only for such layers.
  virtual bool draws() const { return false; }
  /// Returns how inputs are cast. Only CastPolicy::Lower casts parameters as well, and buffers are never
  /// cast. outputs() receives the inputs after the cast.
  virtual CastPolicy cast_policy() const { return CastPolicy::Float32; }
  virtual std::vector<ParameterSpec> parameters() const { return {}; }
  /// Returns the shape of the (first) output. Throws ConfigError if shapes do not fit, and names both.
  virtual Shape output_shape(std::span<const Shape> inputs) const = 0;
  /// Returns the specs of all outputs; throws as output_shape() does. The default is one output with the
  /// first floating input's dtype (float32 if there is none). It is differentiable if a parameter or a
  /// differentiable input affects it.
  virtual std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const;
  /// Returns why inputs of these shapes can be evaluated but not trained on: batch normalisation needs two
  /// values per channel. Empty: they can be trained on.
  virtual std::string training_problem(std::span<const Shape> /*inputs*/) const { return {}; }

  /// Computes the output. `parameters` are the trainable ones in the order of parameters(), and `buffers` the
  /// buffers in that order. `saved` is null in evaluation: nothing is kept.
  virtual at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                             std::span<at::Tensor> buffers, const CallContext& context,
                             Saved* saved) const = 0;

  /// Returns the gradient of each input, undefined where `needs[i]` is false (the first layer's input).
  virtual std::vector<at::Tensor> backward_input(const at::Tensor& grad_output,
                                                 std::span<const at::Tensor> parameters, Saved& saved,
                                                 std::span<const bool> needs) const = 0;

  /// Returns the rows of its only parameter to which backward_weight() will add, for the forward's saved
  /// data: int64 [n] on the CPU, in any order, possibly repeated. Undefined: it may add to all of its
  /// parameters.
  virtual at::Tensor rows_of_gradient(const Saved& /*saved*/) const { return {}; }

  /// Adds this microbatch's gradients to `grads`, which has one tensor per trainable parameter: views into a
  /// flat bucket.
  virtual void backward_weight(const at::Tensor& /*grad_output*/, Saved& /*saved*/,
                               std::span<at::Tensor> /*grads*/) const {}

  /// Computes both gradients at once. Override it if one kernel computes both; the results must be bitwise
  /// equal to the separate functions.
  virtual std::vector<at::Tensor> backward(const at::Tensor& grad_output,
                                           std::span<const at::Tensor> parameters, Saved& saved,
                                           std::span<const bool> needs, std::span<at::Tensor> grads) const {
    auto result = backward_input(grad_output, parameters, saved, needs);
    backward_weight(grad_output, saved, grads);
    return result;
  }

  /// Returns copies of the parameters in a layout that the layer's kernels read faster, for microbatches
  /// whose first input has the nominal shape `input`. If many microbatches read a version of the weights, the
  /// copies are made once per version, and follow the parameters in every call. Results have the same bits
  /// with and without copies.
  virtual std::vector<at::Tensor> copies(const Shape& /*input*/,
                                         std::span<const at::Tensor> /*parameters*/) const {
    return {};
  }

  // ---- job arrays (job_array.h) ----
  /// Returns whether `other`, which has the same class, computes the same function.
  virtual bool like(const Layer& other) const { return this == &other; }
  /// Returns whether one call with B times as many samples computes B jobs. The layer then has no parameters,
  /// samples are the rows of dimension 0 of every input and output, and samples are independent. Such a layer
  /// draws with CallContext::job_seeds.
  virtual bool folds() const { return false; }
  /// Returns a layer that computes `jobs` equal layers at once; null: there is none. Its inputs, parameters,
  /// buffers, outputs and gradients have a leading dimension of `jobs`, of any stride. An input that all jobs
  /// share has stride 0 there. It may round differently than separate calls.
  virtual std::shared_ptr<const Layer> over_jobs(std::int64_t /*jobs*/) const { return nullptr; }
};

using LayerPtr = std::shared_ptr<const Layer>;

/// A layer with several outputs. `grads` has one gradient per output, undefined if no reader supplied one.
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
  /// Returns whether inputs and gradients of a job array may be together (JobTensors, job_array.h).
  virtual bool takes_together() const { return false; }

 private:
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context, Saved* saved) const final;
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor> parameters,
                                         Saved& saved, std::span<const bool> needs) const final;
};

}  // namespace millrace
