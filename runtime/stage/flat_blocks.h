// Flat tensors in blocks: the grid on which norms are summed and rule state is shared out. A block begins at
// its parameter's first element or a multiple of kBlockElements after it, so that sums do not depend on the
// plan or on who has which block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/stage/parameter_store.h"

namespace millrace {

constexpr std::int64_t kBlockElements = 16'384;  // 64 KiB: what several passes read stays in the cache

struct FlatRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

struct FlatBlock {
  std::size_t slot = 0;
  FlatRange range;  ///< of the flat tensor; the padding after a parameter belongs to its last block
};

/// In the order of the slots. `elements`: of the flat tensor.
std::vector<FlatBlock> blocks_of(std::span<const ParameterSlot> slots, std::int64_t elements);

/// Shard `shard` of `shards` nearly equal runs of blocks.
FlatRange shard_of(std::span<const FlatBlock> blocks, std::int64_t elements, int shard, int shards);

/// Sums of squares, in double, of parts of tensors; on a device read all at once.
class SquareSums {
 public:
  explicit SquareSums(std::size_t count) : sums_(count, 0.0) {}
  void put(std::size_t index, const at::Tensor& flat);  ///< [n], contiguous
  void put(std::size_t index, double sum) { sums_[index] = sum; }
  /// Waits for the device.
  std::vector<double> take();

 private:
  std::vector<double> sums_;
  std::vector<std::pair<std::size_t, at::Tensor>> on_device_;
};

/// By slot, of a tensor laid out like the weights: its blocks' sums in their order.
std::vector<double> square_sums_by_slot(const ParameterStore& store, const at::Tensor& flat);

}  // namespace millrace
