// Kernels of small and large linear layers, and of GELU, give the bits of ATen's functions, whatever sizes,
// types and strides.
#include "runtime/kernels/linear_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "runtime/kernels/gelu_kernels.h"
#include "runtime/kernels/vector_products.h"
#include "runtime/layers/basic_layers.h"

namespace millrace {
namespace {

at::Tensor drawn(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return at::empty(shape, dtype).normal_(0, 1, at::detail::createCPUGenerator(seed));
}

class IntraOpThreads {
 public:
  explicit IntraOpThreads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~IntraOpThreads() { at::set_num_threads(before_); }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

 private:
  int before_;
};

struct Matrices {
  at::Tensor x, weight, bias, grad;
};

Matrices matrices(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType dtype = at::kFloat) {
  return {drawn({rows, in}, 1, dtype), drawn({out, in}, 2, dtype), drawn({out}, 3, dtype),
          drawn({rows, out}, 4, dtype)};
}

void expect_bits_of_aten(const Matrices& m, const at::Tensor& copy, const std::string& what) {
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(linear_forward(m.x, m.weight, m.bias, copy), at::addmm(m.bias, m.x, m.weight.t())))
      << what;
  const at::Tensor added = drawn({m.x.size(0), m.bias.size(0)}, 9).to(m.x.scalar_type());
  EXPECT_TRUE(at::equal(plus_linear(added, m.x, m.weight), at::addmm(added, m.x, m.weight.t()))) << what;
  EXPECT_TRUE(at::equal(linear_input_gradient(m.grad, m.weight), at::mm(m.grad, m.weight))) << what;
  const at::Tensor weight_sum = m.weight.clone(), bias_sum = m.bias.clone();
  add_linear_gradients_(m.x, m.grad, weight_sum, bias_sum);
  EXPECT_TRUE(at::equal(weight_sum, m.weight.clone().add_(at::mm(m.grad.t(), m.x)))) << what;
  EXPECT_TRUE(at::equal(bias_sum, m.bias.clone().add_(at::sum(m.grad, 0)))) << what;
}

void expect_bits_of_aten_at_all_sizes(int threads) {
  const IntraOpThreads these(threads);
  for (const std::int64_t rows : {1, 2, 7, 8, 15, 16, 17, 32, 33, 64, 100, 128, 255, 256, 300, 1025}) {
    for (const auto& [in, out] : {std::pair{1, 1},
                                  {3, 5},
                                  {64, 64},
                                  {64, 10},
                                  {100, 36},
                                  {256, 256},
                                  {513, 64},
                                  {31, 700},
                                  {512, 512},
                                  {784, 256},
                                  {1024, 1024}}) {
      if (std::int64_t{rows} * in * out > 1 << 26) continue;
      const Matrices m = matrices(rows, in, out);
      const std::string what = std::to_string(rows) + " x " + std::to_string(in) + " -> " +
                               std::to_string(out) + " of " + std::to_string(threads) + " threads";
      expect_bits_of_aten(m, at::Tensor(), what);
      expect_bits_of_aten(m, transposed_copy(m.weight), what + ", with a copy");
    }
  }
}

TEST(LinearKernels, GiveTheBitsOfAten) {
  expect_bits_of_aten_at_all_sizes(1);
  expect_bits_of_aten_at_all_sizes(2);
}

TEST(LinearKernels, LeaveOtherTypesAndStridesToAten) {
  expect_bits_of_aten(matrices(8, 64, 32, at::kDouble), at::Tensor(), "float64");
  Matrices strided = matrices(8, 64, 32);
  strided.x = drawn({64, 8}, 1).t();
  strided.grad = drawn({32, 8}, 2).t();
  expect_bits_of_aten(strided, transposed_copy(strided.weight), "strided");
  Matrices off = matrices(8, 64, 32);
  off.x = drawn({8 * 64 + 1}, 1).narrow(0, 1, 8 * 64).view({8, 64});
  expect_bits_of_aten(off, transposed_copy(off.weight), "not aligned");
}

/// The sum of two microbatches is the sum of two replicas that have one each, in every bit: sizes for which
/// at::addmm_ goes on from what the sum holds are among them.
TEST(LinearKernels, AddWeightGradientsThatAreComplete) {
  const at::NoGradGuard no_grad;
  for (const auto& [rows, in, out] :
       {std::tuple{4, 64, 2}, {1, 16, 16}, {17, 5, 64}, {64, 768, 3}, {400, 48, 40}, {500, 700, 600}}) {
    const Matrices first = matrices(rows, in, out);
    const at::Tensor other_x = drawn({rows, in}, 5), other_grad = drawn({rows, out}, 6),
                     other_bias = at::zeros({out});
    at::Tensor one = at::zeros({out, in}), replica = at::zeros({out, in}), bias = at::zeros({out});
    add_linear_gradients_(first.x, first.grad, one, bias);
    const at::Tensor before = one.clone();
    add_linear_gradients_(other_x, other_grad, one, bias);
    add_linear_gradients_(other_x, other_grad, replica, other_bias);
    EXPECT_TRUE(at::equal(one, at::add(before, replica))) << rows << " x " << in << " -> " << out;
  }
}

/// Parameters of jobs lie in equal distances; jobs have inputs of their own or share one.
TEST(LinearKernels, OfJobsGiveTheBitsOfEach) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kJobs = 3;
  for (const auto& [rows, in, out] : {std::tuple{4, 16, 16}, {8, 32, 10}, {17, 5, 64}, {64, 256, 256}}) {
    // If ATen computes a product, its batched version may round differently.
    const LinearKernels kernels = linear_kernels(rows, in, out);
    for (const bool shared : {false, true}) {
      const std::int64_t distance = in * out + out + 7;
      const at::Tensor flat = drawn({kJobs * distance}, 1), sums = drawn({kJobs * distance}, 2),
                       own_sums = sums.clone();
      const auto weights = [&](const at::Tensor& of) {
        return of.as_strided({kJobs, out, in}, {distance, in, 1});
      };
      const auto biases = [&](const at::Tensor& of) {
        return of.as_strided({kJobs, out}, {distance, 1}, in * out);
      };
      const at::Tensor x = shared ? drawn({1, rows, in}, 3).expand({kJobs, rows, in})
                                  : drawn({kJobs, rows, in}, 3),
                       grad = drawn({kJobs, rows, out}, 4);
      const at::Tensor y = linear_forward_of_jobs(x, weights(flat), biases(flat)),
                       dx = linear_input_gradient_of_jobs(grad, weights(flat));
      add_linear_gradients_of_jobs_(x, grad, weights(sums), biases(sums));
      for (std::int64_t b = 0; b < kJobs; ++b) {
        const std::string what = std::to_string(rows) + " x " + std::to_string(in) + " -> " +
                                 std::to_string(out) + ", job " + std::to_string(b) +
                                 (shared ? ", shared" : "");
        if (kernels.forward != By::Aten) {
          EXPECT_TRUE(at::equal(y[b], linear_forward(x[b], weights(flat)[b], biases(flat)[b], {}))) << what;
        }
        if (kernels.input_gradient != By::Aten) {
          EXPECT_TRUE(at::equal(dx[b], linear_input_gradient(grad[b], weights(flat)[b]))) << what;
        }
        add_linear_gradients_(x[b], grad[b], weights(own_sums)[b], biases(own_sums)[b]);
      }
      const double error = kernels.weight_gradient == By::Aten ? 1e-4 : 0;
      EXPECT_TRUE(at::allclose(sums, own_sums, error, error));
      const auto between = [&](const at::Tensor& of) {
        return of.as_strided({kJobs, 7}, {distance, 1}, in * out + out);
      };
      EXPECT_TRUE(at::equal(between(sums), between(own_sums))) << "something between the jobs was written to";
    }
  }
}

