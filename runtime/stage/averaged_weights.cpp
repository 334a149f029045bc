#include "runtime/stage/averaged_weights.h"

#include <utility>

namespace millrace {

bool AveragedWeights::use(bool averages) {
  if (std::exchange(in_use_, averages) == averages) return false;
  const at::Tensor weights = parts_.store.flat_weights();
  if (!averages) {
    if (!trained_.defined()) return false;
    weights.copy_(std::exchange(trained_, {}));
  } else {
    for (const JobRule& one : parts_.rules.all) {
      const at::Tensor averaged = one.rule->averaged_weights();
      if (!averaged.defined()) continue;
      if (!trained_.defined()) trained_ = weights.clone();
      const at::Tensor own = one.of(parts_.store, weights);
      const FlatRange shard = one.rule->shard();
      own.narrow(0, shard.begin, shard.size()).copy_(averaged);
      one.rule->all_gather_(own);
    }
    if (!trained_.defined()) return false;
  }
  parts_.store.weights_changed();
  return true;
}

}  // namespace millrace
