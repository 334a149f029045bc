#include "optimizer/planner/least_memory.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "optimizer/planner/minimax_table.h"

namespace millrace {
namespace {

// Limits of the work of one call. The first two are multiplied by the effort.
constexpr double kMostPlaces = 2'000'000;         // partial cuts of descend(), and layers of plans in take()
constexpr double kMostMemoryTables = 10'000'000;  // stages looked at for all tables together
constexpr double kPartForAnyThatFits = 0.03;      // share of both limits for MemoryGoal::AnyThatFits
constexpr std::size_t kMostOrders = 200;          // plans ordered by cost, each of which needs a new schedule
constexpr std::size_t kMostChunkLayouts = 64;
constexpr long kMostChunkPlans = 2'000;

/// The least bytes (or share of the limit) that a stage holds for each byte of its layers, by sort of byte.
struct ByteWeights {
  double parameters = 0, lowered = 0, fields = 0, saved = 0;
};

class LightestPlan {
 public:
  LightestPlan(CostModel& model, const PlannerOptions& options, Fullness fullness, MemoryGoal wanted)
      : model_(model),
        options_(options),
        fullness_(fullness),
        wanted_(wanted),
        bounds_(model, options),
        most_places_(static_cast<long>(std::min(1e15, kMostPlaces * options.effort))),
        most_tables_(static_cast<std::int64_t>(std::min(1e15, kMostMemoryTables * options.effort))) {
    if (wanted == MemoryGoal::AnyThatFits) {
      least_.worst = std::nextafter(1.0, 2.0);
      most_tables_ = static_cast<std::int64_t>(static_cast<double>(most_tables_) * kPartForAnyThatFits);
      most_places_ = static_cast<long>(static_cast<double>(most_places_) * kPartForAnyThatFits);
    }
  }

  void one_stage_per_rank(const std::vector<CutSpace>& spaces, const std::vector<Layout>& layouts) {
    const bool ordered_by_cost = options_.schedule == ScheduleKind::AutoOrder;
    std::size_t orders = 0;
    std::set<MemoryKey> seen;
    // Layouts with many stages come first: their stages hold little.
    std::vector<const Layout*> likely;
    for (const Layout& layout : layouts) likely.push_back(&layout);
    std::stable_sort(likely.begin(), likely.end(),
                     [](const Layout* a, const Layout* b) { return a->stages() > b->stages(); });
    std::size_t looked = 0;
    for (const Layout* layout : likely) {
      if (options_.progress)
        options_.progress("what fits the memory",
                          static_cast<double>(looked++) / static_cast<double>(likely.size()));
      // Another order of equal devices or of actions may hold the same: then the layout is skipped.
      if (!ordered_by_cost && !seen.insert(key_of(*layout)).second) continue;
      for (const CutSpace& space : spaces) {
        if (is_enough()) return;
        if (tables_ > most_tables_) {
          least_.proved = false;
          if (least_.worst < kInfinite) return;
        }
        if (weigh(*layout); least_at_all(space) >= least_.worst) continue;
        fill(space, *layout);
        if (table_.least() >= least_.worst) continue;
        if (ordered_by_cost && orders++ >= kMostOrders) return;
        const auto value = [&](int s, int a, int b) { return value_of(space, *layout, s, a, b); };
        cuts_ = table_.cuts(space, layout->stages(), value);
        take(space, *layout, ordered_by_cost ? ScheduleKind::AutoOrder : layout->kind);
        cuts_.clear();
        if (ordered_by_cost) {
          least_.proved = false;
        } else if (table_.least() < least_.worst) {
          descend(space, *layout, 0, 0, 0);
        }
      }
    }
  }

  void several_stages_per_rank(const std::vector<CutSpace>& spaces, const std::vector<Layout>& layouts) {
    std::size_t looked = 0;
    tables_ = 0;
    for (const Layout& layout : layouts) {
      for (const CutSpace& space : spaces) {
        if (is_enough()) return;
        if (tables_ > most_tables_) {
          least_.proved = false;
          return;
        }
        Layout one_stashed = layout;  // lower bound: each stage stashes one microbatch
        one_stashed.stash.moments.assign(layout.ranks.size(), {StageMoment()});
        if (weigh(one_stashed); least_at_all(space) >= least_.worst) continue;
        fill(space, one_stashed);
        if (table_.least() >= least_.worst) continue;
        least_.proved = false;
        if (looked++ >= kMostChunkLayouts) return;
        weigh(layout);
        fill(space, layout);
        const auto value = [&](int s, int a, int b) { return value_of(space, layout, s, a, b); };
        cuts_ = table_.cuts(space, layout.stages(), value);
        improve(space, layout);
      }
    }
    cuts_.clear();
  }

