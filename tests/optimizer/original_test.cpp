// `as_original` against a second reading of the original's behaviour: sets and recursion here, tables there.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "optimizer/pipedream/pipedream_planner.h"
#include "optimizer/planner/planner.h"
#include "tests/optimizer/pipedream_graphs.h"

namespace millrace {
namespace {

using Set = std::set<int>;

/// The programme's answer, nothing if it has none; `stops` where Python would compare None with a number.
class Original {
 public:
  Original(const PipeDreamGraph& graph, const PipeDreamOptions& options) : graph_(graph), options_(options) {
    for (int v = 0; v < size(graph.nodes); ++v) there_.insert(v);
    const auto starts_with = [&](int v, const char* word) {
      return graph_.nodes[v].description.starts_with(word);
    };
    const Set all = there_;
    std::erase_if(there_, [&](int v) { return producers(v, all).empty() && starts_with(v, "Input"); });
    const Set without_inputs = there_;
    std::erase_if(there_, [&](int v) {
      return readers_of(v, without_inputs).empty() && starts_with(v, "__getitem__");
    });
    Set sources;
    for (int v : there_)
      if (producers(v, there_).empty()) sources.insert(v);
    const int start = number({*sources.begin()});
    for (int at = start; at < size(antichains_); ++at) expand(at);
    for (int root = 0; root < size(antichains_); ++root) visit(root);
    std::map<int, int> place;
    for (int at = 0; at < size(order_); ++at) place[order_[at]] = at;
    for (int state : order_) {
      Set& before = before_[place[state]];
      for (const auto& [from, to] : links_) {
        if (to != state) continue;
        before.insert(place[from]);
        before.insert(before_[place[from]].begin(), before_[place[from]].end());
      }
    }
  }

  bool stops = false;
  int states() const { return size(order_); }
  std::optional<double> answer() {
    const int last = size(options_.machines) - 1;
    return time(last, 0, states() - 1, options_.machines[last]);
  }

 private:
  static int size(const auto& list) { return static_cast<int>(list.size()); }
  Set producers(int v, const Set& there) const {
    Set result;
    for (const auto& [from, to] : graph_.edges)
      if (to == v && there.contains(from)) result.insert(from);
    return result;
  }
  std::vector<int> readers_of(int v, const Set& there) const {
    std::vector<int> result;
    for (const auto& [from, to] : graph_.edges)
      if (from == v && there.contains(to)) result.push_back(to);
    return result;
  }
  Set before(int v) const {
    Set result;
    for (int p : producers(v, there_)) {
      result.insert(p);
      result.merge(before(p));
    }
    return result;
  }
  bool leads_to_any(int v, const std::vector<int>& targets) const {
    for (int target : targets)
      if (before(target).contains(v)) return true;
    return false;
  }
  std::vector<int> augmented(const std::vector<int>& antichain) const {
    Set extra;
    for (int member : antichain) {
      const Set earlier = before(member);
      for (int p : earlier)
        for (int reader : readers_of(p, there_))
          if (reader != member && !earlier.contains(reader)) extra.insert(p);
    }
    std::vector<int> result(extra.begin(), extra.end());
    result.insert(result.end(), antichain.begin(), antichain.end());
    return result;
  }
  int number(const std::vector<int>& antichain) {
    const Set key(antichain.begin(), antichain.end());
    const auto [found, is_new] = numbers_.emplace(key, size(antichains_));
    if (is_new) antichains_.push_back(antichain);
    return found->second;
  }
  void expand(int from) {
    const std::vector<int> antichain = antichains_[from], whole = augmented(antichain);
    for (int member : whole) {
      for (int reader : readers_of(member, there_)) {
        if (std::count(antichain.begin(), antichain.end(), reader) > 0 || leads_to_any(reader, whole))
          continue;
        std::vector<int> moved = whole, kept;
        std::replace(moved.begin(), moved.end(), member, reader);
        for (int x : moved)
          if (!leads_to_any(x, moved) && std::count(kept.begin(), kept.end(), x) == 0) kept.push_back(x);
        const int to = number(kept);
        links_.emplace_back(from, to);
      }
    }
  }
  void visit(int state) {
    if (!visited_.insert(state).second) return;
    for (std::size_t k = 0; k < links_.size(); ++k)
      if (links_[k].first == state) visit(links_[k].second);
    order_.insert(order_.begin(), state);
  }
  /// Sum of `what` over the layers up to state `j`; 0 before the first.
  double sum(int j, const std::function<double(const PipeDreamNode&)>& what) const {
    if (j < 0) return 0;
    Set layers;
    for (int member : augmented(antichains_[order_[j]])) {
      layers.insert(member);
      layers.merge(before(member));
    }
    double total = 0;
    for (int v : layers) total += what(graph_.nodes[v]);
    return total;
  }
  double seconds(int i, int j) const {
    const auto what = [](const PipeDreamNode& n) { return (n.forward_ms + n.backward_ms) / 1000; };
    return sum(j, what) - sum(i - 1, what);
  }
  double weights(int i, int j) const {
    const auto what = [](const PipeDreamNode& n) { return n.parameter_bytes; };
    return sum(j, what) - sum(i - 1, what);
  }
  bool fits(int i, int j, int later, int machines) const {
    if (!options_.memory_bytes) return true;
    const auto what = [](const PipeDreamNode& n) { return n.activation_bytes(); };
    const double bytes = sum(j, what) - sum(i - 1, what) + weights(i, j);
    return std::ceil(double(later) / machines) * bytes <= *options_.memory_bytes;
  }
  double sent(int state) const {
    double bytes = 0;
    for (int member : augmented(antichains_[order_[state]])) bytes += graph_.nodes[member].activation_bytes();
    return bytes;
  }
  std::optional<double> on_one(int level, int i, int j) {
    if (level == 0) return seconds(i, j);
    return time(level - 1, i, j, options_.machines[static_cast<std::size_t>(level) - 1]);
  }

