// The three products of linear layers, by ATen and by runtime/kernels/linear_kernels.h, by turns.
// `scripts/benchmark linear [ROUNDS]`.
#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>

#include "benchmarks/thread_seconds.h"
#include "runtime/base/median.h"
#include "runtime/kernels/linear_kernels.h"

using namespace millrace;

namespace {

struct Layer {
  at::Tensor x, weight, bias, copy, grad, weight_sum, bias_sum;
};

enum Product : std::size_t { kForward, kInputGradient, kWeightGradient, kProducts };

at::Tensor run(Layer& layer, Product product, bool ours) {
  switch (product) {
    case kForward:
      return ours ? linear_forward(layer.x, layer.weight, layer.bias, layer.copy)
                  : at::addmm(layer.bias, layer.x, layer.weight.t());
    case kInputGradient:
      return ours ? linear_input_gradient(layer.grad, layer.weight) : at::mm(layer.grad, layer.weight);
    default:
      if (ours) {
        add_linear_gradients_(layer.x, layer.grad, layer.weight_sum, layer.bias_sum);
      } else {
        layer.weight_sum.addmm_(layer.grad.t(), layer.x);
        layer.bias_sum.add_(at::sum(layer.grad, 0));
      }
      return layer.weight_sum;
  }
}

void measure(std::int64_t rows, std::int64_t in, std::int64_t out, int rounds) {
  constexpr std::int64_t kElements = 1
                                     << 20;  // elements of all weights: with their sums 8 MiB, a small model
  std::vector<Layer> layers(
      static_cast<std::size_t>(std::clamp<std::int64_t>(kElements / (in * out), 2, 64)));
  const LinearKernels kernels = linear_kernels(rows, in, out);
  for (Layer& l : layers) {
    l = {at::randn({rows, in}),  at::randn({out, in}), at::randn({out}), {},
         at::randn({rows, out}), at::randn({out, in}), at::randn({out})};
    if (kernels.copy) l.copy = transposed_copy(l.weight);
  }
  std::array<std::array<std::vector<double>, 2>, kProducts> samples;
  std::array<bool, kProducts> same{true, true, true};
  for (int round = 0; round < rounds; ++round) {
    for (const bool ours : {false, true}) {
      const auto timed = [&](std::size_t product, const std::function<void()>& pass) {
        const double start = thread_seconds();
        pass();
        samples[product][ours ? 1 : 0].push_back((thread_seconds() - start) / double(layers.size()));
      };
      timed(kForward, [&] {
        for (Layer& layer : layers) run(layer, kForward, ours);
      });
      // Runs from the last layer to the first, as a backward pass does.
      timed(kInputGradient, [&] {
        for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) run(*layer, kInputGradient, ours);
      });
      timed(kWeightGradient, [&] {
        for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer)
          run(*layer, kWeightGradient, ours);
      });
    }
  }
  for (std::size_t product = 0; product < kProducts; ++product) {
    Layer one = layers[0], other = layers[0];
    other.weight_sum = one.weight_sum.clone(), other.bias_sum = one.bias_sum.clone();
    same[product] = at::equal(run(one, Product(product), false), run(other, Product(product), true)) &&
                    at::equal(one.bias_sum, other.bias_sum);
  }
  std::printf("%4ld x %4ld x %4ld", long(rows), long(in), long(out));
  const std::array<By, kProducts> by{kernels.forward, kernels.input_gradient, kernels.weight_gradient};
  for (std::size_t product = 0; product < kProducts; ++product) {
    const double aten = median(samples[product][0]), own = median(samples[product][1]);
    const char* whose = by[product] == By::Vectors ? "ours" : by[product] == By::Blas ? "BLAS" : "ATen";
    std::printf(" | %9.1f %9.1f %5.2f %s%s", aten * 1e6, own * 1e6, aten / own, whose,
                same[product] ? "" : " other bits");
  }
  std::puts("");
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  std::printf(
      "us of CPU of a layer, medians of %d rounds: ATen's functions, ours, their ratio, whose kernel it is\n"
      "rows x   in x  out | forward                      | gradient of the input        | of weights and "
      "bias\n",
      rounds);
  for (const auto& [in, out] : {std::pair{16, 16},
                                {64, 64},
                                {256, 256},
                                {512, 512},
                                {768, 3072},
                                {1024, 1024},
                                {1024, 4096},
                                {4096, 4096}}) {
    for (const std::int64_t rows : {8, 16, 32, 48, 64, 112, 128}) measure(rows, in, out, rounds);
  }
}
