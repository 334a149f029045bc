// Computes updates of runs of elements in one pass over memory, or in two with square roots between them.
// Results are rounded like those of ATen's kernels in LibTorch 2.11 on x86 with FMA. Both therefore give the
// same bits, which tests/train/update_rules_test.cpp verifies. LibTorch-free.
#pragma once

#include <cstdint>

namespace millrace {

/// Returns whether the kernels are compiled for a processor with FMA. Without FMA they would be slow.
bool has_update_kernels();

/// The parameters of SGD on a run of elements. For all blocks in this header: pointers are to `count`
/// elements each, float or double, and do not overlap. `gradient` has unspecified contents afterwards.
/// Numbers are rounded to T where they are used, like ATen's. The functions write only to their block, and
/// are thread-safe.
template <class T>
struct SgdBlock {
  T *weights, *gradient;
  T* momentum = nullptr;  ///< null: plain gradient descent
  std::int64_t count = 0;
  /// decay: weight decay; factor: momentum; rest: 1 - dampening
  T decay = 0, factor = 0, rest = 1, lr = 0;
  bool first = false;  ///< the momentum is set to the gradient
  bool nesterov = false;
};
void update(const SgdBlock<float>& block);
void update(const SgdBlock<double>& block);

template <class T>
struct AdamBlock {
  T *weights, *gradient, *average, *square;
  T* maximum = nullptr;  ///< the maximum of amsgrad; null without
  std::int64_t count = 0;
  T decay = 0;            ///< weight decay that is added to the gradient; 0: none
  T keep = 1;             ///< the factor of AdamW's decay on the weights; 1: no decay
  T lerp = 0;             ///< 1 - beta1
  T beta2 = 0, rest = 0;  ///< rest: 1 - beta2
  T correction = 1;       ///< sqrt(1 - beta2^step)
  T epsilon = 0, step_size = 0;
};
void update(const AdamBlock<float>& block);
void update(const AdamBlock<double>& block);

/// Adadelta. The caller calls prepare(), replaces `roots` by their square roots, then calls finish().
template <class T>
struct AdadeltaBlock {
  T *weights, *gradient, *square, *delta;
  T* roots;  ///< two for each element: first all of delta + epsilon, then all of square + epsilon
  std::int64_t count = 0;
  T decay = 0, rho = 0, rest = 0, epsilon = 0, lr = 0;  ///< rest: 1 - rho
};
void prepare(const AdadeltaBlock<float>& block);
void prepare(const AdadeltaBlock<double>& block);
void finish(const AdadeltaBlock<float>& block);
void finish(const AdadeltaBlock<double>& block);

/// RMSprop, in the same order as Adadelta but with one root for each element.
template <class T>
struct RmsPropBlock {
  T *weights, *gradient, *square;
  T* mean = nullptr;  ///< the mean of centered RMSprop; null without
  T* momentum = nullptr;
  T* roots;
  std::int64_t count = 0;
  T decay = 0, alpha = 0, rest = 0, epsilon = 0, factor = 0, lr = 0;  ///< rest: 1 - alpha; factor: momentum
};
void prepare(const RmsPropBlock<float>& block);
void prepare(const RmsPropBlock<double>& block);
void finish(const RmsPropBlock<float>& block);
void finish(const RmsPropBlock<double>& block);

template <class T>
struct AsgdBlock {
  T *weights, *gradient;
  T* average = nullptr;  ///< null: not averaged yet
  std::int64_t count = 0;
  T decay = 0, keep = 1, lr = 0;  ///< keep: factor on the weights
  T weight = 1;                   ///< share of the new weights in the average
};
void update(const AsgdBlock<float>& block);
void update(const AsgdBlock<double>& block);

/// LAMB's step before decay, which replaces the gradient. The caller calls prepare(), replaces `roots` by
/// their square roots, then calls finish().
template <class T>
struct LambBlock {
  T *gradient, *average, *square;
  T* roots = nullptr;  ///< one for each element
  std::int64_t count = 0;
  T beta1 = 0, rest1 = 0, beta2 = 0, rest2 = 0;  ///< rest: 1 - beta
  T correction1 = 1, correction2 = 1;            ///< 1 - beta^step
  T epsilon = 0;
};
void prepare(const LambBlock<float>& block);
void prepare(const LambBlock<double>& block);
void finish(const LambBlock<float>& block);
void finish(const LambBlock<double>& block);

/// values[i] += factor others[i]
void add_multiple(float* values, const float* others, std::int64_t count, double factor);
void add_multiple(double* values, const double* others, std::int64_t count, double factor);

/// Returns the sum of squares in double. It has a fixed number of partial sums, so its order is the same on
/// every machine.
double square_sum(const float* values, std::int64_t count);
double square_sum(const double* values, std::int64_t count);
/// The sums of squares of two runs. Each has the same bits as square_sum().
struct SquaresOfTwo {
  double first = 0, second = 0;
};
SquaresOfTwo square_sums(const float* first, const float* second, std::int64_t count);
SquaresOfTwo square_sums(const double* first, const double* second, std::int64_t count);

/// values[i] *= factor
void scale(float* values, std::int64_t count, double factor);
void scale(double* values, std::int64_t count, double factor);

}  // namespace millrace
