#include "experiments/sweep/next_array.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>

#include "experiments/sweep/partition.h"
#include "runtime/base/check.h"

namespace millrace {
namespace {

/// Returns those of `open` that agree with `open[first]` in what cannot be fused, `first` itself at the
/// front.
std::vector<OpenStep> agreeing(const std::vector<OpenStep>& open, std::size_t first,
                               const ArrayRules& rules) {
  std::vector<int> places{static_cast<int>(first)};
  std::vector<JobSettings> settings;
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (i != first) places.push_back(static_cast<int>(i));
    settings.push_back(rules.settings(open[i].step.trial));
  }
  const auto of = [&](int place) -> const JobSettings& { return settings[place]; };
  const std::vector<Partition> parts = partitions(places, rules.infusible, of);
  std::vector<OpenStep> same;
  for (int place : parts.front()) same.push_back(open[place]);
  return same;
}

}  // namespace

bool differ(const std::vector<OpenStep>& steps) {
  return std::ranges::any_of(steps, [&](const OpenStep& one) { return one.at != steps.front().at; });
}

ArrayRun take_array(std::vector<OpenStep>& open, const ArrayRules& rules) {
  MILLRACE_CHECK(!open.empty());
  const std::size_t most =
      rules.most > 0 ? static_cast<std::size_t>(rules.most) : std::numeric_limits<std::size_t>::max();
  const auto first = rules.mixed ? std::ranges::min_element(open, {}, &OpenStep::left) : open.begin();
  ArrayRun run{.iterations = first->left()};
  if (most == 1) {
    run.steps = {*first};
  } else {
    // Trials are grouped by how far they are: the fewest left first, and among those the ones like the first.
    std::map<std::tuple<int, bool, int>, std::vector<OpenStep>> by_extent;
    for (const OpenStep& one : agreeing(open, static_cast<std::size_t>(first - open.begin()), rules)) {
      if (rules.mixed || (one.at == first->at && one.left() == first->left()))
        by_extent[{one.left(), one.at != first->at, one.at}].push_back(one);
    }
    std::vector<OpenStep>& nearest = by_extent.begin()->second;
    nearest.resize(std::min(nearest.size(), most));
    for (const auto& [extent, alike] : by_extent) {
      if (run.steps.size() + alike.size() > most) continue;
      if (run.steps.empty() || !rules.together || rules.together(run.steps, alike, run.iterations))
        run.steps.insert(run.steps.end(), alike.begin(), alike.end());
    }
  }
  std::stable_partition(run.steps.begin(), run.steps.end(), [](const OpenStep& one) { return one.at > 0; });
  std::erase_if(open,
                [&](const OpenStep& one) { return std::ranges::find(run.steps, one) != run.steps.end(); });
  return run;
}

}  // namespace millrace
