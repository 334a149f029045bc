// Interleaved 1F1B and its zero-bubble variant: place r holds stages r, r + p, r + 2p ...
#include <algorithm>

#include "runtime/schedule/generators.h"

namespace millrace {
namespace {

/// The (chunk, microbatch) sequence that every place forwards: round by round, in each all microbatches of
/// chunk 0, then of chunk 1 ... The backward sequence has the chunks in reverse.
std::vector<std::pair<int, int>> chunk_steps(const std::vector<int>& groups, int chunks, bool backward) {
  std::vector<std::pair<int, int>> steps;
  int first = 0;
  for (int size : groups) {
    for (int c = 0; c < chunks; ++c)
      for (int m = first; m < first + size; ++m) steps.emplace_back(backward ? chunks - 1 - c : c, m);
    first += size;
  }
  return steps;
}

/// `warm_up` forwards, then pairs of forward and backward, then backwards. With a split backward: a W for
/// each I from the `lag`-th on, the rest at the end.
Order interleaved_place(int place, int places, int chunks, int microbatches, int warm_up, bool split,
                        int lag) {
  const auto groups = group_sizes(places, microbatches);
  const auto forward = chunk_steps(groups, chunks, false), backward = chunk_steps(groups, chunks, true);
  const int total = chunks * microbatches;
  warm_up = std::min(total, warm_up);
  Order order;
  const auto add = [&](Op op, const std::pair<int, int>& step) {
    order.push_back(computation(op, step.first * places + place, step.second));
  };
  for (int k = 0; k < total + warm_up; ++k) {
    if (k < total) add(Op::Forward, forward[k]);
    if (k < warm_up) continue;
    add(split ? Op::BackwardInput : Op::Backward, backward[k - warm_up]);
    if (split && k - warm_up >= lag) add(Op::BackwardWeight, backward[k - warm_up - lag]);
  }
  for (int k = std::max(0, total - lag); split && k < total; ++k) add(Op::BackwardWeight, backward[k]);
  return order;
}

}  // namespace

std::vector<int> group_sizes(int places, int microbatches) {
  const int count = std::max(1, microbatches / places);
  std::vector<int> sizes(count, microbatches / count);
  for (int i = 0; i < microbatches % count; ++i) ++sizes[i];
  return sizes;
}

/// arXiv 2104.04473, section 2.2. Warm-up of place r: all but the last chunk of the first round, and two
/// forwards for each later place; with one chunk it is 1F1B.
std::vector<Order> interleaved(int places, int chunks, int microbatches) {
  const int first = group_sizes(places, microbatches)[0];
  std::vector<Order> orders;
  for (int r = 0; r < places; ++r) {
    const int warm_up = (chunks - 1) * first + (chunks > 1 ? 2 : 1) * (places - 1 - r);
    orders.push_back(interleaved_place(r, places, chunks, microbatches, warm_up, false, 0));
  }
  return orders;
}

/// Makes the interleaved order for ZB-H1 (PyTorch's InterleavedZeroBubble): half the warm-up between places,
/// W from the r-th I on.
std::vector<Order> interleaved_h1(int places, int chunks, int microbatches) {
  const int first = group_sizes(places, microbatches)[0];
  std::vector<Order> orders;
  for (int r = 0; r < places; ++r) {
    const int warm_up = (chunks - 1) * first + (places - 1 - r);
    orders.push_back(interleaved_place(r, places, chunks, microbatches, warm_up, true, r));
  }
  return orders;
}

}  // namespace millrace
