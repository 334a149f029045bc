#include "optimizer/planner/every_cut_search.h"

#include <algorithm>

namespace millrace {

double least_busy_if_it_may_fit(const StageBounds& bounds, const CutSpace& space, const Layout& layout, int s,
                                int a, int b) {
  const bool may_fit = bounds.fits(space, layout, s, a, b, StageBounds::Messages::None);
  return may_fit ? bounds.least_busy(space, layout, s, a, b) : kInfinite;
}

void fill_bottlenecks(MinimaxTable& table, const StageBounds& bounds, const CostModel& model,
                      const CutSpace& space, const Layout& layout) {
  table.fill(
      space, layout.stages(), model.num_sheets() == 1,
      [&](int s, int a, int b) { return bounds.busy_if_it_fits(space, layout, s, a, b); },
      [&](int s, int a, int b) { return least_busy_if_it_may_fit(bounds, space, layout, s, a, b); });
}

bool EveryCutSearch::run(const CutSpace& space, const Layout& layout, long& places) {
  fill_bottlenecks(table_, bounds_, model_, space, layout);
  cuts_.clear();
  places_ = places;
  cut_short_ = false;
  if (candidates_.worth(layout, table_.least())) descend(space, layout, 0, 0, 0, 0);
  places = places_;
  return !cut_short_;
}

// Stage s gets layers from state `a` on. `fill` is a lower bound of the seconds before its first forward,
// `drain` of the seconds in earlier stages after its last backward.
void EveryCutSearch::descend(const CutSpace& space, const Layout& layout, int s, int a, double fill,
                             double drain) {
  const bool asynchronous = is_asynchronous(layout.kind);
  const int last = space.last();
  const auto worth = [&](double bound) { return candidates_.worth(layout, bound); };
  if (s + 1 == layout.stages()) {
    if (!bounds_.fits(space, layout, s, a, last)) return;
    const double own = asynchronous ? 0 : bounds_.reduce_and_update(space, layout, s, a, last);
    if (!worth(fill + bounds_.busy(space, layout, s, a, last) + std::max(drain, own))) return;
    if (candidates_.spent()) {
      cut_short_ = true;
    } else {
      candidates_.consider(space, layout, cuts_);
    }
    return;
  }
  // If a stage never gets quicker with a later end, the loop can stop at the first end that takes too long.
  const bool ordered = space.is_linear() || model_.num_sheets() == 1;
  for (int b = a + 1; b < last; ++b) {
    if (places_ <= 0) cut_short_ = true;
    if (cut_short_) return;
    --places_;
    if (ordered && !worth(fill + bounds_.least_busy(space, layout, s, a, b))) break;
    if (!space.nested(a, b) || !worth(table_.at(s + 1, b))) continue;
    const double stage = bounds_.busy_if_it_fits(space, layout, s, a, b);
    if (stage == kInfinite) {
      if (!bounds_.fits(space, layout, s, a, b, StageBounds::Messages::None)) break;
      continue;
    }
    const double own = asynchronous ? 0 : bounds_.reduce_and_update(space, layout, s, a, b);
    if (!worth(fill + stage + std::max(drain, own))) continue;
    double next_fill = 0;
    double next_drain = 0;
    // A split backward leaves the weight gradients for the drain.
    const bool whole = !traits_of(layout.kind).splits_backward && layout.chunks == 1;
    // A turn's fill and drain may overlap with the turns before and after it.
    if (!asynchronous && model_.graph().turns.empty() && space.next_bytes(b) >= 0) {
      const double hop = StageBounds::hop(layout, s, space.next_bytes(b));
      double forward = 0;
      double backward = 0;
      for (int sheet : layout.sheets[s]) {
        forward = std::max(forward, space.forward_s(sheet, a, b));
        backward = std::max(backward, space.backward_s(sheet, a, b));
      }
      // With different devices the first microbatch may meet a quicker replica.
      if (layout.sheets[s].size() > 1) forward = backward = 0;
      next_fill = fill + forward + hop;
      if (whole) next_drain = backward + hop + std::max(drain, own);
    }
    if (!worth(next_fill + table_.at(s + 1, b) + next_drain)) continue;
    cuts_.push_back(b);
    descend(space, layout, s + 1, b, next_fill, next_drain);
    cuts_.pop_back();
  }
}

}  // namespace millrace
