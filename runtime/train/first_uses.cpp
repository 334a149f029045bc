#include "runtime/train/first_uses.h"

#include "runtime/comm/nccl_communicator.h"

namespace millrace {
namespace {

// In the second run LibTorch's allocators adapt to memory that persists between runs: rule states, batches.
constexpr int kFirstRuns = 2;

}  // namespace

void FirstUses::begin(Communicator& world, const std::vector<const BatchSource*>& sources, std::int64_t from,
                      std::int64_t to) {
  if (!world.is_ordered()) return;
  bool is_new = runs_ < kFirstRuns;
  if (is_new) ++runs_;
  for (std::size_t array = 0; array < sources.size(); ++array) {
    for (std::int64_t position = from; position < to; ++position) {
      BatchExtent extent = sources[array]->extent(position);
      is_new = seen_.emplace(array, extent.samples, std::move(extent.lengths)).second || is_new;
    }
  }
  through_host(world, is_new ? kAllMessages : 0);
}

bool sizes_vary(const BatchSource& source, std::int64_t from, std::int64_t to) {
  const BatchExtent first = source.extent(from);
  for (std::int64_t position = from + 1; position < to; ++position) {
    const BatchExtent other = source.extent(position);
    if (other.samples != first.samples || other.lengths != first.lengths) return true;
  }
  return false;
}

}  // namespace millrace
