// The products of a linear layer in float32 on the CPU, where matrices are so small or rows so few that the
// way to them and what the caches hold count.
#pragma once

#include <ATen/core/Tensor.h>

namespace millrace {

/// Up to this size a weight is worth a transposed copy: x W^T then takes as long as x W. Beyond it LibTorch's
/// BLAS rearranges the matrix in every call either way.
constexpr std::int64_t kLargestTransposed = 512 * 512;  // elements

/// Who computes a product: ATen; the BLAS below it, called directly; vector_products.h.
enum class By { Aten, Blas, Vectors };

/// What gives ATen's bits, and is the fastest that does, for matrices of these sizes and this number of
/// threads.
struct LinearKernels {
  By forward = By::Aten, input_gradient = By::Aten, weight_gradient = By::Aten;
  bool copy = false;  ///< the forward gains by a transposed copy of the weight
  bool column_sums = false;
};

/// Found out by trying, once for each [rows, in] x [out, in]^T and number of intra-op threads of the caller.
/// The order in which a BLAS adds depends on sizes, and for some sizes on addresses, never on values: the
/// BLAS is taken only where it adds in one order wherever the matrices begin. Nothing where the BLAS is not
/// one that can be called, or the matrices are large and of many rows. Thread-safe.
LinearKernels linear_kernels(std::int64_t rows, std::int64_t in, std::int64_t out);

/// [out, in], contiguous float32 on the CPU -> a copy [in, out].
at::Tensor transposed_copy(const at::Tensor& weight);

/// x [R, in], weight [out, in], bias [out], copy: transposed_copy(weight), or undefined -> [R, out]. The bits
/// of at::addmm(bias, x, weight.t()), also of other types and on other devices. So are the others'.
at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& copy);
/// added [R, out] + x weight^T, as at::addmm(added, x, weight.t()).
at::Tensor plus_linear(const at::Tensor& added, const at::Tensor& x, const at::Tensor& weight);
/// grad [R, out] -> [R, in], as at::mm(grad, weight).
at::Tensor linear_input_gradient(const at::Tensor& grad, const at::Tensor& weight);
/// weight_sum [out, in] += grad^T x for x [R, in], grad [R, out]. Each element's product is complete before
/// it is added, as at::mm and add_ do. at::addmm_ may go on from what the sum holds; then a sum over
/// microbatches would have other bits than a sum of two replicas' sums.
void add_weight_gradient_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum);
/// add_weight_gradient_, and bias_sum [out] += the sum over rows of grad.
void add_linear_gradients_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum,
                           const at::Tensor& bias_sum);

// The same of B jobs, all tensors with a leading dimension B of any stride: job by job with each job's bits
// where BLAS is called directly, else by ATen's batched products, which may round otherwise.
at::Tensor linear_forward_of_jobs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor linear_input_gradient_of_jobs(const at::Tensor& grad, const at::Tensor& weight);
void add_linear_gradients_of_jobs_(const at::Tensor& x, const at::Tensor& grad, const at::Tensor& weight_sum,
                                   const at::Tensor& bias_sum);

}  // namespace millrace
