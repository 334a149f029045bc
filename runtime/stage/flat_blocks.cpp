#include "runtime/stage/flat_blocks.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>

#include "runtime/kernels/update_kernels.h"

namespace millrace {

std::vector<FlatBlock> blocks_of(std::span<const ParameterSlot> slots, std::int64_t elements) {
  std::vector<FlatBlock> blocks;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    const std::int64_t end = s + 1 < slots.size() ? slots[s + 1].offset : elements;
    for (std::int64_t at = slots[s].offset; at < end; at += kBlockElements)
      blocks.push_back({s, {at, std::min(end, at + kBlockElements)}});
  }
  return blocks;
}

FlatRange shard_of(std::span<const FlatBlock> blocks, std::int64_t elements, int shard, int shards) {
  const auto border = [&](int index) {
    if (index >= shards) return elements;
    const std::int64_t wanted = elements / shards * index;
    const auto block =
        std::ranges::find_if(blocks, [&](const FlatBlock& b) { return b.range.begin >= wanted; });
    return block == blocks.end() ? elements : block->range.begin;
  };
  return {border(shard), border(shard + 1)};
}

void SquareSums::put(std::size_t index, const at::Tensor& flat) {
  if (!flat.device().is_cpu()) {
    on_device_.first.push_back(index);
    on_device_.second.push_back(flat);
  } else if (flat.scalar_type() == at::kDouble) {
    sums_[index] = square_sum(flat.const_data_ptr<double>(), flat.numel());
  } else {
    sums_[index] = square_sum(flat.const_data_ptr<float>(), flat.numel());
  }
}

std::vector<double> SquareSums::take() {
  if (const auto [indices, parts] = std::exchange(on_device_, {}); !parts.empty()) {
    const at::Tensor norms = to_host(at::stack(at::_foreach_norm(parts, 2, at::kDouble)));
    const double* norm = norms.const_data_ptr<double>();
    for (std::size_t i = 0; i < parts.size(); ++i) sums_[indices[i]] = norm[i] * norm[i];
  }
  return std::exchange(sums_, std::vector<double>(sums_.size(), 0.0));
}

std::vector<double> square_sums_by_slot(const ParameterStore& store, const at::Tensor& flat) {
  if (!flat.device().is_cpu()) {
    SquareSums sums(store.slots().size());
    for (std::size_t s = 0; s < store.slots().size(); ++s) {
      const ParameterSlot& slot = store.slots()[s];
      if (slot.elements > 0) sums.put(s, flat.narrow(0, slot.offset, slot.elements));
    }
    return sums.take();
  }
  const std::vector<FlatBlock> blocks = blocks_of(store.slots(), flat.numel());
  SquareSums sums(blocks.size());
  for (std::size_t b = 0; b < blocks.size(); ++b)
    sums.put(b, flat.narrow(0, blocks[b].range.begin, blocks[b].range.size()));
  const std::vector<double> by_block = sums.take();
  std::vector<double> by_slot(store.slots().size(), 0.0);
  for (std::size_t b = 0; b < blocks.size(); ++b) by_slot[blocks[b].slot] += by_block[b];
  return by_slot;
}

}  // namespace millrace
