// PipeDream: one forward, one backward for ever, updates in between, no flush.
#include <algorithm>

#include "runtime/schedule/generators.h"

namespace millrace {

/// 1F1B without a flush; an update after every `update_every` backwards. With 1: PipeDream (SOSP'19, sections
/// 3.2-3.3), with or without vertical sync: the order is the same, the versions differ. With as many as are
/// in flight, or more: PipeDream-2BW (arXiv 2006.09503).
Order asynchronous(const Place& place) {
  const int warm_up = std::min(place.microbatches, place.warm_up);
  Order order;
  for (int k = 0; k < place.microbatches + warm_up; ++k) {
    if (k < place.microbatches) order.push_back(computation(Op::Forward, place.stage, k));
    if (k < warm_up) continue;
    order.push_back(computation(Op::Backward, place.stage, k - warm_up));
    if ((k - warm_up + 1) % place.update_every == 0)
      order.push_back(computation(Op::Update, place.stage, k - warm_up));
  }
  return order;
}

int least_update_every(const PipelineShape& shape) {
  const int cycle = shape.replica_cycle();
  int in_flight = 1;
  for (int s = 0; s < shape.num_stages(); ++s)
    in_flight = std::max(in_flight, (warm_up_of(shape, StageId(s)) + 1) * shape.replicas(StageId(s)));
  return (in_flight + cycle - 1) / cycle * cycle;
}

}  // namespace millrace