TEST(LinearKernels, ACopyHasTheOtherOrder) {
  for (const auto& [rows, columns] : {std::pair{1, 1}, {4, 4}, {5, 9}, {37, 66}, {64, 10}, {3, 100}}) {
    const at::Tensor weight = drawn({rows, columns}, 1);
    EXPECT_TRUE(at::equal(transposed_copy(weight), weight.t())) << rows << " x " << columns;
  }
}

/// before + a [m, k] b [k, n], each element by itself: sums over `blocks` of k from zero in order, added up
/// in order.
at::Tensor summed_in_order(const at::Tensor& before, const at::Tensor& a, const at::Tensor& b,
                           const std::vector<std::int64_t>& blocks) {
  const std::int64_t m = a.size(0), n = b.size(1);
  at::Tensor result = before.expand({m, n}).clone();
  const auto of_a = a.accessor<float, 2>(), of_b = b.accessor<float, 2>();
  auto to = result.accessor<float, 2>();
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      std::int64_t q = 0;
      for (const std::int64_t block : blocks) {
        float sum = 0;
        for (const std::int64_t end = q + block; q < end; ++q) sum = std::fma(of_a[i][q], of_b[q][j], sum);
        to[i][j] += sum;
      }
    }
  }
  return result;
}

TEST(VectorProducts, AddUpInOneOrderWhateverTheSizes) {
  if (!has_vector_products()) {
    EXPECT_EQ(linear_kernels(64, 1024, 1024).weight_gradient, By::Aten);
    EXPECT_NE(linear_kernels(32, 256, 256).forward, By::Vectors);
    return;
  }
  const auto of = [](const at::Tensor& t) { return t.mutable_data_ptr<float>(); };
  using Blocks = std::vector<std::int64_t>;
  const auto whole = [](std::int64_t k) { return Blocks{k}; };
  struct Size {
    std::int64_t m, n, k;
    Blocks of_384, of_384_by_rows, of_192;
  };
  for (const auto& [m, n, k, of_384, of_384_by_rows, of_192] :
       {Size{1, 1, 1, whole(1), whole(1), whole(1)},
        {8, 48, 64, whole(64), whole(64), whole(64)},
        {13, 50, 41, whole(41), whole(41), whole(41)},
        {7, 16, 100, whole(100), whole(100), whole(100)},
        {24, 95, 3, whole(3), whole(3), whole(3)},
        {33, 64, 70, whole(70), whole(70), whole(70)},
        {9, 23, 193, whole(193), whole(193), {96, 96, 1}},
        {17, 112, 384, whole(384), whole(384), {192, 192}},
        {40, 61, 385, {193, 192}, {193, 192}, {192, 192, 1}},
        {32, 31, 700, {350, 350}, {350, 350}, {192, 192, 192, 124}},
        {65, 13, 768, {384, 384}, {384, 384}, {192, 192, 192, 192}},
        {3, 97, 784, {384, 200, 200}, {384, 384, 16}, {192, 192, 192, 192, 16}}}) {
    const at::Tensor a = drawn({m, k}, 1), b = drawn({k, n}, 2), bias = drawn({n}, 3), c = at::empty({m, n}),
                     added = drawn({m, n}, 4);
    for (const SumOrder order : {SumOrder::Of384, SumOrder::Of192}) {
      const Blocks &blocks = order == SumOrder::Of384 ? of_384 : of_192,
                   &by_rows = order == SumOrder::Of384 ? of_384_by_rows : of_192;
      const std::string what = std::to_string(m) + " x " + std::to_string(k) + " x " + std::to_string(n) +
                               (order == SumOrder::Of384 ? ", blocks of 384" : ", blocks of 192");
      multiply(order, of(a), of(b), nullptr, of(c), m, k, n);
      EXPECT_TRUE(at::equal(c, summed_in_order(at::zeros({n}), a, b, blocks))) << what;
      multiply(order, of(a), of(b), of(bias), of(c), m, k, n);
      EXPECT_TRUE(at::equal(c, summed_in_order(bias, a, b, blocks))) << what << ", a bias";
      multiply_by_rows(order, of(a), of(b.t().contiguous()), of(bias), 0, of(c), m, k, n);
      EXPECT_TRUE(at::equal(c, summed_in_order(bias, a, b, by_rows))) << what << ", by rows";
      multiply_by_rows(order, of(a), of(b.t().contiguous()), of(added), n, of(c), m, k, n);
      EXPECT_TRUE(at::equal(c, summed_in_order(added, a, b, by_rows))) << what << ", by rows onto a matrix";
    }
  }
  for (const auto& [m, k, n] :
       {std::tuple{1, 1, 1}, {8, 64, 48}, {13, 41, 50}, {7, 40, 64}, {24, 3, 95}, {3, 112, 2800}}) {
    const at::Tensor a = drawn({m, k}, 1), b = drawn({k, n}, 2), sum = drawn({m, n}, 3), c = sum.clone();
    add_outer_products(of(a.t().contiguous()), of(b), of(c), m, k, n);
    EXPECT_TRUE(at::equal(c, summed_in_order(sum, a, b, whole(k)))) << m << " x " << k << " x " << n;
  }
}

