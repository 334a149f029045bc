#include "runtime/kernels/linear_kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>
#include <utility>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>

#include "runtime/kernels/vector_products.h"

// The BLAS function that LibTorch's MKL builds export; null in other builds.
extern "C" __attribute__((weak)) void sgemm_(const char* trans_a, const char* trans_b, const int* m,
                                             const int* n, const int* k, const float* alpha, const float* a,
                                             const int* lda, const float* b, const int* ldb,
                                             const float* beta, float* c, const int* ldc);

namespace millrace {
namespace {

// Products with more multiplications use ATen, whose overhead is then below 1 %.
constexpr std::int64_t kMostMultiplications = 1 << 23;
constexpr std::size_t kAlignment = 64;  // bytes; the alignment of LibTorch's tensors
// The sizes for which vector_products.h is faster than BLAS (docs/benchmarks.md).
// Small matrices: up to kMostRowsOfSmall rows. Up to kMostRowsByCopy rows, reading a transposed copy is
// faster than transposing.
// Other matrices: forwards with enough rows to fill vectors. Also weight gradients that do not fit into the
// L2 cache with the other data, if BLAS would copy both matrices for their number of rows. kLargest bounds
// the memory of a trial.
constexpr std::int64_t kMostRowsOfSmall = 48, kMostRowsOfSmallOuter = 40, kMostRowsByCopy = 8;
constexpr std::int64_t kMostRows = 112, kLeastRowsOfOuter = 41;
constexpr std::int64_t kLeastOuter = 1 << 19, kLargest = 1 << 25;
// at::sum adds columns in blocks of kRowsOfBlock rows. From kMostRowsOfSums rows on, it has more than two
// levels.
constexpr std::int64_t kRowsOfBlock = 16, kMostRowsOfSums = 256;

// Elements of a weight gradient that are computed before they are added: they fill a part of the L2 cache.
constexpr std::int64_t kOfBlock = 1 << 18;
constexpr std::int64_t kLeastRowsOfBlock = 64;

/// Returns the summation order of LibTorch's BLAS, found once by a trial. nullopt: the order is unknown, or
/// there are no vector products. Other sizes may still differ, so each size is tried as well.
std::optional<SumOrder> order_of_blas();

enum class Order { Plain, Transposed };

/// Computes c [m, n] = beta c + a [m, k] b, with row-major matrices. b is [k, n], or [n, k] if it is
/// transposed.
void product(const float* a, const float* b, Order order, float beta, float* c, std::int64_t m,
             std::int64_t k, std::int64_t n) {
  // BLAS is column-major: c^T = b^T a^T.
  const int rows = static_cast<int>(m), inner = static_cast<int>(k), columns = static_cast<int>(n);
  const float one = 1;
  sgemm_(order == Order::Plain ? "N" : "T", "N", &columns, &rows, &inner, &one, b,
         order == Order::Plain ? &columns : &inner, a, &inner, &beta, c, &columns);
}

/// Computes y = bias + x weight^T. `copy` is the transposed weight, or null if it must not be read.
void forward_into(By by, const float* x, const float* weight, const float* copy, const float* bias, float* y,
                  std::int64_t rows, std::int64_t in, std::int64_t out) {
  if (by == By::Vectors) {
    if (copy) return multiply(*order_of_blas(), x, copy, bias, y, rows, in, out);
    return multiply_by_rows(*order_of_blas(), x, weight, bias, 0, y, rows, in, out);
  }
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(y + r * out, bias, static_cast<std::size_t>(out) * sizeof(float));
  product(x, copy ? copy : weight, copy ? Order::Plain : Order::Transposed, 1, y, rows, in, out);
}

/// dx [rows, in] = grad [rows, out] weight.
void input_gradient_into(By by, const float* grad, const float* weight, float* dx, std::int64_t rows,
                         std::int64_t in, std::int64_t out) {
  if (by == By::Vectors) return multiply(*order_of_blas(), grad, weight, nullptr, dx, rows, out, in);
  product(grad, weight, Order::Plain, 0, dx, rows, out, in);
}

/// sum [out, in] += grad^T x.
void add_weight_gradient(By by, const float* x, const float* grad, float* sum, std::int64_t rows,
                         std::int64_t in, std::int64_t out) {
  if (by == By::Vectors) return add_outer_products(grad, x, sum, out, rows, in);
  const int m = static_cast<int>(out), n = static_cast<int>(in), k = static_cast<int>(rows);
  const float one = 1;
  sgemm_("N", "T", &n, &m, &k, &one, x, &n, grad, &m, &one, sum, &n);
}

/// sum [columns] += the sum over rows of grad, in the order of at::sum: block of rows after block of rows.
void add_column_sums(const float* grad, float* sum, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kWidth = 64;
  for (std::int64_t c = 0; c < columns; c += kWidth) {
    const std::int64_t width = std::min(kWidth, columns - c);
    std::array<float, kWidth> blocks{}, block{};
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = grad + r * columns + c;
      for (std::int64_t i = 0; i < width; ++i) block[i] += row[i];
      if ((r + 1) % kRowsOfBlock != 0) continue;
      for (std::size_t i = 0; i < kWidth; ++i) blocks[i] += block[i];
      block.fill(0);
    }
    for (std::int64_t i = 0; i < width; ++i) sum[c + i] += block[i] + blocks[i];
  }
}

void transpose(const float* from, float* to, std::int64_t rows, std::int64_t columns) {
  std::int64_t whole_rows = 0, whole_columns = 0;
#ifdef __SSE__
  constexpr std::int64_t kBlock = 32;  // rows of `from`, so that whole cache lines of `to` are written
  whole_rows = rows / 4 * 4;
  whole_columns = columns / 4 * 4;
  for (std::int64_t block = 0; block < whole_rows; block += kBlock) {
    for (std::int64_t j = 0; j < whole_columns; j += 4) {
      for (std::int64_t i = block; i < std::min(whole_rows, block + kBlock); i += 4) {
        const float* source = from + i * columns + j;
        __m128 a = _mm_loadu_ps(source), b = _mm_loadu_ps(source + columns),
               c = _mm_loadu_ps(source + 2 * columns), d = _mm_loadu_ps(source + 3 * columns);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        float* target = to + j * rows + i;
        _mm_storeu_ps(target, a);
        _mm_storeu_ps(target + rows, b);
        _mm_storeu_ps(target + 2 * rows, c);
        _mm_storeu_ps(target + 3 * rows, d);
      }
    }
  }
#endif
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      to[j * rows + i] = from[i * columns + j];
  }
}