  LeastMemory take_answer() { return std::move(least_); }

 private:
  /// Replicas, limits and stash counts. Layouts with equal keys hold the same under every cut.
  using MemoryKey = std::tuple<std::vector<std::size_t>, std::vector<Bytes>,
                               std::vector<std::vector<StageMoment>>, std::vector<int>>;
  static MemoryKey key_of(const Layout& layout) {
    std::vector<std::size_t> replicas;
    for (const auto& ranks : layout.ranks) replicas.push_back(ranks.size());
    return {std::move(replicas), layout.memory, layout.stash.moments, layout.stash.versions};
  }

  bool is_enough() const { return wanted_ == MemoryGoal::AnyThatFits && !least_.plan.stages.empty(); }

  void weigh(const Layout& layout) {
    weights_.clear();
    const double arrays = options_.costs.arrays;
    for (int s = 0; s < layout.stages(); ++s) {
      const double versions = layout.stash.versions[s];
      const double rule =
          static_cast<double>(options_.costs.rule_copies) / options_.costs.shards_of(layout.ranks[s]);
      // With recompute, one backward has its saved tensors.
      const int saved =
          options_.recompute == Recompute::Never ? layout.stash.whole(static_cast<std::size_t>(s)) : 1;
      const double part = share(layout, s, 1);
      weights_.push_back({.parameters = part * arrays * (versions + 1 + rule),
                          .lowered = part * arrays * versions,
                          .fields = part * arrays * options_.costs.loaded_ahead,
                          .saved = part * saved});
    }
  }

  /// Returns a lower bound of the memory of stage s with the layers between two states. It never falls with a
  /// later `b`.
  double weight_of(const CutSpace& space, int s, int a, int b) const {
    constexpr double kRounding = 1 - 1e-12;
    const ByteWeights& weight = weights_[s];
    const CutSpace::LayerBytes bytes = space.least_bytes(a, b);
    const double value = kRounding * (weight.parameters * static_cast<double>(bytes.parameters) +
                                      weight.lowered * static_cast<double>(bytes.lowered) +
                                      weight.fields * static_cast<double>(bytes.fields) +
                                      weight.saved * static_cast<double>(bytes.saved));
    return value < least_.worst ? value : kInfinite;
  }

  /// Returns a lower bound of the fullest stage's memory under any cut. If the fullest stage holds w, a stage
  /// has at most w / (its weight) of a weighted sum of parameters and saved bytes. All stages together have
  /// the model's whole sum, which bounds w from below.
  double least_at_all(const CutSpace& space) const {
    const auto parameters = static_cast<double>(space.parameters(0, space.last()));
    const auto saved = static_cast<double>(space.saved(0, space.last()));
    double least = 0;
    for (const ByteWeights& ratio : weights_) {
      if (ratio.saved <= 0 || ratio.parameters <= 0) return 0;  // a rank has no limit
      const double factor = ratio.parameters / ratio.saved;     // weight of a parameter byte in the sum
      double rooms = 0;
      for (const ByteWeights& own : weights_) rooms += std::max(factor / own.parameters, 1 / own.saved);
      least = std::max(least, (factor * parameters + saved) / rooms);
    }
    return least * (1 - 1e-9);
  }

  double share(const Layout& layout, int s, Bytes bytes) const {
    if (fullness_ == Fullness::Bytes) return static_cast<double>(bytes);
    const Bytes limit = layout.memory[s] * layout.chunks;
    return limit == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(limit);
  }

  double value_of(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    const double value = share(layout, s, bounds_.least_memory(space, layout, s, a, b));
    return value < least_.worst ? value : kInfinite;
  }

  void fill(const CutSpace& space, const Layout& layout) {
    tables_ += layout.stages() * static_cast<std::int64_t>(space.states());
    table_.fill(
        space, layout.stages(), true,
        [&](int s, int a, int b) {
          ++tables_;
          return value_of(space, layout, s, a, b);
        },
        [&](int s, int a, int b) { return weight_of(space, s, a, b); });
  }

  void descend(const CutSpace& space, const Layout& layout, int s, int a, double worst) {
    if (s + 1 == layout.stages()) {
      if (std::max(worst, value_of(space, layout, s, a, space.last())) < least_.worst)
        take(space, layout, layout.kind);
      return;
    }
    for (int b = a + 1; b < space.last(); ++b) {
      if (is_enough()) return;
      if (++places_ > most_places_) {
        least_.proved = false;
        return;
      }
      if (table_.at(s + 1, b) >= least_.worst || !space.nested(a, b)) continue;
      const double value = value_of(space, layout, s, a, b);
      if (std::max(worst, value) >= least_.worst) {
        if (weight_of(space, s, a, b) >= least_.worst) break;
        continue;
      }
      cuts_.push_back(b);
      descend(space, layout, s + 1, b, std::max(worst, value));
      cuts_.pop_back();
    }
  }

