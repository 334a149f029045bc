// Divides flat tensors into blocks. Norms are summed block by block, and rule state is sharded by blocks. A
// block starts at its parameter's first element or at a multiple of kBlockElements after it. Sums therefore
// depend neither on the plan nor on which rank has which block.
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

/// Returns the range of shard `shard`: one of `shards` runs of consecutive blocks of nearly equal length.
FlatRange shard_of(std::span<const FlatBlock> blocks, std::int64_t elements, int shard, int shards);

/// Sums of squares, in double, of parts of tensors. A device computes all sums in one batch, and they are
/// read together.
class SquareSums {
 public:
  explicit SquareSums(std::size_t count) : sums_(count, 0.0) {}
  /// Adds the squares of `flat` [n], contiguous, to the sums; on a device they are computed in take().
  void put(std::size_t index, const at::Tensor& flat);
  void put(std::size_t index, double sum) { sums_[index] = sum; }
  /// Returns the sums by index. Waits for the device.
  std::vector<double> take();

 private:
  std::vector<double> sums_;
  std::pair<std::vector<std::size_t>, std::vector<at::Tensor>> on_device_;
};

/// Returns the sum of squares of each slot, for a tensor with the weights' layout. On the CPU a slot's block
/// sums are added in order.
std::vector<double> square_sums_by_slot(const ParameterStore& store, const at::Tensor& flat);

}  // namespace millrace