/// A matrix of numbers in [-1, 1), in memory that is not counted as tensor memory.
class Trial {
 public:
  Trial(std::int64_t rows, std::int64_t columns) : rows_(rows), columns_(columns) {
    const std::size_t bytes = static_cast<std::size_t>(size() + kMostOffset) * sizeof(float);
    memory_.reset(static_cast<float*>(
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment)));
    if (!memory_) throw std::bad_alloc();
    draw(1);
  }
  void draw(std::uint32_t seed) {
    for (std::int64_t i = 0; i < size(); ++i) {
      seed = seed * 1664525 + 1013904223;
      data()[i] = float(static_cast<std::int32_t>(seed)) * 0x1p-31F;
    }
  }
  /// Moves the numbers to `offset` floats after an address at which tensors may start.
  void move_to(std::int64_t offset) {
    std::memmove(memory_.get() + offset, data(), bytes());
    offset_ = offset;
  }
  void copy_from(const Trial& other) { std::memcpy(data(), other.data(), bytes()); }
  float* data() const { return memory_.get() + offset_; }
  at::Tensor tensor() const { return at::from_blob(data(), {rows_, columns_}, at::kFloat); }
  at::Tensor row() const { return at::from_blob(data(), {columns_}, at::kFloat); }
  bool same(const Trial& other) const { return std::memcmp(data(), other.data(), bytes()) == 0; }

  static constexpr std::int64_t kMostOffset = 16;

 private:
  struct Free {
    void operator()(float* values) const { std::free(values); }
  };
  std::int64_t size() const { return rows_ * columns_; }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(float); }
  std::int64_t rows_, columns_, offset_ = 0;
  std::unique_ptr<float[], Free> memory_;
};

/// The number of elements of each row and column that are compared. A matrix's edges may be summed in another
/// order than its middle, and two orders agree by chance in about every second element.
constexpr std::int64_t kCompared = 64;
/// Offsets, in floats, at which matrices are tried. A BLAS may use another order at other alignments, such as
/// those of a job's part of an array's tensor.
constexpr std::array<std::int64_t, 4> kOffsets{1, 4, 8, 2};

