#include "optimizer/planner/stage_bounds.h"

#include <algorithm>

#include "optimizer/planner/found.h"

namespace millrace {
StageMemory StageBounds::parts(const CutSpace& space, const Layout& layout, int s, int a, int b,
                               Messages messages) const {
  const bool sure = messages == Messages::Sure;
  const CutSpace::LayerBytes layers = sure ? space.bytes(a, b) : space.least_bytes(a, b);
  const std::vector<RankId>& ranks = layout.ranks[s];
  const bool works = layout.chunks == 1 && (sure || space.is_linear());
  return StageMemory{
      .parameters = layers.parameters,
      .lowered = layers.lowered,
      .loaded = options_.costs.loaded_ahead * layers.fields,
      .saved = layers.saved,
      .between = layers.between,
      .incoming = sure && s > 0 ? space.incoming(a, b) : 0,
      .arrived = sure && s > 0 ? space.arrived(a, b) : 0,
      .outgoing = sure && s + 1 < layout.stages() ? space.outgoing(a, b) : 0,
      .workspace = works ? space.workspace(a, b) : 0,
      .split_workspace = works ? space.split_workspace(a, b) : 0,
      // A layer more may free more workspace than it adds to what is kept between the halves: no lower bound.
      .weight_workspace = works && sure ? space.workspace(a, b) : 0,
      .versions = layout.stash.versions[s],
      .rule_copies = options_.costs.rule_copies,
      .rule_shards = options_.costs.shards_of(ranks),
      .arrays = options_.costs.arrays,
      // The last backward of several stages on a rank may be the half that no longer has the whole stash.
      .reduced = layout.chunks > 1 ? 0 : model_.reduced_bytes(ranks, layers.parameters),
      .moments = layout.stash.moments[s]};
}

Bytes StageBounds::memory(const CutSpace& space, const Layout& layout, int s, int a, int b, bool recompute,
                          Messages messages) const {
  StageMemory held = parts(space, layout, s, a, b, messages);
  held.recompute = recompute;
  return held.total();
}

Bytes StageBounds::least_memory(const CutSpace& space, const Layout& layout, int s, int a, int b,
                                Messages messages) const {
  StageMemory held = parts(space, layout, s, a, b, messages);
  held.recompute = options_.recompute != Recompute::Never;
  const Bytes bytes = held.total();
  if (options_.recompute != Recompute::Auto) return bytes;
  held.recompute = false;
  return std::min(bytes, held.total());
}

bool StageBounds::recomputes(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
  if (options_.recompute != Recompute::Auto) return options_.recompute == Recompute::Always;
  const Bytes limit = layout.memory[s];
  return limit > 0 && memory(space, layout, s, a, b, false) > limit;
}

bool StageBounds::fits(const CutSpace& space, const Layout& layout, int s, int a, int b,
                       Messages messages) const {
  const Bytes limit = layout.memory[s];
  return limit == 0 || least_memory(space, layout, s, a, b, messages) <= limit;
}

double StageBounds::busy_if_it_fits(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
  const Bytes limit = layout.memory[s];
  bool recompute = options_.recompute == Recompute::Always;
  if (limit > 0) {
    StageMemory held = parts(space, layout, s, a, b, Messages::Sure);
    held.recompute = recompute;
    if (held.total() > limit) {
      if (options_.recompute != Recompute::Auto) return kInfinite;
      held.recompute = recompute = true;
      if (held.total() > limit) return kInfinite;
    }
  }
  return layout.rounds[s] * compute(space, layout, s, a, b, recompute);
}

double StageBounds::compute(const CutSpace& space, const Layout& layout, int s, int a, int b,
                            bool again) const {
  double slowest = 0;
  for (int sheet : layout.sheets[s]) {
    double seconds = space.compute_s(sheet, a, b);
    if (again) seconds += space.forward_s(sheet, a, b) - (b == space.last() ? model_.loss_s(sheet) : 0);
    slowest = std::max(slowest, seconds);
  }
  return slowest;
}

double StageBounds::least_busy(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
  double slowest = 0;
  for (int sheet : layout.sheets[s]) slowest = std::max(slowest, space.compute_s(sheet, a, b));
  return layout.rounds[s] * slowest;
}

double StageBounds::reduce_and_update(const CutSpace& space, const Layout& layout, int s, int a,
                                      int b) const {
  const Bytes bytes = space.parameters(a, b);
  double reduce = layout.reduces[s].seconds(bytes);
  double least_backward = kInfinite;
  double update = 0;
  for (int sheet : layout.sheets[s]) {
    double backward = space.backward_s(sheet, a, b);
    if (options_.recompute != Recompute::Never) backward += space.forward_s(sheet, a, b);
    least_backward = std::min(least_backward, backward);
    update = std::max(update, model_.update_s_per_byte(sheet) * static_cast<double>(space.touched(a, b)));
  }
  // Overlapped, the reduction cannot start before the backward does.
  if (options_.costs.reduce == ReduceModel::Overlapped) reduce = std::max(0.0, reduce - least_backward);
  return reduce + update;
}

double StageBounds::hop(const Layout& layout, int s, Bytes bytes) {
  double least = layout.hops[s].empty() ? 0 : kInfinite;
  for (const ClusterLink& link : layout.hops[s])
    least = std::min(least, link.latency_s + static_cast<double>(bytes) / link.bandwidth);
  return least;
}

}  // namespace millrace
