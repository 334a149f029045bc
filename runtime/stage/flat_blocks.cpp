#include "runtime/stage/flat_blocks.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>

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
    const at::Tensor wide = flat.to(at::kDouble);
    on_device_.emplace_back(index, at::sum(wide.mul(wide)));
  } else if (flat.scalar_type() == at::kDouble) {
    sums_[index] = square_sum(flat.const_data_ptr<double>(), flat.numel());
  } else {
    sums_[index] = square_sum(flat.const_data_ptr<float>(), flat.numel());
  }
}

std::vector<double> SquareSums::take() {
  if (!on_device_.empty()) {
    std::vector<at::Tensor> parts;
    for (auto& [index, sum] : on_device_) parts.push_back(std::move(sum));
    const at::Tensor all = at::stack(parts).cpu();
    for (std::size_t i = 0; i < parts.size(); ++i)
      sums_[on_device_[i].first] = all.const_data_ptr<double>()[i];
    on_device_.clear();
  }
  return std::exchange(sums_, std::vector<double>(sums_.size(), 0.0));
}

std::vector<double> square_sums_by_slot(const ParameterStore& store, const at::Tensor& flat) {
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