std::optional<SumOrder> order_of_blas() {
  static const std::optional<SumOrder> found = []() -> std::optional<SumOrder> {
    if (!has_vector_products()) return {};
    constexpr std::int64_t kRows = 32, kInner = 700,
                           kColumns = 64;  // no two orders divide kInner into the same blocks
    const Trial a(kRows, kInner), b(kInner, kColumns), c(kRows, kColumns), own(kRows, kColumns);
    at::Tensor result = c.tensor();
    at::mm_out(result, a.tensor(), b.tensor());
    for (const SumOrder order : {SumOrder::Of384, SumOrder::Of192}) {
      multiply(order, a.data(), b.data(), nullptr, own.data(), kRows, kInner, kColumns);
      if (c.same(own)) return order;
    }
    return {};
  }();
  return found;
}

/// Whether each of two implementations gave ATen's bits in all trials.
struct Same {
  bool blas = true, vectors = true;
  By best(bool vectors_are_faster) const {
    return vectors && vectors_are_faster ? By::Vectors : blas ? By::Blas : By::Aten;
  }
};

LinearKernels small_tried(std::int64_t rows, std::int64_t in, std::int64_t out) {
  Trial x(rows, in), weight(out, in), bias(1, out), grad(rows, out), copy(in, out), before(out, in);
  Trial y(rows, out), own_y(rows, out), dx(rows, in), own_dx(rows, in), dw(out, in), own_dw(out, in);
  Trial sums(1, out), own_sums(1, out);
  const Trial product_of_dw(out, in);
  at::Tensor y_tensor = y.tensor(), dx_tensor = dx.tensor(), dw_tensor = dw.tensor(),
             product_tensor = product_of_dw.tensor();
  const bool has_vectors = order_of_blas() && rows <= kMostRowsOfSmall;
  Same forward{true, has_vectors}, by_copy = forward, input_gradient = forward, weight_gradient = forward;
  const std::int64_t shortest = std::min({rows, in, out});
  for (std::uint32_t i = 0; i * shortest < kCompared; ++i) {
    x.draw(4 * i);
    weight.draw(4 * i + 1);
    grad.draw(4 * i + 2);
    before.draw(4 * i + 3);
    transpose(weight.data(), copy.data(), out, in);
    at::addmm_out(y_tensor, bias.row(), x.tensor(), weight.tensor().t());
    at::mm_out(dx_tensor, grad.tensor(), weight.tensor());
    at::mm_out(product_tensor, grad.tensor().t(), x.tensor());
    at::add_out(dw_tensor, before.tensor(), product_tensor);
    for (const std::int64_t offset : {std::int64_t{0}, kOffsets[i % kOffsets.size()]}) {
      for (Trial* matrix : {&x, &weight, &bias, &grad, &copy, &own_y, &own_dx, &own_dw})
        matrix->move_to(offset);
      for (const By by : {By::Blas, By::Vectors}) {
        const auto tried = [by](Same& same, auto&& is_same) {
          bool& so_far = by == By::Blas ? same.blas : same.vectors;
          so_far = so_far && is_same();
        };
        const auto forward_is_same = [&](const float* by_what) {
          forward_into(by, x.data(), weight.data(), by_what, bias.data(), own_y.data(), rows, in, out);
          return y.same(own_y);
        };
        tried(forward, [&] { return forward_is_same(nullptr); });
        tried(by_copy, [&] { return forward_is_same(copy.data()); });
        tried(input_gradient, [&] {
          input_gradient_into(by, grad.data(), weight.data(), own_dx.data(), rows, in, out);
          return dx.same(own_dx);
        });
        tried(weight_gradient, [&] {
          own_dw.copy_from(before);
          add_weight_gradient(by, x.data(), grad.data(), own_dw.data(), rows, in, out);
          return dw.same(own_dw);
        });
      }
    }
    for (Trial* matrix : {&x, &weight, &bias, &grad, &copy}) matrix->move_to(0);
  }
  LinearKernels found;
  found.forward = forward.best(true);
  found.copy = found.forward == By::Vectors ? rows <= kMostRowsByCopy && by_copy.vectors
                                            : found.forward == By::Blas && by_copy.blas;
  found.input_gradient = input_gradient.best(true);
  found.weight_gradient = weight_gradient.best(rows <= kMostRowsOfSmallOuter);
  found.column_sums = rows < kMostRowsOfSums;
  for (std::uint32_t i = 0; found.column_sums && i < kCompared; ++i) {
    grad.draw(i);
    sums.row().add_(at::sum(grad.tensor(), 0));
    add_column_sums(grad.data(), own_sums.data(), rows, out);
    found.column_sums = sums.same(own_sums);
  }
  return found;
}

