// This file is compiled with -ffp-contract=off: std::fma is used where ATen rounds once, and no other
// operations may be contracted.
#include "runtime/kernels/update_kernels.h"

#include <cmath>

#include "runtime/kernels/widest_vectors.h"

#define MILLRACE_INLINE inline __attribute__((always_inline))

namespace millrace {
namespace {

/// Returns the gradient plus decay times the weight. Without decay the loop has no branch.
template <bool Decays, class T>
MILLRACE_INLINE T decayed(T gradient, T weight, T decay) {
  if constexpr (Decays) return std::fma(weight, decay, gradient);
  return gradient;
}

template <bool Decays, bool First, bool Nesterov, class T>
MILLRACE_INLINE void momentum_descent(const SgdBlock<T>& b) {
  T* __restrict w = b.weights;
  const T* __restrict gradient = b.gradient;
  T* __restrict momentum = b.momentum;
  const T decay = b.decay, factor = b.factor, rest = b.rest, step = -b.lr;
  for (std::int64_t i = 0, count = b.count; i < count; ++i) {
    const T g = decayed<Decays>(gradient[i], w[i], decay);
    const T m = First ? g : std::fma(rest, g, momentum[i] * factor);
    momentum[i] = m;
    w[i] = std::fma(Nesterov ? std::fma(m, factor, g) : m, step, w[i]);
  }
}
template <bool Decays, class T>
MILLRACE_INLINE void sgd_of(const SgdBlock<T>& b) {
  if (b.momentum) {
    if (b.nesterov)
      return b.first ? momentum_descent<Decays, true, true>(b) : momentum_descent<Decays, false, true>(b);
    return b.first ? momentum_descent<Decays, true, false>(b) : momentum_descent<Decays, false, false>(b);
  }
  T* __restrict w = b.weights;
  const T* __restrict gradient = b.gradient;
  const T decay = b.decay, step = -b.lr;
  for (std::int64_t i = 0, count = b.count; i < count; ++i)
    w[i] = std::fma(decayed<Decays>(gradient[i], w[i], decay), step, w[i]);
}
template <class T>
MILLRACE_INLINE void sgd(const SgdBlock<T>& b) {
  b.decay != 0 ? sgd_of<true>(b) : sgd_of<false>(b);
}

template <bool Decays, bool Low, bool Maximum, class T>
MILLRACE_INLINE void adam_of(const AdamBlock<T>& b) {
  T* __restrict w = b.weights;
  const T* __restrict gradient = b.gradient;
  T* __restrict average = b.average;
  T* __restrict square = b.square;
  T* __restrict maximum = b.maximum;
  const T decay = b.decay, keep = b.keep, beta2 = b.beta2, rest = b.rest, correction = b.correction,
          epsilon = b.epsilon, step = -b.step_size;
  // Interpolates from the nearer end, as torch.lerp does.
  const T towards = Low ? b.lerp : b.lerp - 1;
  for (std::int64_t i = 0, count = b.count; i < count; ++i) {
    const T g = decayed<Decays>(gradient[i], w[i], decay);
    const T m = std::fma(towards, g - average[i], Low ? average[i] : g);
    const T v = std::fma(rest * g, g, square[i] * beta2);
    average[i] = m;
    square[i] = v;
    T under = v;
    if constexpr (Maximum) {
      under = maximum[i] < v || v != v ? v : maximum[i];  // NaN stays
      maximum[i] = under;
    }
    w[i] = w[i] * keep + step * m / (std::sqrt(under) / correction + epsilon);
  }
}
template <bool Decays, class T>
MILLRACE_INLINE void adam_by_lerp(const AdamBlock<T>& b) {
  if (std::abs(b.lerp) < T(0.5))
    return b.maximum ? adam_of<Decays, true, true>(b) : adam_of<Decays, true, false>(b);
  return b.maximum ? adam_of<Decays, false, true>(b) : adam_of<Decays, false, false>(b);
}
template <class T>
MILLRACE_INLINE void adam(const AdamBlock<T>& b) {
  b.decay != 0 ? adam_by_lerp<true>(b) : adam_by_lerp<false>(b);
}

template <bool Decays, class T>
MILLRACE_INLINE void adadelta_squares(const AdadeltaBlock<T>& b) {
  const T* __restrict w = b.weights;
  T* __restrict gradient = b.gradient;
  const T* __restrict u = b.delta;
  T* __restrict v = b.square;
  T* __restrict roots = b.roots;
  const T decay = b.decay, rho = b.rho, rest = b.rest, epsilon = b.epsilon;
  const std::int64_t count = b.count;
  for (std::int64_t i = 0; i < count; ++i) {
    const T g = decayed<Decays>(gradient[i], w[i], decay);
    if constexpr (Decays) gradient[i] = g;
    v[i] = std::fma(rest * g, g, v[i] * rho);
    roots[i] = u[i] + epsilon;
    roots[count + i] = v[i] + epsilon;
  }
}
template <class T>
MILLRACE_INLINE void squares_of(const AdadeltaBlock<T>& b) {
  b.decay != 0 ? adadelta_squares<true>(b) : adadelta_squares<false>(b);
}
/// step = sqrt(u + epsilon) / sqrt(v + epsilon) g; u = rho u + (1 - rho) step step; w -= lr step.
template <class T>
MILLRACE_INLINE void step_of(const AdadeltaBlock<T>& b) {
  const T* __restrict g = b.gradient;
  const T* __restrict roots = b.roots;
  T* __restrict u = b.delta;
  T* __restrict w = b.weights;
  const T rho = b.rho, rest = b.rest, rate = -b.lr;
  const std::int64_t count = b.count;
  for (std::int64_t i = 0; i < count; ++i) {
    const T step = roots[i] / roots[count + i] * g[i];
    u[i] = std::fma(rest * step, step, u[i] * rho);
    w[i] = std::fma(step, rate, w[i]);
  }
}

template <bool Decays, bool Centered, class T>
MILLRACE_INLINE void rmsprop_squares(const RmsPropBlock<T>& b) {
  const T* __restrict w = b.weights;
  T* __restrict gradient = b.gradient;
  T* __restrict v = b.square;
  T* __restrict mean = b.mean;
  T* __restrict roots = b.roots;
  const T decay = b.decay, alpha = b.alpha, rest = b.rest;
  for (std::int64_t i = 0, count = b.count; i < count; ++i) {
    const T g = decayed<Decays>(gradient[i], w[i], decay);
    if constexpr (Decays) gradient[i] = g;
    v[i] = std::fma(rest * g, g, v[i] * alpha);
    if constexpr (Centered) {
      mean[i] = std::fma(g, rest, mean[i] * alpha);
      roots[i] = std::fma(-mean[i], mean[i], v[i]);
    } else {
      roots[i] = v[i];
    }
  }
}
template <class T>
MILLRACE_INLINE void squares_of(const RmsPropBlock<T>& b) {
  if (b.decay != 0) return b.mean ? rmsprop_squares<true, true>(b) : rmsprop_squares<true, false>(b);
  return b.mean ? rmsprop_squares<false, true>(b) : rmsprop_squares<false, false>(b);
}
template <class T>
MILLRACE_INLINE void step_of(const RmsPropBlock<T>& b) {
  const T* __restrict g = b.gradient;
  const T* __restrict roots = b.roots;
  T* __restrict w = b.weights;
  T* __restrict momentum = b.momentum;
  const T epsilon = b.epsilon, factor = b.factor, rate = -b.lr;
  const std::int64_t count = b.count;
  if (momentum) {
    for (std::int64_t i = 0; i < count; ++i) {
      momentum[i] = momentum[i] * factor + g[i] / (roots[i] + epsilon);
      w[i] = std::fma(momentum[i], rate, w[i]);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) w[i] = w[i] + rate * g[i] / (roots[i] + epsilon);
  }
}

template <bool Decays, class T>
MILLRACE_INLINE void asgd_of(const AsgdBlock<T>& b) {
  T* __restrict w = b.weights;
  const T* __restrict gradient = b.gradient;
  T* __restrict average = b.average;
  const T decay = b.decay, keep = b.keep, rate = -b.lr, weight = b.weight;
  const std::int64_t count = b.count;
  if (!average) {
    for (std::int64_t i = 0; i < count; ++i)
      w[i] = std::fma(decayed<Decays>(gradient[i], w[i], decay), rate, w[i]);
  } else if (weight == 1) {
    for (std::int64_t i = 0; i < count; ++i)
      average[i] = w[i] = std::fma(decayed<Decays>(gradient[i], w[i], decay), rate, w[i] * keep);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      w[i] = std::fma(decayed<Decays>(gradient[i], w[i], decay), rate, w[i] * keep);
      average[i] = std::fma(w[i] - average[i], weight, average[i]);
    }
  }
}
template <class T>
MILLRACE_INLINE void asgd(const AsgdBlock<T>& b) {
  b.decay != 0 ? asgd_of<true>(b) : asgd_of<false>(b);
}

template <class T>
MILLRACE_INLINE void squares_of(const LambBlock<T>& b) {
  const T* __restrict gradient = b.gradient;
  T* __restrict average = b.average;
  T* __restrict square = b.square;
  T* __restrict roots = b.roots;
  const T beta1 = b.beta1, rest1 = b.rest1, beta2 = b.beta2, rest2 = b.rest2, correction = b.correction2;
  for (std::int64_t i = 0, count = b.count; i < count; ++i) {
    const T g = gradient[i];
    average[i] = std::fma(g, rest1, average[i] * beta1);
    square[i] = std::fma(rest2 * g, g, square[i] * beta2);
    roots[i] = square[i] / correction;
  }
}
template <class T>
MILLRACE_INLINE void step_of(const LambBlock<T>& b) {
  T* __restrict gradient = b.gradient;
  const T* __restrict average = b.average;
  const T* __restrict roots = b.roots;
  const T correction = b.correction1, epsilon = b.epsilon;
  for (std::int64_t i = 0, count = b.count; i < count; ++i)
    gradient[i] = average[i] / correction / (roots[i] + epsilon);
}

template <class T>
MILLRACE_INLINE void add_times(T* __restrict values, const T* __restrict others, std::int64_t count,
                               T factor) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = std::fma(others[i], factor, values[i]);
}