/// Compares whole vectors with ATen's kernel for tensors that are dense but not contiguous.
TEST(GeluKernel, HasTheBitsOfAten) {
  if (!has_gelu_kernel()) return;  // ATen's is taken: no AVX-512, or a LibTorch that rounds otherwise
  const at::NoGradGuard no_grad;
  const LayerPtr layer = gelu();
  for (const std::int64_t count : {32, 96, 512, 8192, 16384}) {
    const at::Tensor x = drawn({count}, 1).mul_(4), grad = drawn({count}, 2);
    const auto interleaved = [](const at::Tensor& t) { return t.view({2, -1}).t(); };
    Saved saved;
    const at::Tensor inputs[] = {x};
    const bool needs[] = {true};
    const at::Tensor y = layer->forward(inputs, {}, {}, {}, &saved),
                     evaluated = layer->forward(inputs, {}, {}, {}, nullptr),
                     dx = layer->backward_input(grad, {}, saved, needs)[0];
    EXPECT_TRUE(at::equal(interleaved(y), at::gelu(interleaved(x)))) << count;
    EXPECT_TRUE(at::equal(evaluated, y)) << count;
    EXPECT_TRUE(at::equal(interleaved(dx), at::gelu_backward(interleaved(grad), interleaved(x)))) << count;
    EXPECT_FALSE(saved.tensors[0].is_same(x)) << "the derivative is what is kept";
  }
}