/// Computes sum [out, in] += grad^T x, with each element's product complete before it is added. It processes
/// blocks of rows of the sum that stay in the cache, so that only the sum itself goes through memory.
void add_by_aten_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& sum) {
  const std::int64_t out = sum.size(0), in = std::max<std::int64_t>(1, sum.size(1));
  const std::int64_t blocks =
      std::max<std::int64_t>(1, std::min(out * in / kOfBlock, out / kLeastRowsOfBlock));
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t begin = out * i / blocks, count = out * (i + 1) / blocks - begin;
    sum.narrow(0, begin, count).add_(at::mm(grad.narrow(1, begin, count).t(), x));
  }
}

bool forward_is_same(std::int64_t rows, std::int64_t in, std::int64_t out) {
  Trial x(rows, in);
  const Trial weight(out, in), bias(1, out), y(rows, out), own_y(rows, out);
  at::Tensor y_tensor = y.tensor();
  bool same = true;
  for (std::uint32_t i = 0; same && i * std::min(rows, out) < kCompared; ++i) {
    x.draw(2 + i);
    at::addmm_out(y_tensor, bias.row(), x.tensor(), weight.tensor().t());
    multiply_by_rows(*order_of_blas(), x.data(), weight.data(), bias.data(), 0, own_y.data(), rows, in, out);
    same = y.same(own_y);
  }
  return same;
}

bool outer_is_same(std::int64_t rows, std::int64_t in, std::int64_t out) {
  Trial x(rows, in);
  const Trial grad(rows, out), dw(out, in), own_dw(out, in);
  x.draw(2);
  add_by_aten_(x.tensor(), grad.tensor(), dw.tensor());
  add_outer_products(grad.data(), x.data(), own_dw.data(), out, rows, in);
  return dw.same(own_dw);
}

/// Returns whether a tensor has the alignment of the trials. At other addresses a BLAS may add in another
/// order.
bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % kAlignment == 0;
}

bool is_taken(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat && t.device().is_cpu() && t.is_contiguous();
}

/// Returns the kernels for a product of these tensors. All are ATen if a tensor does not permit a direct
/// call.
LinearKernels kernels_for(const at::Tensor& rows, std::int64_t in, std::int64_t out,
                          const at::Tensor& other) {
  // Autograd records only ATen functions.
  if (c10::GradMode::is_enabled() || !is_taken(rows) || !is_taken(other)) return {};
  return linear_kernels(rows.size(0), in, out);
}

/// Returns whether is_taken() is true for each job's part.
bool each_is_taken(const at::Tensor& t) {
  if (t.scalar_type() != at::kFloat || !t.device().is_cpu()) return false;
  std::int64_t dense = 1;
  for (std::int64_t d = t.dim() - 1; d > 0; --d) {
    if (t.size(d) != 1 && t.stride(d) != dense) return false;
    dense *= t.size(d);
  }
  return true;
}

/// Returns the kernels for each of B jobs, like kernels_for().
LinearKernels kernels_for_each(const at::Tensor& rows, std::int64_t in, std::int64_t out,
                               const at::Tensor& other) {
  if (c10::GradMode::is_enabled() || !each_is_taken(rows) || !each_is_taken(other)) return {};
  return linear_kernels(rows.size(1), in, out);
}

// The smallest number of multiplications for which a thread is woken.
constexpr std::int64_t kOfAThread = 1 << 16;

template <class OfJob>
void for_each_job(std::int64_t jobs, std::int64_t multiplications, OfJob&& of_job) {
  const std::int64_t grain =
      std::max<std::int64_t>(1, kOfAThread / std::max<std::int64_t>(1, multiplications));
  at::parallel_for(0, jobs, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t job = begin; job < end; ++job) of_job(job);
  });
}

/// (rows, in, out, threads)
using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t, int>;

bool is_small(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return sgemm_ && in * out <= kLargestTransposed && rows * in * out <= kMostMultiplications;
}
/// Returns whether the forward of a product that is not small gains from vector products.
bool forward_gains(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return order_of_blas() && rows > kMostRowsByCopy && rows <= kMostRows && in * out <= kLargest;
}
bool weight_gradient_gains(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return order_of_blas() && rows >= kLeastRowsOfOuter && rows <= kMostRows && in * out >= kLeastOuter &&
         in * out <= kLargest;
}

