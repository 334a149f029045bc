// GPipe and 1F1B with flush.
#include <algorithm>

#include "runtime/schedule/generators.h"

namespace millrace {

namespace {
int all_replicas(const PipelineShape& shape) {
  int all = 0;
  for (const auto& ranks : shape.ranks_of_stage) all += static_cast<int>(ranks.size());
  return all;
}
}  // namespace

int warm_up_of(const PipelineShape& shape, StageId stage) {
  int before = 0;
  for (int s = 0; s < stage.value; ++s) before += shape.replicas(StageId(s));
  return (all_replicas(shape) - 1 - before) / shape.replicas(stage);
}

int most_warm_up(const PipelineShape& shape) {
  int most = 0, here_and_after = all_replicas(shape);
  for (int s = 0; s < shape.num_stages(); ++s) {
    most = std::max(most, (here_and_after - 1) / shape.replicas(StageId(s)));
    here_and_after -= shape.replicas(StageId(s));
  }
  return most;
}

/// All forwards, all backwards, both in microbatch order. arXiv 1811.06965.
Order gpipe(const Place& place) {
  Order order;
  for (int m = 0; m < place.microbatches; ++m) order.push_back(computation(Op::Forward, place.stage, m));
  for (int m = 0; m < place.microbatches; ++m) order.push_back(computation(Op::Backward, place.stage, m));
  return order;
}

/// Warm-up forwards, then one forward, one backward, then the remaining backwards. PipeDream-Flush, arXiv
/// 2006.09503.
Order one_f_one_b(const Place& place) {
  const int warm_up = std::min(place.microbatches, place.warm_up);
  Order order;
  for (int k = 0; k < place.microbatches + warm_up; ++k) {
    if (k < place.microbatches) order.push_back(computation(Op::Forward, place.stage, k));
    if (k >= warm_up) order.push_back(computation(Op::Backward, place.stage, k - warm_up));
  }
  return order;
}

}  // namespace millrace
