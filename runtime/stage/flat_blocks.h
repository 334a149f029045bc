// Divides flat tensors into blocks. Norms are summed block by block, and rule state is sharded by blocks. A
// block begins at its parameter's first element or at a multiple of kBlockElements after it. So sums depend
// neither on the plan nor on which rank has which block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/stage/parameter_store.h"

namespace millrace {

// 64 KiB in float32: a block stays in the cache for several passes
constexpr std::int64_t kBlockElements = 16'384;

struct FlatBlock {
  std::size_t slot = 0;
  FlatRange range;  ///< in the flat tensor; the padding after a parameter belongs to its last block
};

/// Returns the blocks in the order of the slots. `elements` is the length of the flat tensor.
std::vector<FlatBlock> blocks_of(std::span<const ParameterSlot> slots, std::int64_t elements);

/// Returns the range of shard `shard`, one of `shards` nearly equal runs of blocks.
FlatRange shard_of(std::span<const FlatBlock> blocks, std::int64_t elements, int shard, int shards);

/// Sums of squares, in double, of parts of tensors. A device computes its sums in one piece of work, and they
/// are read at once.
class SquareSums {
 public:
  explicit SquareSums(std::size_t count) : sums_(count, 0.0) {}
  /// Sums the squares of `flat` [n], contiguous; on a device not before take().
  void put(std::size_t index, const at::Tensor& flat);
  void put(std::size_t index, double sum) { sums_[index] = sum; }
  /// Returns the sums by index. Waits for the device.
  std::vector<double> take();

 private:
  std::vector<double> sums_;
  std::pair<std::vector<std::size_t>, std::vector<at::Tensor>> on_device_;
};

/// Returns the sum of squares of each slot, for a tensor laid out like the weights. On the CPU the sums of
/// its blocks are added in their order.
std::vector<double> square_sums_by_slot(const ParameterStore& store, const at::Tensor& flat);

}  // namespace millrace
