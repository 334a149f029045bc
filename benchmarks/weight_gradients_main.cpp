// Weight gradients of linear layers that lie in memory, not in caches: ATen's (the BLAS) and
// add_outer_products, by turns. `scripts/benchmark weight-gradients [ROUNDS]`.
#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include "benchmarks/thread_seconds.h"
#include "runtime/base/median.h"
#include "runtime/layers/vector_products.h"

using namespace millrace;

namespace {

struct Layer {
  at::Tensor x, grad, sum, own_sum;
};

void measure(std::int64_t rows, std::int64_t in, std::int64_t out, int rounds) {
  constexpr std::int64_t kElements = 1 << 23;  // of all sums: 32 MiB
  std::vector<Layer> layers(
      static_cast<std::size_t>(std::clamp<std::int64_t>(kElements / (in * out), 2, 16)));
  for (Layer& layer : layers) {
    layer = {at::randn({rows, in}), at::randn({rows, out}), at::randn({out, in}), {}};
    layer.own_sum = layer.sum.clone();
  }
  std::array<std::vector<double>, 2> samples;
  bool same = true;
  for (int round = 0; round < rounds; ++round) {
    const double start = thread_seconds();
    for (Layer& layer : layers) layer.sum.addmm_(layer.grad.t(), layer.x);
    const double turn = thread_seconds();
    for (Layer& layer : layers)
      add_outer_products(layer.grad.const_data_ptr<float>(), layer.x.const_data_ptr<float>(),
                         layer.own_sum.mutable_data_ptr<float>(), out, rows, in);
    const double end = thread_seconds();
    samples[0].push_back((turn - start) / double(layers.size()));
    samples[1].push_back((end - turn) / double(layers.size()));
    for (const Layer& layer : layers) same = same && at::equal(layer.sum, layer.own_sum);
  }
  const double aten = median(samples[0]), own = median(samples[1]);
  std::printf("%4ld x %5ld x %5ld %10.0f %10.0f %8.2f %10s\n", long(rows), long(in), long(out), aten * 1e6,
              own * 1e6, aten / own, same ? "same" : "other");
}

}  // namespace

int main(int argc, char** argv) {
  if (!has_vector_products()) {
    std::puts("benchmark weight-gradients: this processor has no AVX-512; all are ATen's");
    return 0;
  }
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  std::printf(
      "us of CPU, medians of %d rounds\nrows x in x out          ATen  by outer    ratio       bits\n",
      rounds);
  for (const std::int64_t rows : {8, 32, 40, 48, 64, 96, 112, 128, 256}) {
    for (const auto& [in, out] : {std::pair{512, 512}, {768, 768}, {1024, 1024}, {4096, 1024}, {4096, 4096}})
      measure(rows, in, out, rounds);
  }
}
