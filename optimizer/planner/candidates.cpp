#include "optimizer/planner/candidates.h"

#include <algorithm>

namespace millrace {
namespace {

// A bound this close to the best time cannot hide a better cut that is worth finding.
constexpr double kRounding = 1 - 1e-12;
// The asynchronous step is the difference of two runs, so its bound may be off by some percent.
constexpr double kAsynchronousSlack = 0.9;
constexpr double kMostActions = 5'000'000;  // simulated actions of a whole search; reserve() raises it

}  // namespace

Candidates::Candidates(CostModel& model, const PlannerOptions& options, Effort effort)
    : model_(model),
      options_(options),
      effort_(effort),
      bounds_(model, options),
      total_(static_cast<long>(std::min(1e15, kMostActions * options.effort))) {
  for (int r = 0; r < model.cluster().num_ranks(); ++r)
    has_limits_ = has_limits_ || memory_limit(options, model.cluster(), RankId(r)) > 0;
  allowed_ = total_;
}

void Candidates::allow(long actions) {
  allowed_ = std::min(total_, model_.simulated_actions() + looked_at_ + actions);
}

void Candidates::reserve(long actions) {
  total_ = std::max(total_, model_.simulated_actions() + looked_at_ + actions);
}

bool Candidates::spent() {
  const bool found = !best_.stages.empty();
  return found && (effort_ != Effort::Best || model_.simulated_actions() + looked_at_ > allowed_);
}

bool Candidates::worth(const Layout& layout, double bound) const {
  const double slack = is_asynchronous(layout.kind) ? kAsynchronousSlack : 1;
  return bound < kInfinite && slack * bound / layout.microbatches < best_.per_microbatch * kRounding;
}

double Candidates::consider(const CutSpace& space, const Layout& layout, const std::vector<int>& cuts) {
  if (static_cast<int>(cuts.size()) + 1 != layout.stages() || spent()) return kInfinite;
  if (std::find(cuts.begin(), cuts.end(), -1) != cuts.end()) return kInfinite;
  Found found{.kind = layout.kind, .microbatches = layout.microbatches, .stages = {}};
  for (int s = 0; s < layout.stages(); ++s) {
    const int a = s == 0 ? 0 : cuts[s - 1];
    const int b = s + 1 == layout.stages() ? space.last() : cuts[s];
    CutStage& stage = found.stages.emplace_back();
    stage.nodes = space.layers(a, b);
    model_.sort_by_execution(stage.nodes);
    stage.ranks = layout.ranks[s];
    stage.recompute = bounds_.recomputes(space, layout, s, a, b);
  }
  return consider_always(std::move(found));
}

double Candidates::consider(Found found) {
  return spent() ? kInfinite : consider_always(std::move(found));
}

double Candidates::consider_always(Found found) {
  if (has_limits_ && !made_to_fit(found)) {
    looked_at_ += static_cast<long>(model_.graph().nodes.size());
    return kInfinite;
  }
  if (model_.graph().sync_batch_norm &&
      !model_.replicas_can_meet(found.kind, found.microbatches, found.stages))
    return kInfinite;
  const Result<StepEstimate> estimate = model_.estimate(found.kind, found.microbatches, found.stages);
  if (!estimate) return kInfinite;
  ++simulated_;
  const double per_microbatch = found.per_microbatch = estimate->step_s / found.microbatches;
  Found& of_its_way = by_way_[way_of(found)];
  if (better(found, of_its_way)) of_its_way = found;
  if (better(found, best_)) best_ = std::move(found);
  return per_microbatch;
}

/// Returns whether all stages fit. With Recompute::Auto it first makes stages that do not fit recompute. Only
/// the schedule's order decides what a rank holds, not the times.
bool Candidates::made_to_fit(Found& found) {
  if (options_.recompute == Recompute::Auto) {
    for (CutStage& stage : found.stages) stage.recompute = false;
  }
  for (bool changed = true; changed;) {
    const Result<std::vector<Bytes>> peaks = model_.peaks(found.kind, found.microbatches, found.stages);
    if (!peaks) return false;
    bool all = true;
    changed = false;
    for (std::size_t s = 0; s < found.stages.size(); ++s) {
      CutStage& stage = found.stages[s];
      const bool fits = std::ranges::all_of(stage.ranks, [&](RankId rank) {
        const Bytes limit = memory_limit(options_, model_.cluster(), rank);
        return limit == 0 || (*peaks)[s] <= limit;
      });
      all = all && fits;
      if (!fits && options_.recompute == Recompute::Auto && !stage.recompute)
        stage.recompute = changed = true;
    }
    if (all) return true;
  }
  return false;
}

}  // namespace millrace