/// Adds the squares of `kCount` runs of `count` values each. The processor interleaves the runs.
template <int kCount, class T>
MILLRACE_INLINE void add_squares(const T* const (&values)[kCount], std::int64_t count,
                                 double (&sums)[kCount]) {
  constexpr int kLanes = 8;
  double lanes[kCount][kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int run = 0; run < kCount; ++run) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const double value = values[run][i + lane];
        lanes[run][lane] += value * value;
      }
    }
  }
  for (int run = 0; run < kCount; ++run) {
    double sum = 0;
    for (double lane : lanes[run]) sum += lane;
    for (std::int64_t rest = i; rest < count; ++rest)
      sum += double(values[run][rest]) * double(values[run][rest]);
    sums[run] = sum;
  }
}
template <class T>
MILLRACE_INLINE double squares_of(const T* values, std::int64_t count) {
  double sums[1];
  add_squares<1>({values}, count, sums);
  return sums[0];
}
template <class T>
MILLRACE_INLINE SquaresOfTwo squares_of(const T* first, const T* second, std::int64_t count) {
  double sums[2];
  add_squares<2>({first, second}, count, sums);
  return {sums[0], sums[1]};
}

template <class T>
MILLRACE_INLINE void times(T* __restrict values, std::int64_t count, T factor) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace

bool has_update_kernels() {
  return MILLRACE_HAS_FMA;
}

// Macros instead of templates, because GCC cannot clone templates for several processors.
#define MILLRACE_KERNEL(name, work, Block)                        \
  MILLRACE_WIDEST_VECTORS void name(const Block<float>& block) {  \
    work(block);                                                  \
  }                                                               \
  MILLRACE_WIDEST_VECTORS void name(const Block<double>& block) { \
    work(block);                                                  \
  }
MILLRACE_KERNEL(update, sgd, SgdBlock)
MILLRACE_KERNEL(update, adam, AdamBlock)
MILLRACE_KERNEL(prepare, squares_of, AdadeltaBlock)
MILLRACE_KERNEL(finish, step_of, AdadeltaBlock)
MILLRACE_KERNEL(prepare, squares_of, RmsPropBlock)
MILLRACE_KERNEL(finish, step_of, RmsPropBlock)
MILLRACE_KERNEL(update, asgd, AsgdBlock)
MILLRACE_KERNEL(prepare, squares_of, LambBlock)
MILLRACE_KERNEL(finish, step_of, LambBlock)
#undef MILLRACE_KERNEL

MILLRACE_WIDEST_VECTORS void add_multiple(float* values, const float* others, std::int64_t count,
                                          double factor) {
  add_times(values, others, count, static_cast<float>(factor));
}
MILLRACE_WIDEST_VECTORS void add_multiple(double* values, const double* others, std::int64_t count,
                                          double factor) {
  add_times(values, others, count, factor);
}

MILLRACE_WIDEST_VECTORS double square_sum(const float* values, std::int64_t count) {
  return squares_of(values, count);
}
MILLRACE_WIDEST_VECTORS double square_sum(const double* values, std::int64_t count) {
  return squares_of(values, count);
}
MILLRACE_WIDEST_VECTORS SquaresOfTwo square_sums(const float* first, const float* second,
                                                 std::int64_t count) {
  return squares_of(first, second, count);
}
MILLRACE_WIDEST_VECTORS SquaresOfTwo square_sums(const double* first, const double* second,
                                                 std::int64_t count) {
  return squares_of(first, second, count);
}

MILLRACE_WIDEST_VECTORS void scale(float* values, std::int64_t count, double factor) {
  times(values, count, static_cast<float>(factor));
}
MILLRACE_WIDEST_VECTORS void scale(double* values, std::int64_t count, double factor) {
  times(values, count, factor);
}

}  // namespace millrace