LinearKernels tried(const Sizes& sizes) {
  const auto& [rows, in, out, threads] = sizes;
  if (is_small(rows, in, out)) return small_tried(rows, in, out);
  LinearKernels found;
  if (forward_gains(rows, in, out) && forward_is_same(rows, in, out)) found.forward = By::Vectors;
  if (weight_gradient_gains(rows, in, out) && outer_is_same(rows, in, out))
    found.weight_gradient = By::Vectors;
  return found;
}

/// Returns tried(sizes), computed once for all threads.
LinearKernels found_for(const Sizes& sizes) {
  static std::mutex mutex;
  static std::map<Sizes, LinearKernels> known;
  std::lock_guard lock(mutex);
  auto found = known.find(sizes);
  if (found == known.end()) {
    found = known.emplace(sizes, tried(sizes)).first;
  }
  return found->second;
}

}  // namespace

LinearKernels linear_kernels(std::int64_t rows, std::int64_t in, std::int64_t out) {
  if (std::min({rows, in, out}) < 1 || (!is_small(rows, in, out) && !forward_gains(rows, in, out))) return {};
  const Sizes sizes{rows, in, out, at::get_num_threads()};
  // Each layer queries three times per microbatch. Sizes that this thread has seen need no lock.
  thread_local std::array<std::pair<Sizes, LinearKernels>, 64> recent{};
  auto& [known, kernels] = recent[static_cast<std::size_t>(rows + 7 * in + 31 * out) % recent.size()];
  if (known != sizes) {
    kernels = found_for(sizes);
    known = sizes;
  }
  return kernels;
}

at::Tensor transposed_copy(const at::Tensor& weight) {
  at::Tensor copy = at::empty({weight.size(1), weight.size(0)}, weight.options());
  transpose(weight.const_data_ptr<float>(), copy.mutable_data_ptr<float>(), weight.size(0), weight.size(1));
  return copy;
}

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& copy) {
  const std::int64_t rows = x.size(0), in = weight.size(1), out = weight.size(0);
  const LinearKernels kernels = kernels_for(x, in, out, weight);
  if (kernels.forward == By::Aten || !is_taken(bias)) return at::addmm(bias, x, weight.t());
  const bool by_copy = kernels.copy && copy.defined() && is_aligned(x) && is_aligned(weight);
  at::Tensor y = at::empty({rows, out}, x.options());
  forward_into(kernels.forward, x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
               by_copy ? copy.const_data_ptr<float>() : nullptr, bias.const_data_ptr<float>(),
               y.mutable_data_ptr<float>(), rows, in, out);
  return y;
}

at::Tensor plus_linear(const at::Tensor& added, const at::Tensor& x, const at::Tensor& weight) {
  const std::int64_t rows = x.size(0), in = weight.size(1), out = weight.size(0);
  const By by = kernels_for(x, in, out, weight).forward;
  if (by == By::Aten || !is_taken(added)) return at::addmm(added, x, weight.t());
  at::Tensor y = at::empty({rows, out}, x.options());
  const float* before = added.const_data_ptr<float>();
  if (by == By::Vectors) {
    multiply_by_rows(*order_of_blas(), x.const_data_ptr<float>(), weight.const_data_ptr<float>(), before, out,
                     y.mutable_data_ptr<float>(), rows, in, out);
    return y;
  }
  std::memcpy(y.mutable_data_ptr<float>(), before, y.nbytes());
  product(x.const_data_ptr<float>(), weight.const_data_ptr<float>(), Order::Transposed, 1,
          y.mutable_data_ptr<float>(), rows, in, out);
  return y;
}

at::Tensor linear_input_gradient(const at::Tensor& grad, const at::Tensor& weight) {
  const std::int64_t rows = grad.size(0), in = weight.size(1), out = weight.size(0);
  const By by = kernels_for(grad, in, out, weight).input_gradient;
  if (by == By::Aten) return at::mm(grad, weight);
  at::Tensor result = at::empty({rows, in}, grad.options());
  input_gradient_into(by, grad.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                      result.mutable_data_ptr<float>(), rows, in, out);
  return result;
}

