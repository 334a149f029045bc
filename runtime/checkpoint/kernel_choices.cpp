#include "runtime/checkpoint/kernel_choices.h"

#include <ATen/ops/empty.h>

namespace millrace {
namespace {

std::string prefix_of(int jobs) {
  return "kernels/" + std::to_string(jobs) + "/";
}

}  // namespace

void add_kernel_choices(NamedTensors& state, const KernelChoices& choices, int jobs,
                        std::span<const std::string> layers) {
  const auto by_layer = choices.by_layer();
  for (const std::string& layer : layers) {
    const auto found = by_layer.find(layer);
    if (found == by_layer.end()) continue;
    const at::Tensor rows = at::empty({std::ssize(found->second), 2}, at::kLong);
    auto* value = rows.mutable_data_ptr<std::int64_t>();
    for (const auto& [key, fused] : found->second) {
      *value++ = static_cast<std::int64_t>(key);
      *value++ = fused;
    }
    state.emplace_back(prefix_of(jobs) + layer, rows);
  }
}

void load_kernel_choices(const Checkpoint& checkpoint, KernelChoices& choices, int jobs) {
  const std::string prefix = prefix_of(jobs);
  for (const SafetensorsFile& shard : checkpoint.shards) {
    for (const std::string& name : shard.names()) {
      if (!name.starts_with(prefix)) continue;
      const at::Tensor rows = shard.tensor(name);
      if (rows.dim() != 2 || rows.size(1) != 2 || rows.scalar_type() != at::kLong) continue;
      const at::Tensor whole = rows.contiguous();
      const auto* value = whole.const_data_ptr<std::int64_t>();
      for (std::int64_t i = 0; i < rows.size(0); ++i)
        choices.recall(name.substr(prefix.size()), static_cast<std::uint64_t>(value[2 * i]),
                       value[2 * i + 1] != 0);
    }
  }
}

}  // namespace millrace