/// Tells whether vector_products.h has ATen's bits in this order, for random matrices of these sizes. Short
/// sums are the same in both orders.
bool has_the_bits(SumOrder order, std::int64_t rows, std::int64_t in, std::int64_t out) {
  const at::Tensor x = drawn({rows, in}, 11), weight = drawn({out, in}, 12), bias = drawn({out}, 13),
                   y = at::empty({rows, out});
  multiply_by_rows(order, x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                   bias.const_data_ptr<float>(), 0, y.mutable_data_ptr<float>(), rows, in, out);
  return at::equal(y, at::addmm(bias, x, weight.t()));
}

/// docs/benchmarks.md says what was measured; this says that it is what runs, on every processor whose BLAS
/// adds in an order that vector_products.h has. Some add products of other sizes in other orders, and then
/// only the order of the product that is tried first counts.
TEST(LinearKernels, AreTakenWhereTheyHaveTheBits) {
  const at::NoGradGuard no_grad;
  const IntraOpThreads one(1);  // with more threads a BLAS divides the work differently
  std::optional<SumOrder> first;
  for (const SumOrder order : {SumOrder::Of384, SumOrder::Of192})
    if (has_vector_products() && !first && has_the_bits(order, 32, 700, 64)) first = order;
  const char* name = !first ? "none that is known" : *first == SumOrder::Of384 ? "Of384" : "Of192";
  std::printf("order of sums: %s\n", name);
  for (const auto& [rows, in, out] : {std::tuple{8, 64, 64}, {32, 256, 256}, {64, 1024, 1024}}) {
    const LinearKernels kernels = linear_kernels(rows, in, out);
    EXPECT_EQ(kernels.forward == By::Vectors, first && has_the_bits(*first, rows, in, out)) << rows;
    if (kernels.forward != By::Vectors) continue;
    EXPECT_EQ(kernels.input_gradient, rows == 64 ? By::Aten : By::Vectors)
        << rows << ": large ones by the BLAS";
    EXPECT_EQ(kernels.weight_gradient, By::Vectors) << rows;
    EXPECT_EQ(kernels.copy, rows == 8) << rows;
    EXPECT_EQ(kernels.column_sums, rows != 64) << rows;
  }
}

TEST(LinearKernels, ALayerHasACopyWhereItIsRead) {
  const at::NoGradGuard no_grad;
  const Matrices m = matrices(8, 64, 48);
  const LayerPtr layer = linear(64, 48);
  const std::vector<at::Tensor> plain{m.weight, m.bias};
  const std::vector<at::Tensor> copies = layer->copies({8, 64}, plain);
  if (!linear_kernels(8, 64, 48).copy) {
    EXPECT_TRUE(copies.empty());
    return;
  }
  ASSERT_EQ(copies.size(), 1);
  // A copy that is passed is read: another copy makes another result.
  const std::vector<at::Tensor> inputs{m.x}, other{m.weight, m.bias, copies[0].mul(2)};
  EXPECT_FALSE(at::equal(layer->forward(inputs, plain, {}, {}, nullptr),
                         layer->forward(inputs, other, {}, {}, nullptr)));
  EXPECT_TRUE(layer->copies({8, 64}, std::vector{m.weight.to(at::kDouble), m.bias.to(at::kDouble)}).empty());
  EXPECT_TRUE(
      linear(1024, 1024)->copies({32, 1024}, std::vector{drawn({1024, 1024}, 1), drawn({1024}, 2)}).empty());
}

}  // namespace
}  // namespace millrace