void add_weight_gradient_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum) {
  if (!x.device().is_cpu() && x.scalar_type() == weight_sum.scalar_type()) {
    weight_sum.addmm_(grad.t(), x);  // one kernel, and the product itself needs no memory
    return;
  }
  const std::int64_t rows = grad.size(0), in = x.size(1), out = grad.size(1);
  const By by = is_taken(x) ? kernels_for(grad, in, out, weight_sum).weight_gradient : By::Aten;
  if (by == By::Aten) return add_by_aten_(x, grad, weight_sum);
  add_weight_gradient(by, x.const_data_ptr<float>(), grad.const_data_ptr<float>(),
                      weight_sum.mutable_data_ptr<float>(), rows, in, out);
}

void add_linear_gradients_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum,
                           const at::Tensor& bias_sum) {
  const std::int64_t rows = grad.size(0), in = x.size(1), out = grad.size(1);
  add_weight_gradient_(x, grad, weight_sum);
  if (kernels_for(grad, in, out, bias_sum).column_sums)
    add_column_sums(grad.const_data_ptr<float>(), bias_sum.mutable_data_ptr<float>(), rows, out);
  else
    bias_sum.add_(at::sum(grad, 0));
}

at::Tensor linear_forward_of_jobs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const std::int64_t jobs = x.size(0), rows = x.size(1), in = weight.size(2), out = weight.size(1);
  const By by_whom = kernels_for_each(x, in, out, weight).forward;
  if (by_whom == By::Aten || !each_is_taken(bias))
    return at::baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2));
  at::Tensor y = at::empty({jobs, rows, out}, x.options());
  const float *from = x.const_data_ptr<float>(), *by = weight.const_data_ptr<float>(),
              *plus = bias.const_data_ptr<float>();
  float* to = y.mutable_data_ptr<float>();
  for_each_job(jobs, rows * in * out, [&](std::int64_t job) {
    forward_into(by_whom, from + job * x.stride(0), by + job * weight.stride(0), nullptr,
                 plus + job * bias.stride(0), to + job * rows * out, rows, in, out);
  });
  return y;
}

at::Tensor linear_input_gradient_of_jobs(const at::Tensor& grad, const at::Tensor& weight) {
  const std::int64_t jobs = grad.size(0), rows = grad.size(1), in = weight.size(2), out = weight.size(1);
  const By by_whom = kernels_for_each(grad, in, out, weight).input_gradient;
  if (by_whom == By::Aten) return at::bmm(grad, weight);
  at::Tensor result = at::empty({jobs, rows, in}, grad.options());
  const float *from = grad.const_data_ptr<float>(), *by = weight.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  for_each_job(jobs, rows * in * out, [&](std::int64_t job) {
    input_gradient_into(by_whom, from + job * grad.stride(0), by + job * weight.stride(0),
                        to + job * rows * in, rows, in, out);
  });
  return result;
}

void add_linear_gradients_of_jobs_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum,
                                   const at::Tensor& bias_sum) {
  const std::int64_t jobs = grad.size(0), rows = grad.size(1), in = x.size(2), out = grad.size(2);
  const LinearKernels kernels = each_is_taken(x) && each_is_taken(weight_sum)
                                    ? kernels_for_each(grad, in, out, bias_sum)
                                    : LinearKernels{};
  if (kernels.weight_gradient != By::Aten) {
    const float *from = x.const_data_ptr<float>(), *by = grad.const_data_ptr<float>();
    float* to = weight_sum.mutable_data_ptr<float>();
    for_each_job(jobs, rows * in * out, [&](std::int64_t job) {
      add_weight_gradient(kernels.weight_gradient, from + job * x.stride(0), by + job * grad.stride(0),
                          to + job * weight_sum.stride(0), rows, in, out);
    });
  } else if (!x.device().is_cpu() && x.scalar_type() == weight_sum.scalar_type()) {
    weight_sum.baddbmm_(grad.transpose(1, 2), x);
  } else {
    // The product is computed and then added: on the CPU, ATen would run job by job if it added into tensors
    // that are not adjacent.
    weight_sum.add_(at::bmm(grad.transpose(1, 2), x));
  }
  if (kernels.column_sums) {
    const float* from = grad.const_data_ptr<float>();
    float* to = bias_sum.mutable_data_ptr<float>();
    for (std::int64_t job = 0; job < jobs; ++job)
      add_column_sums(from + job * grad.stride(0), to + job * bias_sum.stride(0), rows, out);
  } else {
    bias_sum.add_(at::sum(grad, 1));
  }
}

}  // namespace millrace
