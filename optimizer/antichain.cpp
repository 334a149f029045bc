#include "optimizer/antichain.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <unordered_map>

namespace millrace {

BitSet& BitSet::operator|=(const BitSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  return *this;
}

BitSet& BitSet::operator-=(const BitSet& other) {
  for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= ~other.words_[w];
  return *this;
}

bool BitSet::intersects(const BitSet& other) const {
  for (std::size_t w = 0; w < words_.size(); ++w) {
    if (words_[w] & other.words_[w]) return true;
  }
  return false;
}

std::vector<int> BitSet::members() const {
  std::vector<int> result;
  for (std::size_t w = 0; w < words_.size(); ++w) {
    for (std::uint64_t rest = words_[w]; rest != 0; rest &= rest - 1) {
      result.push_back(static_cast<int>(w * 64) + std::countr_zero(rest));
    }
  }
  return result;
}

std::size_t BitSet::hash() const {
  std::uint64_t h = 1469598103934665603ull;
  for (std::uint64_t word : words_) {
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
  }
  return h;
}

namespace {

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

// The graph without the dropped nodes; node indices stay those of the file.
struct Relations {
  std::vector<bool> kept;
  std::vector<int> inputs;
  std::vector<std::vector<int>> out;
  std::vector<int> order;           // topological, kept nodes only
  std::vector<BitSet> ancestors;    // strict
  std::vector<BitSet> descendants;  // strict
  std::vector<BitSet> extra;        // what augmenting adds for this member
  int start = -1;
};

std::vector<int> degrees(const PipeDreamGraph& graph, const std::vector<bool>& kept, bool incoming) {
  std::vector<int> count(graph.nodes.size());
  for (auto [from, to] : graph.edges) {
    if (kept[from] && kept[to]) ++count[incoming ? to : from];
  }
  return count;
}

void drop_synthetic_ends(const PipeDreamGraph& graph, Relations& r) {
  const int n = static_cast<int>(graph.nodes.size());
  r.kept.assign(n, true);
  const std::vector<int> in = degrees(graph, r.kept, true);
  for (int v = 0; v < n; ++v) {
    if (in[v] == 0 && starts_with(graph.nodes[v].description, "Input")) r.inputs.push_back(v);
  }
  for (int v : r.inputs) r.kept[v] = false;
  const std::vector<int> out = degrees(graph, r.kept, false);
  for (int v = 0; v < n; ++v) {
    if (r.kept[v] && out[v] == 0 && starts_with(graph.nodes[v].description, "__getitem__")) r.kept[v] = false;
  }
}

// Kahn's algorithm; shorter than the kept nodes if there is a cycle.
std::vector<int> topological(const PipeDreamGraph& graph, const Relations& r) {
  std::vector<int> in = degrees(graph, r.kept, true);
  std::vector<int> order;
  for (std::size_t v = 0; v < graph.nodes.size(); ++v) {
    if (r.kept[v] && in[v] == 0) order.push_back(static_cast<int>(v));
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (int w : r.out[order[at]]) {
      if (--in[w] == 0) order.push_back(w);
    }
  }
  return order;
}

// u joins s when something else than s still needs u: an out-neighbour that is neither s nor before s.
BitSet extra_of(const Relations& r, int s) {
  BitSet extra(r.kept.size());
  for (int u : r.ancestors[s].members()) {
    const auto needs_u = [&](int w) { return w != s && !r.ancestors[s].test(w); };
    if (std::any_of(r.out[u].begin(), r.out[u].end(), needs_u)) extra.insert(u);
  }
  return extra;
}

Result<Relations> relations_of(const PipeDreamGraph& graph) {
  Relations r;
  const std::size_t n = graph.nodes.size();
  drop_synthetic_ends(graph, r);
  r.out.resize(n);
  for (auto [from, to] : graph.edges) {
    if (r.kept[from] && r.kept[to]) r.out[from].push_back(to);
  }
  const auto kept = static_cast<std::size_t>(std::count(r.kept.begin(), r.kept.end(), true));
  if (kept == 0) return Problem{"profile", "no layers besides inputs", "profile a model with layers"};
  r.order = topological(graph, r);
  if (r.order.size() != kept)
    return Problem{"profile", "the edges form a cycle", "a profile is an acyclic graph"};

  r.ancestors.assign(n, BitSet(n));
  r.descendants.assign(n, BitSet(n));
  r.extra.resize(n);
  for (int v : r.order) {
    for (int w : r.out[v]) {
      r.ancestors[w] |= r.ancestors[v];
      r.ancestors[w].insert(v);
    }
  }
  for (auto it = r.order.rbegin(); it != r.order.rend(); ++it) {
    for (int w : r.out[*it]) {
      r.descendants[*it] |= r.descendants[w];
      r.descendants[*it].insert(w);
    }
  }
  for (int v : r.order) r.extra[v] = extra_of(r, v);
  const std::vector<int> in = degrees(graph, r.kept, true);
  for (std::size_t v = 0; v < n && r.start < 0; ++v) {
    if (r.kept[v] && in[v] == 0) r.start = static_cast<int>(v);
  }
  return r;
}

BitSet augmented(const Relations& r, const BitSet& antichain) {
  BitSet result = antichain;
  for (int s : antichain.members()) result |= r.extra[s];
  return result;
}

BitSet closure_of(const Relations& r, const BitSet& antichain) {
  BitSet result = antichain;
  for (int s : antichain.members()) result |= r.ancestors[s];
  return result;
}

// Elements that are an ancestor of another one say nothing: the other implies them.
BitSet reduced(const Relations& r, BitSet set) {
  const std::vector<int> members = set.members();
  for (int v : members) {
    if (r.descendants[v].intersects(set)) set.erase(v);
  }
  return set;
}

std::vector<BitSet> next_antichains(const Relations& r, const BitSet& antichain) {
  const BitSet wide = augmented(r, antichain);
  std::vector<BitSet> result;
  for (int a : wide.members()) {
    for (int n : r.out[a]) {
      if (antichain.test(n) || r.descendants[n].intersects(wide)) continue;
      BitSet next = wide;
      next.erase(a);
      next.insert(n);
      result.push_back(reduced(r, std::move(next)));
    }
  }
  return result;
}

struct Hash {
  std::size_t operator()(const BitSet& set) const { return set.hash(); }
};

struct AntichainDag {
  std::vector<BitSet> antichains;
  std::vector<std::vector<int>> out;
};

// Breadth first from the start. Stops one past `max_states`.
AntichainDag explore(const Relations& r, int max_states) {
  AntichainDag dag;
  std::unordered_map<BitSet, int, Hash> index;
  BitSet start(r.kept.size());
  start.insert(r.start);
  index.emplace(start, 0);
  dag.antichains.push_back(start);
  for (std::size_t at = 0; at < dag.antichains.size(); ++at) {
    dag.out.emplace_back();
    for (BitSet& next : next_antichains(r, dag.antichains[at])) {
      const auto [place, is_new] = index.emplace(next, static_cast<int>(dag.antichains.size()));
      if (is_new) dag.antichains.push_back(std::move(next));
      dag.out[at].push_back(place->second);
    }
    if (static_cast<int>(dag.antichains.size()) > max_states) break;
  }
  return dag;
}

// Sums run in file order, so rounding keeps them monotone: a larger closure never has a smaller sum.
template <class Cost>
double sum_over(const BitSet& set, Cost cost) {
  double sum = 0;
  for (int v : set.members()) sum += cost(v);
  return sum;
}

Problems bad_costs(const PipeDreamGraph& graph) {
  Problems problems;
  for (const PipeDreamNode& node : graph.nodes) {
    const double costs[] = {node.forward_ms, node.backward_ms, node.parameter_bytes, node.activation_bytes()};
    if (std::all_of(std::begin(costs), std::end(costs), [](double c) { return c >= 0 && c < 1e300; }))
      continue;
    problems.push_back({"profile: " + node.id, "a time or size is negative or not finite", "profile again"});
  }
  return problems;
}

AntichainStates number_states(const PipeDreamGraph& graph, const Relations& r, const AntichainDag& dag) {
  const int n = static_cast<int>(dag.antichains.size());
  const std::vector<PipeDreamNode>& nodes = graph.nodes;
  std::vector<BitSet> closure(n);
  std::vector<double> compute(n);
  std::vector<std::vector<int>> members(n);
  for (int x = 0; x < n; ++x) {
    closure[x] = closure_of(r, dag.antichains[x]);
    members[x] = closure[x].members();
    compute[x] =
        sum_over(closure[x], [&](int v) { return (nodes[v].forward_ms + nodes[v].backward_ms) / 1000; });
  }
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (compute[a] != compute[b]) return compute[a] < compute[b];
    if (members[a].size() != members[b].size()) return members[a].size() < members[b].size();
    return members[a] < members[b];
  });

