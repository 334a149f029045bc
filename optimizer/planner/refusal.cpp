#include "optimizer/planner/refusal.h"

#include <algorithm>

#include "runtime/base/quantities.h"
#include "runtime/rules/rule_table.h"

namespace millrace {
namespace {

constexpr int kMostRankFactor = 8;
constexpr int kMostRanksTried = 64;
// Hints are searched with less effort than the plan, so that a refusal does not take long.
constexpr double kEffortOfHints = 0.1;

Bytes smallest_limit(const ClusterSpec& cluster, const PlannerOptions& options) {
  if (options.memory_per_rank > 0) return options.memory_per_rank;
  Bytes limit = 0;
  for (int r = 0; r < cluster.num_ranks(); ++r) {
    const Bytes own = cluster.memory_of(RankId(r));
    if (own > 0) limit = limit == 0 ? own : std::min(limit, own);
  }
  return limit;
}

std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size() && i < 8; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return numbers.size() > 8 ? text + ", ..." : text;
}

/// Returns the cluster with `more` further components on its outermost level, or, without levels, with `more`
/// further hosts like its last one.
ClusterSpec wider(const ClusterSpec& cluster, int more) {
  ClusterSpec wide = cluster;
  if (!wide.levels.empty()) {
    wide.levels.back().count += more;
    if (wide.hosts.size() == 1) {
      wide.hosts[0].devices = wide.num_ranks();
    } else if (!wide.hosts.empty()) {
      wide.hosts.back().devices += wide.num_ranks() - cluster.num_ranks();
    }
    return wide;
  }
  for (int i = 0; i < more; ++i) {
    ClusterHost host = cluster.hosts.back();
    host.name += "-" + std::to_string(i + 2);
    wide.hosts.push_back(std::move(host));
  }
  if (cluster.hosts.size() == 1) wide.network = cluster.hosts[0].link;
  return wide;
}

std::optional<int> fewest_more(const ClusterSpec& cluster, const PlannerOptions& options,
                               const TryPlan& attempt) {
  const int unit =
      cluster.levels.empty() ? static_cast<int>(cluster.hosts.size()) : cluster.levels.back().count;
  PlannerOptions tried = options;
  if (options.straight) tried.stages = 0;
  const int most_ranks = std::max(kMostRanksTried, 2 * cluster.num_ranks());
  const auto is_tried = [&](int more) {
    return more <= kMostRankFactor * unit && wider(cluster, more).num_ranks() <= most_ranks;
  };
  int low = 0;
  int high = 1;
  for (; is_tried(high); high *= 2) {
    if (attempt(wider(cluster, high), tried, Effort::AnyPlan)) break;
    low = high;
  }
  if (!is_tried(high)) return std::nullopt;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    attempt(wider(cluster, middle), tried, Effort::AnyPlan) ? high = middle : low = middle;
  }
  return high;
}

}  // namespace

Problem nothing_fits(const LayerGraph& graph, const ClusterSpec& cluster, PlannerOptions options,
                     const std::optional<LeastNeed>& least, const TryPlan& attempt) {
  options.effort *= kEffortOfHints;
  const Bytes limit = smallest_limit(cluster, options);
  std::vector<std::string> changes;
  std::string smallest;
  if (least) {
    const Bytes needed = least->bytes + options.kept_free;
    smallest = (least->proved ? "; the smallest needs " : "; the least found needs ") +
               std::to_string(needed) + " (" + bytes_text(needed) + ")";
    // If ranks have limits of their own, the least need may be below the smallest limit.
    changes.push_back(
        "--memory " + std::to_string(needed) + "B" +
        (needed > limit ? " (" + bytes_text(needed - limit) + " more on each rank)" : " on every rank"));
  }
  PlannerOptions tried = options;
  if (options.recompute == Recompute::Never) {
    tried.recompute = Recompute::Auto;
    if (const std::optional<Plan> plan = attempt(cluster, tried, Effort::AnyPlan)) {
      std::vector<int> stages;
      for (int s = 0; s < plan->num_stages(); ++s) {
        if (plan->stages[s].recompute) stages.push_back(s);
      }
      changes.push_back("--recompute auto (on stage " + list_of(stages) + ")");
    }
    tried = options;
  }
  if (const std::optional<int> more = fewest_more(cluster, options, attempt)) {
    const ClusterSpec wide = wider(cluster, *more);
    if (wide.num_ranks() <= 2 * cluster.num_ranks())  // a larger one would be another cluster
      changes.push_back(std::to_string(wide.num_ranks()) + " ranks instead of " +
                        std::to_string(cluster.num_ranks()));
  }
  if (options.stages > 0) {
    const int most = std::min<int>(cluster.num_ranks(), static_cast<int>(graph.nodes.size()));
    for (int distance = 1; distance < most; ++distance) {
      const auto fits = [&](int stages) {
        if (stages < 1 || stages > most) return false;
        tried.stages = stages;
        return attempt(cluster, tried, Effort::AnyPlan).has_value();
      };
      const int more = options.stages + distance;
      const int fewer = options.stages - distance;
      const int found = fits(more) ? more : fits(fewer) ? fewer : 0;
      if (found == 0) continue;
      changes.push_back("--stages " + std::to_string(found));
      break;
    }
    tried = options;
  }
  if (options.straight) {
    tried.straight = false;
    if (attempt(cluster, tried, Effort::AnyPlan)) changes.push_back("no --straight");
    tried = options;
  }
  if (options.microbatches > 1) {
    int low = 0;
    int high = options.microbatches;  // so many do not fit
    while (high - low > 1) {
      tried.microbatches = low + (high - low) / 2;
      attempt(cluster, tried, Effort::AnyPlan) ? low = tried.microbatches : high = tried.microbatches;
    }
    if (low > 0) changes.push_back("--microbatches " + std::to_string(low));
    tried = options;
  }
  if (options.schedule) {
    for (ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::GPipe}) {
      tried.schedule = kind;
      if (kind == *options.schedule || !attempt(cluster, tried, Effort::AnyPlan)) continue;
      changes.push_back("--schedule " + to_string(kind));
      break;
    }
    tried = options;
  }
  for (int copies = options.costs.rule_copies - 1; copies >= 0; --copies) {
    tried.costs.rule_copies = copies;
    if (!attempt(cluster, tried, Effort::AnyPlan)) continue;
    const auto memories = rule_memories();
    changes.push_back("--rule " + std::ranges::find(memories, copies, &RuleMemory::tensors)->name);
    break;
  }
  tried = options;
  tried.costs.share_rule_state = true;
  if (!options.costs.share_rule_state && options.costs.rule_copies > 0 &&
      attempt(cluster, tried, Effort::AnyPlan))
    changes.push_back("--zero-1");
  std::string hint;
  for (const std::string& change : changes)
    hint += (hint.empty() ? "any one of these fits: " : "; ") + change;
  if (hint.empty()) hint = "give more memory or ranks, or profile with a smaller microbatch";
  return {"--memory",
          "no plan fits " + std::to_string(limit) + " bytes (" + bytes_text(limit) + ") per rank" + smallest,
          hint};
}

}  // namespace millrace
