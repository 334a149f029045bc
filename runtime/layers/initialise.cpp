#include "runtime/layers/initialise.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/random.h"

namespace millrace {

std::vector<at::Tensor> initialise(const std::vector<ParameterSpec>& specs, std::uint64_t seed,
                                   const std::string& layer_name) {
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : specs) {
    if (spec.value.defined()) {
      values.push_back(spec.value.clone(at::MemoryFormat::Contiguous));
      continue;
    }
    if (spec.is_counter) {
      values.push_back(at::zeros(spec.shape, at::kLong));
      continue;
    }
    at::Tensor value = at::empty(spec.shape, at::kFloat);
    auto generator = at::detail::createCPUGenerator(derive_seed(seed, layer_name + "." + spec.name));
    switch (spec.init) {
      case Init::Zeros:
        value.zero_();
        break;
      case Init::Ones:
        value.fill_(1);
        break;
      case Init::Uniform:
        value.uniform_(-spec.a, spec.a, generator);
        break;
      case Init::Normal:
        value.normal_(spec.mean, spec.a, generator);
        break;
      case Init::Constant:
        value.fill_(spec.a);
        break;
    }
    if (spec.zero_row >= 0) value.select(0, spec.zero_row).zero_();
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace millrace
