#include "optimizer/pipedream/antichain.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

namespace millrace {
namespace {

using Word = std::uint64_t;

bool test(const Word* set, int v) {
  return (set[v >> 6] >> (v & 63)) & 1;
}

void insert(Word* set, int v) {
  set[v >> 6] |= Word{1} << (v & 63);
}

template <class Visit>
void for_each_member(const Word* set, std::size_t words, Visit visit) {
  for (std::size_t w = 0; w < words; ++w) {
    for (Word rest = set[w]; rest != 0; rest &= rest - 1) {
      visit(static_cast<int>(w * 64) + std::countr_zero(rest));
    }
  }
}

/// Lists of small integers, one after the other.
struct Lists {
  std::vector<int> begin;  // indexed by list: its first item; one more entry for the end
  std::vector<int> items;

  const int* first(int i) const { return items.data() + begin[i]; }
  const int* end(int i) const { return items.data() + begin[i + 1]; }
};

/// One bit set for each node.
struct Sets {
  std::size_t words = 0;
  std::vector<Word> bits;

  Sets() = default;
  Sets(std::size_t count, std::size_t words_each) : words(words_each), bits(count * words_each) {}
  Word* of(int v) { return bits.data() + static_cast<std::size_t>(v) * words; }
  const Word* of(int v) const { return bits.data() + static_cast<std::size_t>(v) * words; }
};

void unite(Word* into, const Word* set, std::size_t words) {
  for (std::size_t w = 0; w < words; ++w) into[w] |= set[w];
}

// The graph without the dropped nodes; node indices stay those of the file.
struct Relations {
  std::vector<char> kept;
  std::vector<int> inputs;
  Lists out;               // kept nodes only
  Lists in;                // kept nodes only
  std::vector<int> order;  // topological, kept nodes only
  std::vector<int> place;  // indexed by node: its place in `order`
  int start = -1;          // the first source
  bool one_source = true;  // every node follows `start`
};

// Returns, for each node, the kept nodes that it reads (`incoming`) or that read it, in file order.
Lists neighbours(const PipeDreamGraph& graph, const std::vector<char>& kept, bool incoming) {
  Lists lists;
  lists.begin.assign(graph.nodes.size() + 1, 0);
  for (const auto& [from, to] : graph.edges) {
    if (kept[from] && kept[to]) ++lists.begin[(incoming ? to : from) + 1];
  }
  std::partial_sum(lists.begin.begin(), lists.begin.end(), lists.begin.begin());
  lists.items.resize(lists.begin.back());
  std::vector<int> next(lists.begin.begin(), lists.begin.end() - 1);
  for (const auto& [from, to] : graph.edges) {
    if (kept[from] && kept[to]) lists.items[next[incoming ? to : from]++] = incoming ? from : to;
  }
  return lists;
}

void drop_synthetic_ends(const PipeDreamGraph& graph, Relations& r) {
  const int n = static_cast<int>(graph.nodes.size());
  r.kept.assign(n, 1);
  std::vector<char> has_in(n, 0);
  for (const auto& [from, to] : graph.edges) has_in[to] = 1;
  for (int v = 0; v < n; ++v) {
    if (!has_in[v] && graph.nodes[v].description.starts_with("Input")) r.inputs.push_back(v);
  }
  for (int v : r.inputs) r.kept[v] = 0;
  std::vector<char> has_out(n, 0);
  for (const auto& [from, to] : graph.edges) {
    if (r.kept[from] && r.kept[to]) has_out[from] = 1;
  }
  for (int v = 0; v < n; ++v) {
    if (r.kept[v] && !has_out[v] && graph.nodes[v].description.starts_with("__getitem__")) r.kept[v] = 0;
  }
}

// Fills `order` by Kahn's algorithm. With a cycle, `order` lacks some of the kept nodes.
void sort_topologically(Relations& r) {
  const int n = static_cast<int>(r.kept.size());
  std::vector<int> waiting(n);
  for (int v = 0; v < n; ++v) {
    waiting[v] = r.in.begin[v + 1] - r.in.begin[v];
    if (!r.kept[v] || waiting[v] > 0) continue;
    r.order.push_back(v);
    if (r.start >= 0) r.one_source = false;
    if (r.start < 0) r.start = v;
  }
  for (std::size_t at = 0; at < r.order.size(); ++at) {
    for (const int* w = r.out.first(r.order[at]); w != r.out.end(r.order[at]); ++w) {
      if (--waiting[*w] == 0) r.order.push_back(*w);
    }
  }
}

Result<Relations> relations_of(const PipeDreamGraph& graph) {
  Relations r;
  drop_synthetic_ends(graph, r);
  const auto kept = static_cast<std::size_t>(std::count(r.kept.begin(), r.kept.end(), 1));
  if (kept == 0) return Problem{"profile", "no layers besides inputs", "profile a model with layers"};
  r.out = neighbours(graph, r.kept, false);
  r.in = neighbours(graph, r.kept, true);
  r.order.reserve(kept);
  sort_topologically(r);
  if (r.order.size() != kept)
    return Problem{"profile", "the edges form a cycle", "a profile is an acyclic graph"};
  r.place.resize(graph.nodes.size());
  for (std::size_t at = 0; at < r.order.size(); ++at) r.place[r.order[at]] = static_cast<int>(at);
  return r;
}

// ---- costs
// ----------------------------------------------------------------------------------------------------

// Rounds to multiples of a power of two. It is small enough that a value loses at most 2^-50 of the total,
// and large enough that every sum of values is exact.
std::vector<double> on_grid(std::vector<double> values) {
  const double total = std::accumulate(values.begin(), values.end(), 0.0);
  if (!(total > 0) || !std::isfinite(total)) return values;
  const double shift = std::ldexp(1.5, std::ilogb(total) + 2);
  for (double& value : values) value = (value + shift) - shift;
  return values;
}

struct Costs {
  std::vector<double> compute_s;
  std::vector<double> parameter_bytes;
  std::vector<double> activation_bytes;
};

Costs costs_of(const PipeDreamGraph& graph, const Relations& r) {
  const std::size_t n = graph.nodes.size();
  Costs costs{std::vector<double>(n), std::vector<double>(n), std::vector<double>(n)};
  for (std::size_t v = 0; v < n; ++v) {
    if (!r.kept[v]) continue;
    const PipeDreamNode& node = graph.nodes[v];
    costs.compute_s[v] = (node.forward_ms + node.backward_ms) / 1000;
    costs.parameter_bytes[v] = node.parameter_bytes;
    costs.activation_bytes[v] = node.activation_bytes();
  }
  return {on_grid(std::move(costs.compute_s)), on_grid(std::move(costs.parameter_bytes)),
          on_grid(std::move(costs.activation_bytes))};
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

// ---- what a cut sends
// -------------------------------------------------------------------------------------------

// The branch points that join an antichain when it is augmented. Node u joins for the member s if u comes
// before s and has a reader that is neither s nor before s. `nodes` are the nodes with at least two readers:
// no others can join. `extra.of(s)` has a bit for each of `nodes`.
struct Branches {
  std::vector<int> nodes;
  Sets extra;
};

Branches branches_of(const Relations& r, std::size_t words) {
  const int n = static_cast<int>(r.kept.size());
  Branches result;
  for (int u = 0; u < n; ++u) {
    if (r.kept[u] && r.out.begin[u + 1] - r.out.begin[u] > 1) result.nodes.push_back(u);
  }
  result.extra = Sets(n, (result.nodes.size() + 63) / 64);
  if (result.nodes.empty()) return result;
  Sets after(n, words);  // nodes that follow each node, without itself
  for (auto at = r.order.rbegin(); at != r.order.rend(); ++at) {
    for (const int* w = r.out.first(*at); w != r.out.end(*at); ++w) {
      unite(after.of(*at), after.of(*w), words);
      insert(after.of(*at), *w);
    }
  }
  std::vector<Word> joins(words);
  for (std::size_t b = 0; b < result.nodes.size(); ++b) {
    const int u = result.nodes[b];
    std::fill(joins.begin(), joins.end(), ~Word{0});
    for (const int* w = r.out.first(u); w != r.out.end(u);
         ++w) {  // u does not join for an s that is, or follows, each reader
      const Word own = Word{1} << (*w & 63);
      for (std::size_t i = 0; i < words; ++i) {
        joins[i] &= after.of(*w)[i] | (i == static_cast<std::size_t>(*w >> 6) ? own : 0);
      }
    }
    for (std::size_t i = 0; i < words; ++i) joins[i] = after.of(u)[i] & ~joins[i];
    for_each_member(joins.data(), words, [&](int s) { insert(result.extra.of(s), static_cast<int>(b)); });
  }
  return result;
}

// ---- the states
// -------------------------------------------------------------------------------------------------

// Finds all states (docs/planning.md, 2.1). The first state is the closure of `start`. Each state leads to
// further ones: its unions with the closures of nodes that read one of its members.
class Enumeration {
 public:
  Enumeration(const PipeDreamGraph& graph, const Relations& r)
      : r_(r),
        costs_(costs_of(graph, r)),
        words_((graph.nodes.size() + 63) / 64),
        branches_(branches_of(r, words_)) {
    for (const PipeDreamNode& node : graph.nodes) outputs_.push_back(node.activation_bytes());
  }

  /// Finds the states. Returns false if there are more than `most`.
  bool run(int most) { return r_.one_source ? run_from_one_source(most) : run_by_search(most); }

  AntichainStates numbered() {
    const int n = static_cast<int>(compute_.size());
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    const auto before = [this](int a, int b) { return is_before(a, b); };
    if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
    AntichainStates states;
    states.words = words_;
    states.inputs = r_.inputs;
    states.compute_s = picked(compute_, order);
    states.parameter_bytes = picked(parameters_, order);
    states.activation_bytes = picked(activations_, order);
    states.output_bytes.resize(n);
    states.closures.resize(closures_.size());
    for (int k = 0; k < n; ++k) {
      states.output_bytes[k] = output_of(order[k]);
      std::copy_n(set_of(closures_, order[k]), words_,
                  states.closures.begin() + static_cast<std::ptrdiff_t>(k * words_));
    }
    return states;
  }

 private:
  const Word* set_of(const std::vector<Word>& sets, int state) const {
    return sets.data() + static_cast<std::size_t>(state) * words_;
  }

  static std::vector<double> picked(const std::vector<double>& values, const std::vector<int>& order) {
    std::vector<double> result(order.size());
    for (std::size_t k = 0; k < order.size(); ++k) result[k] = values[order[k]];
    return result;
  }

  int count_states() const { return static_cast<int>(compute_.size()); }
  Word* closure_of(int state) { return closures_.data() + static_cast<std::size_t>(state) * words_; }
  Word* tops_of(int state) { return tops_.data() + static_cast<std::size_t>(state) * words_; }

  // Appends a copy of the state `model`, or a state without layers if `model` is negative.
  void append(int model) {
    const auto append_to = [model](auto& values) { values.push_back(model < 0 ? 0 : values[model]); };
    append_to(size_);
    append_to(compute_);
    append_to(parameters_);
    append_to(activations_);
    for (std::vector<Word>* sets : {&closures_, &tops_}) {
      sets->resize(sets->size() + words_);
      if (model >= 0)
        std::copy_n(set_of(*sets, model), words_, sets->end() - static_cast<std::ptrdiff_t>(words_));
    }
  }

  void count(int state, int v) {
    ++size_[state];
    compute_[state] += costs_.compute_s[v];
    parameters_[state] += costs_.parameter_bytes[v];
    activations_[state] += costs_.activation_bytes[v];
  }

  // ---- every node follows the start
  // The states are the sets that hold the start and, with every node, its writers. Each set is reached once,
  // from the set without its topologically last node.

  bool run_from_one_source(int most) {
    append(-1);
    add(0, r_.start);
    open_begin_.assign(1, 0);
    open_readers(0, r_.start);
    for (int parent = 0; parent < count_states(); ++parent) {
      for (int at = open_begin_[parent]; at < open_begin_[parent + 1]; ++at) {
        if (count_states() >= most) return false;
        extend(parent, open_[at]);
      }
    }
    return true;
  }

  // Adds node v to a state that has all its writers.
  void add(int state, int v) {
    count(state, v);
    insert(closure_of(state), v);
    insert(tops_of(state), v);
    for (const int* u = r_.in.first(v); u != r_.in.end(v); ++u)
      tops_of(state)[*u >> 6] &= ~(Word{1} << (*u & 63));
  }

  // Opens the readers of v that have all their writers in the state: v was the last of these.
  void open_readers(int state, int v) {
    const auto is_here = [closure = closure_of(state)](int u) { return test(closure, u); };
    const auto first = static_cast<std::ptrdiff_t>(open_.size());
    for (const int* w = r_.out.first(v); w != r_.out.end(v); ++w) {
      if (!std::all_of(r_.in.first(*w), r_.in.end(*w), is_here)) continue;
      if (std::find(open_.begin() + first, open_.end(), *w) == open_.end())
        open_.push_back(*w);  // parallel edges
    }
    open_begin_.push_back(static_cast<int>(open_.size()));
  }

  void extend(int parent, int v) {
    const int child = count_states();
    append(parent);
    add(child, v);
    for (int at = open_begin_[parent]; at < open_begin_[parent + 1]; ++at) {
      if (const int other = open_[at]; r_.place[other] > r_.place[v]) open_.push_back(other);
    }
    open_readers(child, v);
  }

  // ---- several sources
  // Nodes behind other sources join a state as ancestors of a node. Then they lead to further states.

  bool run_by_search(int most) {
    const int n = static_cast<int>(r_.kept.size());
    Sets before(n, words_);  // ancestors of each node, without itself
    Sets readers(n, words_);
    for (int v : r_.order) {
      for (const int* w = r_.out.first(v); w != r_.out.end(v); ++w) {
        unite(before.of(*w), before.of(v), words_);
        insert(before.of(*w), v);
        insert(readers.of(v), *w);
      }
    }
    std::vector<Word> leads_to(readers.of(r_.start),
                               readers.of(r_.start) + words_);  // [state][words]: readers outside it
    std::vector<Word> added(words_);
    append(-1);
    add(0, r_.start);
    add_to_index(0);
    for (int parent = 0; parent < count_states(); ++parent) {
      const std::vector<Word> next(set_of(leads_to, parent), set_of(leads_to, parent) + words_);
      bool fits = true;
      for_each_member(next.data(), words_, [&](int v) {
        if (!fits) return;
        for (std::size_t w = 0; w < words_; ++w) added[w] = before.of(v)[w] & ~closure_of(parent)[w];
        insert(added.data(), v);
        if (is_known(parent, added)) return;
        const int child = count_states();
        fits = child < most;
        append(parent);
        leads_to.insert(leads_to.end(), next.begin(), next.end());
        Word* const leads = leads_to.data() + static_cast<std::size_t>(child) * words_;
        for_each_member(added.data(), words_, [&](int u) {
          count(child, u);
          unite(leads, readers.of(u), words_);
        });
        unite(closure_of(child), added.data(), words_);
        for (std::size_t w = 0; w < words_; ++w) {
          leads[w] &= ~closure_of(child)[w];
          tops_of(child)[w] &= ~before.of(v)[w];
        }
        insert(tops_of(child), v);
        add_to_index(child);
      });
      if (!fits) return false;
    }
    return true;
  }

  static std::size_t mixed(std::size_t hash, Word word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ (hash >> 29);
  }

  // Returns the place in the index of the union of two sets: that of an equal state, or an empty one.
  std::size_t place_of(const Word* parent, const Word* added) const {
    std::size_t hash = 0;
    for (std::size_t w = 0; w < words_; ++w) hash = mixed(hash, parent[w] | added[w]);
    for (;; ++hash) {
      const int state = index_[hash & (index_.size() - 1)];
      if (state < 0) break;
      const Word* closure = set_of(closures_, state);
      std::size_t w = 0;
      while (w < words_ && closure[w] == (parent[w] | added[w])) ++w;
      if (w == words_) break;
    }
    return hash & (index_.size() - 1);
  }
  bool is_known(int parent, const std::vector<Word>& added) const {
    return index_[place_of(set_of(closures_, parent), added.data())] >= 0;
  }
  void add_to_index(int state) {
    const auto put = [this](int s) { index_[place_of(set_of(closures_, s), set_of(closures_, s))] = s; };
    if (index_.size() < 4 * static_cast<std::size_t>(state + 1)) {
      index_.assign(std::max<std::size_t>(256, index_.size() * 4), -1);
      for (int s = 0; s < state; ++s) put(s);
    }
    put(state);
  }

  // Orders states by compute time, then size, then nodes in file order.
  bool is_before(int a, int b) const {
    if (compute_[a] != compute_[b]) return compute_[a] < compute_[b];
    if (size_[a] != size_[b]) return size_[a] < size_[b];
    const Word* x = set_of(closures_, a);
    const Word* y = set_of(closures_, b);
    for (std::size_t w = 0; w < words_; ++w) {
      if (const Word differs = x[w] ^ y[w]; differs != 0) return (x[w] & differs & -differs) != 0;
    }
    return false;
  }

  // Returns the activation bytes of the antichain (the tops) and of the branch points that join it.
  double output_of(int state) const {
    const Word* tops = set_of(tops_, state);
    Word joined[16] = {};
    std::vector<Word> many;
    const std::size_t words = branches_.extra.words;
    Word* joins = joined;
    if (words > std::size(joined)) {
      many.resize(words);
      joins = many.data();
    }
    double sum = 0;
    for_each_member(tops, words_, [&](int s) {
      sum += outputs_[s];
      unite(joins, branches_.extra.of(s), words);
    });
    for_each_member(joins, words, [&](int b) {
      if (!test(tops, branches_.nodes[b])) sum += outputs_[branches_.nodes[b]];
    });
    return sum;
  }

  const Relations& r_;
  const Costs costs_;
  const std::size_t words_;
  const Branches branches_;
  std::vector<double> outputs_;
  // The members that follow are indexed by state, in the order of discovery.
  std::vector<Word> closures_;
  std::vector<Word> tops_;  // the antichain itself: nodes that no other node of the state follows
  std::vector<int> size_;
  std::vector<double> compute_;
  std::vector<double> parameters_;
  std::vector<double> activations_;
  std::vector<int> open_;        // nodes that a state can grow by: they come after its last one in `order`
  std::vector<int> open_begin_;  // indexed by state: its first node in open_; one more entry for the end
  std::vector<int> index_;       // hash table of closures with open addressing; -1: empty
};

}  // namespace

std::vector<int> AntichainStates::nodes_between(int from, int to) const {
  std::vector<int> nodes;
  for (std::size_t w = 0; w < words; ++w) {
    Word inside = closure(to)[w];
    if (from >= 0) inside &= ~closure(from)[w];
    for (; inside != 0; inside &= inside - 1)
      nodes.push_back(static_cast<int>(w * 64) + std::countr_zero(inside));
  }
  return nodes;
}

Result<AntichainStates> enumerate_antichains(const PipeDreamGraph& graph, int max_states) {
  if (Problems problems = bad_costs(graph); !problems.empty()) return problems;
  const Result<Relations> relations = relations_of(graph);
  if (!relations) return relations.problems();
  Enumeration enumeration(graph, *relations);
  if (!enumeration.run(max_states)) {
    return Problem{
        "profile", "its parallel branches give more than " + std::to_string(max_states) + " ways to cut it",
        "merge the layers of each branch into one node, or plan a profile of our own (contiguous cuts)"};
  }
  AntichainStates states = enumeration.numbered();
  for (int v = 0; v < static_cast<int>(graph.nodes.size()); ++v) {
    if (!relations->kept[v] || test(states.closure(states.last()), v)) continue;
    return Problem{"profile: " + graph.nodes[v].id, "is not connected to the first layer",
                   "every layer must lead to or come from " + graph.nodes[relations->start].id};
  }
  return states;
}

}  // namespace millrace
