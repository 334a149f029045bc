// Zero-bubble schedules with one stage per rank: the backward in two halves, arXiv 2401.10241.
#include <algorithm>

#include "runtime/schedule/generators.h"

namespace millrace {
namespace {

/// `warm_up` forwards, then pairs (F, I), from the `lag`-th pair on also one W per pair, the rest of the W at
/// the end. A rank stashes at most warm_up + 1 + lag microbatches.
Order pairs_with_lagging_weights(const Place& place, int warm_up, int lag) {
  const int m = place.microbatches;
  warm_up = std::min(m, warm_up);
  Order order;
  for (int k = 0; k < m + warm_up; ++k) {
    if (k < m) order.push_back(computation(Op::Forward, place.stage, k));
    if (k < warm_up) continue;
    order.push_back(computation(Op::BackwardInput, place.stage, k - warm_up));
    if (k - warm_up >= lag) order.push_back(computation(Op::BackwardWeight, place.stage, k - warm_up - lag));
  }
  for (int k = std::max(0, m - lag); k < m; ++k)
    order.push_back(computation(Op::BackwardWeight, place.stage, k));
  return order;
}

}  // namespace

/// Section 2.2: every rank stashes as much as the first rank of 1F1B.
Order zero_bubble_h1(const Place& place) {
  return pairs_with_lagging_weights(place, place.warm_up, place.most_warm_up - place.warm_up);
}

/// Section 2.3: twice the warm-up, so that with F = I = W no rank waits between its first and last action.
Order zero_bubble_h2(const Place& place) {
  return pairs_with_lagging_weights(place, 2 * place.warm_up, 2 * (place.most_warm_up - place.warm_up));
}

}  // namespace millrace
