// The matrix products of a linear layer in float32 on the CPU. They serve small matrices or few rows, where
// call overhead and cache contents matter.
#pragma once

#include <ATen/core/Tensor.h>

namespace millrace {

/// The largest weight for which a transposed copy pays off. Up to this size, x W^T with a copy takes as long
/// as x W. Beyond it, LibTorch's BLAS rearranges the matrix in every call either way.
constexpr std::int64_t kLargestTransposed = 512 * 512;  // elements

/// The implementation of a product: ATen, direct calls to its BLAS, or vector_products.h.
enum class By { Aten, Blas, Vectors };

/// The fastest implementations with ATen's bits, for given matrix sizes and a number of threads.
struct LinearKernels {
  By forward = By::Aten, input_gradient = By::Aten, weight_gradient = By::Aten;
  bool copy = false;         ///< the forward is faster with a transposed copy of the weight
  bool column_sums = false;  ///< sums over rows use our own loop
};

/// Returns the implementations for products [rows, in] x [out, in]^T. They are found by trials, once for
/// these sizes and the caller's number of intra-op threads. The result names only ATen if LibTorch's BLAS
/// cannot be called directly, or if the matrices are large and have many rows. Thread-safe.
/// A BLAS's order of summation depends on sizes, and for some sizes on addresses, but never on values. The
/// BLAS is used only if its order does not depend on the matrices' addresses.
LinearKernels linear_kernels(std::int64_t rows, std::int64_t in, std::int64_t out);

/// Returns a copy [in, out] of `weight` [out, in], which must be contiguous float32 on the CPU.
at::Tensor transposed_copy(const at::Tensor& weight);

/// x [R, in], weight [out, in], bias [out] -> [R, out]. `copy` is transposed_copy(weight), or undefined. The
/// result has the bits of at::addmm(bias, x, weight.t()), also for other types and on other devices. The
/// functions below match their ATen operators in the same way.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& copy);
/// Returns added [R, out] + x weight^T, like at::addmm(added, x, weight.t()).
at::Tensor plus_linear(const at::Tensor& added, const at::Tensor& x, const at::Tensor& weight);
/// grad [R, out] -> [R, in], like at::mm(grad, weight).
at::Tensor linear_input_gradient(const at::Tensor& grad, const at::Tensor& weight);
/// weight_sum [out, in] += grad^T x for x [R, in], grad [R, out]. Each element's product is complete before
/// it is added, as with at::mm and add_. at::addmm_ may instead continue from the value in the sum. A sum
/// over microbatches would then have other bits than the sum of two replicas' sums.
void add_weight_gradient_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum);
/// Does add_weight_gradient_(), and bias_sum [out] += the sum over rows of grad.
void add_linear_gradients_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum,
                           const at::Tensor& bias_sum);

// These functions do the same for B jobs. All tensors have a leading dimension B of any stride. If the BLAS
// is called directly, they run job by job and give each job's bits. Otherwise they use ATen's batched
// products, which may round differently.
at::Tensor linear_forward_of_jobs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor linear_input_gradient_of_jobs(const at::Tensor& grad, const at::Tensor& weight);
void add_linear_gradients_of_jobs_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum,
                                   const at::Tensor& bias_sum);

}  // namespace millrace