  AntichainStates states;
  states.inputs = r.inputs;
  states.ancestors.assign(n, BitSet(n));
  std::vector<int> number(n);
  for (int k = 0; k < n; ++k) number[order[k]] = k;
  for (int k = 0; k < n; ++k) {
    const int x = order[k];
    states.compute_s.push_back(compute[x]);
    states.parameter_bytes.push_back(sum_over(closure[x], [&](int v) { return nodes[v].parameter_bytes; }));
    states.activation_bytes.push_back(
        sum_over(closure[x], [&](int v) { return nodes[v].activation_bytes(); }));
    states.output_bytes.push_back(
        sum_over(augmented(r, dag.antichains[x]), [&](int v) { return nodes[v].activation_bytes(); }));
    states.closure.push_back(std::move(closure[x]));
    for (int next : dag.out[x]) {
      states.ancestors[number[next]] |= states.ancestors[k];
      states.ancestors[number[next]].insert(k);
    }
  }
  return states;
}

}  // namespace

Result<AntichainStates> enumerate_antichains(const PipeDreamGraph& graph, int max_states) {
  if (Problems problems = bad_costs(graph); !problems.empty()) return problems;
  Result<Relations> relations = relations_of(graph);
  if (!relations) return relations.problems();
  const AntichainDag dag = explore(*relations, max_states);
  if (static_cast<int>(dag.antichains.size()) > max_states) {
    return Problem{
        "profile", "its parallel branches give more than " + std::to_string(max_states) + " ways to cut it",
        "merge the layers of each branch into one node, or plan a profile of our own (contiguous cuts)"};
  }
  AntichainStates states = number_states(graph, *relations, dag);
  for (std::size_t v = 0; v < graph.nodes.size(); ++v) {
    if (!relations->kept[v] || states.closure.back().test(v)) continue;
    return Problem{"profile: " + graph.nodes[v].id, "is not connected to the first layer",
                   "every layer must lead to or come from " + graph.nodes[relations->start].id};
  }
  return states;
}

}  // namespace millrace
