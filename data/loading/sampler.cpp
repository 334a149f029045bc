#include <numeric>

#include "data/loading/dataset.h"
#include "runtime/base/random.h"

namespace millrace {

std::vector<std::int64_t> epoch_order(std::int64_t size, std::uint64_t seed, std::int64_t epoch,
                                      bool shuffle) {
  std::vector<std::int64_t> order(size);
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  RandomStream random(derive_seed(seed, "order", static_cast<std::uint64_t>(epoch)));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace millrace