  /// Looks at the plan of `cuts_` and returns whether it is the best now.
  bool take(const CutSpace& space, const Layout& layout, ScheduleKind kind) {
    if (std::find(cuts_.begin(), cuts_.end(), -1) != cuts_.end()) return false;
    places_ += space.last();
    Found found{.kind = kind, .microbatches = layout.microbatches, .stages = {}};
    for (int s = 0; s < layout.stages(); ++s) {
      const int a = s == 0 ? 0 : cuts_[static_cast<std::size_t>(s) - 1];
      const int b = s + 1 == layout.stages() ? space.last() : cuts_[s];
      CutStage& stage = found.stages.emplace_back();
      stage.nodes = space.layers(a, b);
      model_.sort_by_execution(stage.nodes);
      stage.ranks = layout.ranks[s];
    }
    bool taken = false;
    for (const Recompute how : {Recompute::Never, Recompute::Always}) {
      if (options_.recompute != Recompute::Auto && options_.recompute != how) continue;
      for (CutStage& stage : found.stages) stage.recompute = how == Recompute::Always;
      taken = take(layout, found) || taken;
    }
    if (options_.recompute == Recompute::Auto) taken = take_lighter(layout, std::move(found)) || taken;
    return taken;
  }

  bool take(const Layout& layout, const Found& found) {
    const Result<std::vector<Bytes>> peaks = model_.peaks(found.kind, found.microbatches, found.stages);
    if (!peaks) return false;
    double worst = 0;
    for (int s = 0; s < layout.stages(); ++s) worst = std::max(worst, share(layout, s, (*peaks)[s]));
    if (worst >= least_.worst) return false;
    least_.worst = worst;
    least_.plan = found;
    return true;
  }

  /// Takes a plan in which each stage recomputes if it holds less then. `found` recomputes on all stages.
  bool take_lighter(const Layout& layout, Found found) {
    const auto again = model_.peaks(found.kind, found.microbatches, found.stages);
    for (CutStage& stage : found.stages) stage.recompute = false;
    const auto kept = model_.peaks(found.kind, found.microbatches, found.stages);
    if (!again || !kept) return false;
    for (std::size_t s = 0; s < found.stages.size(); ++s)
      found.stages[s].recompute = (*again)[s] < (*kept)[s];
    return take(layout, found);
  }

  /// Moves single cuts while that makes the fullest rank hold less.
  void improve(const CutSpace& space, const Layout& layout) {
    if (!take(space, layout, layout.kind)) return;
    for (int move = std::max(1, space.states() / 16); move >= 1; move /= 2) {
      for (std::size_t i = 0; i < cuts_.size(); ++i) {
        for (int step : {-move, move}) {
          if (++chunk_plans_ > kMostChunkPlans || is_enough()) return;
          const int before = i == 0 ? 0 : cuts_[i - 1];
          const int after = i + 1 == cuts_.size() ? space.last() : cuts_[i + 1];
          const int old = cuts_[i];
          const int moved = old + step;
          if (moved <= before || moved >= after) continue;
          if (!space.nested(before, moved) || !space.nested(moved, after)) continue;
          cuts_[i] = moved;
          if (!take(space, layout, layout.kind)) cuts_[i] = old;
        }
      }
    }
  }

  CostModel& model_;
  const PlannerOptions& options_;
  const Fullness fullness_;
  const MemoryGoal wanted_;
  const StageBounds bounds_;
  long most_places_;
  std::int64_t most_tables_;
  std::vector<ByteWeights> weights_;  // indexed by stage of the layout that weigh() was called with
  LeastMemory least_{.plan = {}, .worst = kInfinite, .proved = true};
  MinimaxTable table_;
  std::vector<int> cuts_;
  long places_ = 0;
  std::int64_t tables_ = 0;
  long chunk_plans_ = 0;
};

}  // namespace

LeastMemory least_memory(CostModel& model, const PlannerOptions& options, const std::vector<CutSpace>& spaces,
                         const std::vector<Layout>& layouts, const std::vector<Layout>& chunked,
                         Fullness fullness, MemoryGoal wanted) {
  LightestPlan search(model, options, fullness, wanted);
  search.one_stage_per_rank(spaces, layouts);
  search.several_stages_per_rank(spaces, chunked);
  return search.take_answer();
}

}  // namespace millrace