  std::optional<double> time(int level, int i, int j, int m) {
    const auto key = std::tuple(level, i, j, m);
    if (const auto known = times_.find(key); known != times_.end()) return known->second;
    const int machines = options_.machines[level];
    const double bandwidth = options_.bandwidths[level];
    const int below = level == 0 ? 1 : options_.machines[static_cast<std::size_t>(level) - 1];
    std::optional<double> best;
    const std::optional<double> whole = on_one(level, i, j);
    if (whole && !(options_.straight && m > 1) && fits(i, j, machines - m, m))
      best = (*whole + 4.0 * (m - 1) * weights(i, j) / (bandwidth * m) / below) / m;
    if (m > 1 && j > i) {
      if (options_.use_fewer_machines) {
        const std::optional<double> fewer = time(level, i, j, m - 1);
        stops |= best && !fewer;
        if (!best || (fewer && *fewer < *best)) best = fewer;
      }
      for (int k : before_[j]) {
        if (k < i || (i > 0 && before_[i - 1].contains(k))) continue;
        const std::optional<double> last = on_one(level, k + 1, j);
        for (int own = 1; last && own < (options_.straight ? 2 : m); ++own) {
          const std::optional<double> first = time(level, i, k, m - own);
          if (!first || !fits(k + 1, j, machines - m, own)) continue;
          double all =
              std::max(*first, (*last + 4.0 * (own - 1) * weights(k + 1, j) / (bandwidth * own)) / own);
          if (options_.activation_compression) {
            const double rate = bandwidth * own * *options_.activation_compression;
            all = std::max(all, 2 * sent(k) / rate);
            if (j + 1 < states()) all = std::max(all, 2 * sent(j) / rate);
          }
          if (!best || all < *best) best = all;
        }
      }
    }
    return times_[key] = best;
  }

  const PipeDreamGraph& graph_;
  const PipeDreamOptions& options_;
  Set there_;
  std::vector<std::vector<int>> antichains_;
  std::map<Set, int> numbers_;
  std::vector<std::pair<int, int>> links_;
  Set visited_;
  std::vector<int> order_;
  std::map<int, Set> before_;
  std::map<std::tuple<int, int, int, int>, std::optional<double>> times_;
};

PipeDreamOptions random_options(RandomStream& random) {
  PipeDreamOptions options;
  const auto levels = 1 + random.below(3);
  for (std::uint64_t level = 0; level < levels; ++level) {
    options.machines.push_back(static_cast<int>(1 + random.below(3)));
    options.bandwidths.push_back(random.uniform(2e7, 1e9));
  }
  options.straight = random.below(5) == 0;
  options.use_fewer_machines = random.below(4) == 0;
  if (random.below(2) == 0) options.activation_compression = random.uniform(0.5, 2);
  if (random.below(4) == 0) options.memory_bytes = random.uniform(2e6, 6e7);
  return options;
}

// 500 runs of the original itself on graphs made like these gave the same answers as `as_original`.
TEST(AsOriginal, EqualsASecondReadingOnRandomGraphs) {
  int answered = 0, stopped = 0, lower = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream random(derive_seed(seed, "as original"));
    PipeDreamGraph graph = random_pipedream_graph(seed, static_cast<int>(3 + random.below(6)));
    if (graph.nodes.size() > 4 && random.below(4) == 0) graph.nodes.front().description = "Input0";
    PipeDreamOptions options = random_options(random);
    Original original(graph, options);
    const std::optional<double> expected = original.answer();
    options.as_original = true;
    const Result<PipeDreamAnswer> answer = plan_pipedream(graph, options);
    if (original.stops) {
      ++stopped;
      EXPECT_FALSE(answer) << "seed " << seed;
      continue;
    }
    ASSERT_EQ(answer.has_value(), expected.has_value())
        << "seed " << seed << (answer ? "" : ": " + to_string(answer.problems()));
    if (!answer) continue;
    ++answered;
    EXPECT_NEAR(answer->pipeline_time_s, *expected, 1e-12 * std::abs(*expected) + 1e-15) << "seed " << seed;
    std::size_t placed = 0;
    for (const PipeDreamStage& stage : answer->stages) placed += stage.nodes.size();
    EXPECT_EQ(placed, graph.nodes.size()) << "seed " << seed;
    options.as_original = false;
    const Result<PipeDreamAnswer> own = plan_pipedream(graph, options);
    if (own && *expected < own->pipeline_time_s * (1 - 1e-9)) ++lower;
    if (options.machines.size() == 1 && !options.memory_bytes && own) {
      EXPECT_NEAR(own->pipeline_time_s, *expected, 1e-9 * *expected) << "flat, seed " << seed;
    }
  }
  EXPECT_GT(answered, 250);
  EXPECT_GT(stopped, 0);
  EXPECT_GT(lower, 0) << "the case for which the option exists did not occur";
}

}  // namespace
}  // namespace millrace
