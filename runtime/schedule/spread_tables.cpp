#include <algorithm>

#include "runtime/schedule/generators.h"

namespace millrace {

/// A cycle is the microbatches in which each replica of each stage has its turn. Of one cycle after the
/// other, all stages run forward in their order, then backward. So a rank looks up its tables for all samples
/// of the cycle before it computes on its own share. While it computes the layers beside the tables, vectors
/// travel. All ranks keep to one order (cycle, pass, stage, microbatch), and dependencies go along it: none
/// waits in a circle.
std::vector<Order> spread_tables(const PipelineShape& shape) {
  std::vector<Order> ranks(shape.num_ranks());
  const int cycle = shape.replica_cycle();
  for (int first = 0; first < shape.microbatches; first += cycle) {
    const int end = std::min(first + cycle, shape.microbatches);
    const auto run = [&](Op op, int stage) {
      for (int m = first; m < end; ++m)
        ranks[shape.rank_of(StageId(stage), MicrobatchId(m)).value].push_back(computation(op, stage, m));
    };
    for (int s = 0; s < shape.num_stages(); ++s) run(Op::Forward, s);
    for (int s = shape.num_stages(); s-- > 0;) run(Op::Backward, s);
  }
  return ranks;
}

}  // namespace millrace
