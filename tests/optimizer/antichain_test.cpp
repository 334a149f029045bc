// The antichain states against a literal, slow reading of their definition.
#include "optimizer/pipedream/antichain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "runtime/base/random.h"
#include "tests/optimizer/pipedream_graphs.h"

namespace millrace {
namespace {

using Set = std::set<int>;

// The definition, word for word, on sets; no closure tables, no bits.
class Definition {
 public:
  explicit Definition(const PipeDreamGraph& graph) : graph_(graph) {}

  Set ancestors(int v) const { return reach(v, false); }
  Set descendants(int v) const { return reach(v, true); }

  Set augment(const Set& antichain) const {
    Set result = antichain;
    for (int s : antichain) {
      const Set before = ancestors(s);
      for (int u : before) {
        for (auto [from, to] : graph_.edges) {
          if (from == u && to != s && before.count(to) == 0) result.insert(u);
        }
      }
    }
    return result;
  }

  std::vector<Set> next(const Set& antichain) const {
    std::vector<Set> result;
    const Set wide = augment(antichain);
    for (int a : wide) {
      for (auto [from, n] : graph_.edges) {
        if (from != a || antichain.count(n) > 0) continue;
        const Set after = descendants(n);
        if (std::any_of(wide.begin(), wide.end(), [&](int v) { return after.count(v) > 0; })) continue;
        Set replaced = wide;
        replaced.erase(a);
        replaced.insert(n);
        result.push_back(without_ancestors(replaced));
      }
    }
    return result;
  }

  std::set<Set> all(int start) const {
    std::set<Set> seen{{start}};
    std::deque<Set> queue{{start}};
    while (!queue.empty()) {
      for (const Set& s : next(queue.front())) {
        if (seen.insert(s).second) queue.push_back(s);
      }
      queue.pop_front();
    }
    return seen;
  }

 private:
  Set reach(int v, bool forward) const {
    Set seen;
    std::deque<int> queue{v};
    while (!queue.empty()) {
      for (auto [from, to] : graph_.edges) {
        if ((forward ? from : to) != queue.front()) continue;
        if (seen.insert(forward ? to : from).second) queue.push_back(forward ? to : from);
      }
      queue.pop_front();
    }
    return seen;
  }
  Set without_ancestors(const Set& set) const {
    Set result;
    for (int v : set) {
      const Set after = descendants(v);
      if (std::none_of(set.begin(), set.end(), [&](int w) { return after.count(w) > 0; })) result.insert(v);
    }
    return result;
  }
  const PipeDreamGraph& graph_;
};

TEST(Antichains, EqualTheDefinitionOnRandomGraphs) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const PipeDreamGraph graph = random_pipedream_graph(seed, 8);
    const Definition definition(graph);
    const Result<AntichainStates> states = enumerate_antichains(graph);
    ASSERT_TRUE(states) << to_string(states.problems());
    std::multiset<Set> expected;
    std::multiset<double> outputs;
    for (const Set& antichain : definition.all(0)) {
      Set closure = antichain;
      for (int v : antichain) closure.merge(definition.ancestors(v));
      expected.insert(closure);
      double bytes = 0;
      for (int v : definition.augment(antichain)) bytes += graph.nodes[v].activation_bytes();
      outputs.insert(bytes);
    }
    std::multiset<Set> found;
    for (int state = 0; state < states->size(); ++state) {
      const std::vector<int> members = states->nodes_between(-1, state);
      found.insert(Set(members.begin(), members.end()));
    }
    EXPECT_EQ(found, expected) << "seed " << seed;
    std::vector<double> sent = states->output_bytes;  // rounded to the grid
    std::ranges::sort(sent);
    ASSERT_EQ(sent.size(), outputs.size());
    EXPECT_TRUE(
        std::ranges::equal(sent, outputs, [](double a, double b) { return std::abs(a - b) <= 1e-12 * b; }))
        << "seed " << seed;
  }
}

TEST(Antichains, AreNumberedByGrowingTimeAfterTheirAncestors) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Result<AntichainStates> states = enumerate_antichains(random_pipedream_graph(seed, 12));
    ASSERT_TRUE(states);
    EXPECT_TRUE(std::is_sorted(states->compute_s.begin(), states->compute_s.end()));
    for (int x = 0; x < states->last(); ++x) {
      EXPECT_TRUE(states->precedes(x, states->last()));
      for (int y = 0; y <= x; ++y) EXPECT_FALSE(states->precedes(x, y));
    }
  }
}

TEST(Antichains, DropInputsAndUnreadTupleParts) {
  const PipeDreamGraph graph = pipedream_graph({{"Input0", 9, 9, 9, 9},
                                                {"Linear", 1, 2, 3, 4},
                                                {"__getitem__(1)", 5, 5, 5, 5},
                                                {"Linear", 10, 20, 30, 40}},
                                               {{0, 1}, {1, 2}, {1, 3}});
  const Result<AntichainStates> states = enumerate_antichains(graph);
  ASSERT_TRUE(states);
  ASSERT_EQ(states->size(), 2);
  EXPECT_DOUBLE_EQ(states->compute_s[1], 0.033);
  EXPECT_DOUBLE_EQ(states->parameter_bytes[1], 44);
  EXPECT_EQ(states->inputs, std::vector<int>{0});
}

TEST(Antichains, RefuseWhatCannotBePlanned) {
  EXPECT_FALSE(enumerate_antichains({}));
  EXPECT_FALSE(enumerate_antichains(pipedream_graph({{"Input", 1, 1, 1, 1}}, {})));
  const std::vector<PipeDreamLayer> two{{"Linear", 1, 1, 1, 1}, {"Linear", 1, 1, 1, 1}};
  EXPECT_FALSE(enumerate_antichains(pipedream_graph(two, {{0, 1}, {1, 0}})));
  EXPECT_FALSE(enumerate_antichains(pipedream_graph(two, {})));  // not connected
  EXPECT_FALSE(enumerate_antichains(pipedream_graph({{"Linear", -1, 1, 1, 1}}, {})));
}

TEST(Antichains, RefuseExponentiallyManyStatesInsteadOfEatingMemory) {
  std::vector<PipeDreamLayer> layers{{"Linear", 1, 1, 1, 1}};
  std::vector<std::pair<int, int>> edges;
  for (int branch = 0; branch < 8; ++branch) {  // 8 branches of 6 layers: 7^8 states
    for (int depth = 0; depth < 6; ++depth) {
      const int v = static_cast<int>(layers.size());
      layers.push_back({"Linear", 1, 1, 1, 1});
      edges.push_back({depth == 0 ? 0 : v - 1, v});
    }
  }
  const int join = static_cast<int>(layers.size());
  layers.push_back({"Concat", 1, 1, 1, 1});
  for (int branch = 0; branch < 8; ++branch) edges.push_back({6 * (branch + 1), join});
  const Result<AntichainStates> states = enumerate_antichains(pipedream_graph(layers, edges));
  ASSERT_FALSE(states);
  EXPECT_NE(to_string(states.problems()).find(std::to_string(kMaxAntichainStates)), std::string::npos)
      << to_string(states.problems());
}

}  // namespace
}  // namespace millrace
