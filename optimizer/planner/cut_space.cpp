#include "optimizer/planner/cut_space.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_set>

namespace millrace {
namespace {

// The limit on sets that are looked at, for each state of `most_states`. Wide graphs are given up early.
constexpr std::int64_t kMostStepsPerState = 64;
// The limit on tensors, counted once for each cut that they cross. Beyond it only tensors from one layer to
// the next are known.
constexpr std::int64_t kMostCrossings = 10'000'000;
constexpr int kMostMessageStates = 1'000;  // up to so many states, messages are stored for each pair

using Words = std::vector<std::uint64_t>;

struct HashWords {
  std::size_t operator()(const Words& words) const {
    std::uint64_t hash = 14695981039346656037ull;
    for (std::uint64_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

bool test(const Words& words, std::size_t i) {
  return (words[i >> 6] >> (i & 63)) & 1;
}
void insert(Words& words, std::size_t i) {
  words[i >> 6] |= std::uint64_t{1} << (i & 63);
}
bool subset(const Words& a, const Words& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((a[i] & ~b[i]) != 0) return false;
  }
  return true;
}

struct Neighbours {
  std::vector<std::vector<int>> before, after;  // indexed by node; no neighbour comes twice
};

Neighbours neighbours_of(const LayerGraph& graph) {
  Neighbours result;
  result.before.resize(graph.nodes.size());
  result.after.resize(graph.nodes.size());
  for (const LayerEdge& edge : graph.edges) {
    result.before[edge.consumer].push_back(edge.producer);
    result.after[edge.producer].push_back(edge.consumer);
  }
  for (auto* lists : {&result.before, &result.after}) {
    for (std::vector<int>& list : *lists) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }
  return result;
}

/// Returns the bytes of each node's output: the largest of the edges that carry it.
std::vector<Bytes> tensor_bytes(const LayerGraph& graph) {
  std::vector<Bytes> bytes(graph.nodes.size(), 0);
  for (const LayerEdge& edge : graph.edges) bytes[edge.producer] = std::max(bytes[edge.producer], edge.bytes);
  return bytes;
}

/// Sorts by Kahn's algorithm. `pick` chooses an index in the list of ready nodes; `taken` is told the node.
template <class Pick, class Taken>
std::vector<int> kahn(const Neighbours& graph, Pick&& pick, Taken&& taken) {
  std::vector<int> missing(graph.before.size());
  std::vector<int> ready;
  for (std::size_t v = 0; v < missing.size(); ++v) {
    missing[v] = static_cast<int>(graph.before[v].size());
    if (missing[v] == 0) ready.push_back(static_cast<int>(v));
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const std::size_t at = pick(ready);
    const int node = ready[at];
    ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(at));
    order.push_back(node);
    taken(node);
    for (auto next = graph.after[node].rbegin(); next != graph.after[node].rend(); ++next) {
      if (--missing[*next] == 0) ready.push_back(*next);
    }
  }
  return order;
}

std::vector<int> branch_after_branch(const Neighbours& graph) {
  return kahn(
      graph, [](const std::vector<int>& ready) { return ready.size() - 1; }, [](int) {});
}

/// Returns an order in which the next layer is the one that adds least to the bytes alive. A layer adds its
/// own tensor and frees the tensors that it is the last to read.
std::vector<int> least_alive(const LayerGraph& layers, const Neighbours& graph) {
  const std::vector<Bytes> bytes = tensor_bytes(layers);
  std::vector<int> readers(graph.after.size());
  for (std::size_t v = 0; v < readers.size(); ++v) readers[v] = static_cast<int>(graph.after[v].size());
  const auto added = [&](int v) {
    Bytes sum = bytes[v];
    for (int u : graph.before[v]) sum -= readers[u] == 1 ? bytes[u] : 0;
    return sum;
  };
  return kahn(
      graph,
      [&](const std::vector<int>& ready) {
        std::size_t best = 0;
        for (std::size_t i = 1; i < ready.size(); ++i) {
          if (std::pair(added(ready[i]), ready[i]) < std::pair(added(ready[best]), ready[best])) best = i;
        }
        return best;
      },
      [&](int v) {
        for (int u : graph.before[v]) --readers[u];
      });
}

}  // namespace

CutSpace::CutSpace(const CostModel& model)
    : forward_(model.num_sheets(), {0.0}),
      backward_(model.num_sheets(), {0.0}),
      compute_(model.num_sheets(), {0.0}),
      parameters_{0},
      touched_{0},
      lowered_{0},
      fields_{0},
      saved_{0},
      between_{0} {}

void CutSpace::push_state(const CostModel& model, int node) {
  const LayerNode& layer = model.graph().nodes[node];
  for (int k = 0; k < model.num_sheets(); ++k) {
    forward_[k].push_back(forward_[k].back() + model.forward_s(k, node));
    backward_[k].push_back(backward_[k].back() + model.backward_s(k, node));
    compute_[k].push_back(forward_[k].back() + backward_[k].back());
  }
  parameters_.push_back(parameters_.back() + layer.parameter_bytes);
  touched_.push_back(touched_.back() + layer.touched_bytes());
  lowered_.push_back(lowered_.back() + layer.lowered_bytes);
  saved_.push_back(saved_.back() + layer.saved_bytes);
  between_.push_back(between_.back() + layer.kept_between());
}

CutSpace CutSpace::linear(const CostModel& model, std::vector<int> order) {
  const LayerGraph& graph = model.graph();
  CutSpace space(model);
  std::map<std::string, Bytes> fields;  // each counts with the first layer that reads it
  for (int node : order) {
    space.push_state(model, node);
    space.fields_.push_back(space.fields_.back() + graph.bytes_of_fields({node}, fields));
  }
  for (int k = 0; k < model.num_sheets(); ++k) {
    space.forward_[k].back() += model.loss_s(k);
    space.compute_[k].back() += model.loss_s(k);
  }
  space.order_ = std::move(order);
  space.make_workspaces(model);
  space.make_tensors(graph);
  space.make_least_behind();
  const std::size_t layers = space.order_.size();
  std::vector<int> place(graph.nodes.size());
  for (std::size_t at = 0; at < layers; ++at) place[space.order_[at]] = static_cast<int>(at);
  space.next_.assign(layers + 1, -1);
  space.next_kept_.assign(layers + 1, 0);
  std::vector<int> last_reader(graph.nodes.size(), -1);
  for (const LayerEdge& edge : graph.edges) {
    const int from = place[edge.producer];
    const int to = place[edge.consumer];
    if (to == from + 1) {
      space.next_[to] = std::max(space.next_[to], edge.bytes);
      space.next_kept_[to] = std::max(space.next_kept_[to], edge.kept_bytes.value_or(edge.bytes));
    }
    last_reader[edge.producer] = std::max(last_reader[edge.producer], to);
  }
  const std::vector<Bytes> bytes = tensor_bytes(graph);
  std::vector<Bytes> change(layers + 2, 0);
  for (std::size_t v = 0; v < bytes.size(); ++v) {
    if (last_reader[v] < 0) continue;
    change[place[v] + 1] += bytes[v];
    change[last_reader[v] + 1] -= bytes[v];
  }
  space.live_.assign(layers + 1, 0);
  for (std::size_t b = 1; b <= layers; ++b) space.live_[b] = space.live_[b - 1] + change[b];
  return space;
}

namespace {

bool has_workspaces(const CostModel& model, const std::vector<int>& order) {
  std::vector<int> executed = order;
  model.sort_by_execution(executed);
  return executed == order &&
         std::ranges::any_of(model.graph().nodes, [](const LayerNode& n) { return n.workspace_bytes > 0; });
}

}  // namespace

void CutSpace::make_workspaces(const CostModel& model) {
  if (!has_workspaces(model, order_)) return;
  const std::vector<LayerNode>& nodes = model.graph().nodes;
  for (const Halves halves : {Halves::Together, Halves::Apart}) {
    Workspaces& made = halves == Halves::Together ? together_ : apart_;
    made.freed.push_back(0);
    std::vector<Bytes>& single = made.most.emplace_back();
    for (const int node : order_) {
      made.freed.push_back(made.freed.back() + freed_by(nodes[node], halves));
      single.push_back(own_workspace(nodes[node], halves) + made.freed.back());
    }
    for (std::size_t width = 1; 2 * width <= order_.size(); width *= 2) {
      std::vector<Bytes> doubled;
      const std::vector<Bytes>& half = made.most.back();
      for (std::size_t i = 0; i + 2 * width <= order_.size(); ++i)
        doubled.push_back(std::max(half[i], half[i + width]));
      made.most.push_back(std::move(doubled));
    }
  }
}

/// When a layer's backward comes, the layers behind it have freed their bytes.
Bytes CutSpace::workspace_in(const Workspaces& of, int a, int b) const {
  if (a >= b) return 0;
  if (!of.late.empty()) {
    for (const auto& [bytes, place] : of.late[b]) {
      if (!holds(a, place)) return bytes;
    }
  }
  if (of.most.empty()) return 0;
  const auto width = static_cast<unsigned>(b - a);
  const int level = std::bit_width(width) - 1;
  const std::vector<Bytes>& most = of.most[level];
  return std::max<Bytes>(0, std::max(most[a], most[b - (1 << level)]) - of.freed[b]);
}

/// All layers of the state that are behind a layer count as freed, so the result is a lower bound for every
/// stage that ends at this state. A layer that keeps more than it frees counts as freeing nothing.
void CutSpace::make_late_workspaces(const CostModel& model) {
  if (!has_workspaces(model, order_)) return;
  const std::vector<LayerNode>& nodes = model.graph().nodes;
  for (const Halves halves : {Halves::Together, Halves::Apart}) {
    Workspaces& made = halves == Halves::Together ? together_ : apart_;
    for (int state = 0; state < states(); ++state) {
      auto& late = made.late.emplace_back();
      Bytes freed = 0;
      for (int at = static_cast<int>(order_.size()); at-- > 0;) {
        if (!holds(state, at)) continue;
        const LayerNode& node = nodes[order_[at]];
        const Bytes workspace = own_workspace(node, halves);
        if (workspace > freed) late.emplace_back(workspace - freed, at);
        freed += std::max<Bytes>(0, freed_by(node, halves));
      }
      std::ranges::sort(late, std::greater<>());
    }
  }
}

void CutSpace::make_tensors(const LayerGraph& graph) {
  std::vector<int> place(graph.nodes.size());
  for (std::size_t at = 0; at < order_.size(); ++at) place[order_[at]] = static_cast<int>(at);
  std::map<std::pair<int, std::string_view>, std::size_t> known;
  for (const LayerEdge& edge : graph.edges) {
    const int producer = place[edge.producer];
    const auto [at, is_new] = known.try_emplace({producer, edge.tensor}, tensors_.size());
    if (is_new) tensors_.push_back({producer, edge.bytes, {}, {}});
    Tensor& tensor = tensors_[at->second];
    tensor.bytes = std::min(tensor.bytes, edge.bytes);
    tensor.readers.push_back(place[edge.consumer]);
    tensor.kept.emplace_back(place[edge.consumer], edge.kept_bytes.value_or(edge.bytes));
  }
  for (Tensor& tensor : tensors_) std::ranges::sort(tensor.readers);
  std::int64_t crossings = 0;
  for (const Tensor& tensor : tensors_) crossings += tensor.readers.back() - tensor.producer;
  if (is_linear() && crossings > kMostCrossings) return;
  crossing_.resize(states());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const Tensor& tensor = tensors_[t];
    if (is_linear()) {
      for (int state = tensor.producer + 1; state <= tensor.readers.back(); ++state)
        crossing_[state].push_back(static_cast<int>(t));
      continue;
    }
    for (int state = 0; state < states(); ++state) {
      if (holds(state, tensor.producer) &&
          !std::ranges::all_of(tensor.readers, [&](int reader) { return holds(state, reader); }))
        crossing_[state].push_back(static_cast<int>(t));
    }
  }
}

void CutSpace::make_least_behind() {
  for (int b = 0; b < states(); ++b)
    least_behind_.push_back({parameters_[b], lowered_[b], fields_[b], saved_[b], between_[b]});
  for (std::size_t b = least_behind_.size() - 1; b-- > 0;) {
    for (Bytes LayerBytes::*bytes : {&LayerBytes::parameters, &LayerBytes::lowered, &LayerBytes::fields,
                                     &LayerBytes::saved, &LayerBytes::between})
      least_behind_[b].*bytes = std::min(least_behind_[b].*bytes, least_behind_[b + 1].*bytes);
  }
}

void CutSpace::make_messages() {
  if (states() > kMostMessageStates) return;
  incoming_.assign(parameters_.size() * parameters_.size(), 0);
  arrived_ = outgoing_ = incoming_;
  for (int a = 0; a < states(); ++a) {
    for (int b = a + 1; b < states(); ++b) {
      if (!nested(a, b)) continue;
      incoming_[place_of(a, b)] = incoming_of(a, b);
      arrived_[place_of(a, b)] = arrived_of(a, b);
      outgoing_[place_of(a, b)] = outgoing_of(a, b);
    }
  }
}

bool CutSpace::holds(int state, int place) const {
  return is_linear() ? place < state : test(members_[state], static_cast<std::size_t>(place));
}

Bytes CutSpace::incoming_of(int a, int b) const {
  if (crossing_.empty()) return std::max<Bytes>(0, next_[a]);
  Bytes bytes = 0;
  for (const int t : crossing_[a]) {
    const Tensor& tensor = tensors_[t];
    if (is_linear()) {
      const auto next = std::ranges::lower_bound(tensor.readers, a);
      if (*next < b) bytes += tensor.bytes;
    } else if (std::ranges::any_of(tensor.readers,
                                   [&](int reader) { return holds(b, reader) && !holds(a, reader); })) {
      bytes += tensor.bytes;
    }
  }
  return bytes;
}

Bytes CutSpace::arrived_of(int a, int b) const {
  if (crossing_.empty()) return next_kept_[a];
  Bytes bytes = 0;
  for (const int t : crossing_[a]) {
    Bytes most = 0;
    for (const auto& [reader, kept] : tensors_[t].kept)
      if (holds(b, reader) && !holds(a, reader)) most = std::max(most, kept);
    bytes += most;
  }
  return bytes;
}

Bytes CutSpace::outgoing_of(int a, int b) const {
  if (crossing_.empty()) return std::max<Bytes>(0, next_[b]);
  Bytes bytes = 0;
  for (const int t : crossing_[b]) {
    const Tensor& tensor = tensors_[t];
    if (!holds(a, tensor.producer)) bytes += tensor.bytes;
  }
  return bytes;
}

std::optional<CutSpace> CutSpace::complete(const CostModel& model, const std::vector<int>& order,
                                           int most_states) {
  const LayerGraph& graph = model.graph();
  const std::size_t layers = order.size();
  if (static_cast<int>(layers) >= most_states) return std::nullopt;  // it has layers + 1 states at least
  const Neighbours neighbours = neighbours_of(graph);
  std::vector<int> place(layers);
  for (std::size_t at = 0; at < layers; ++at) place[order[at]] = static_cast<int>(at);
  Words empty((layers + 63) / 64, 0);
  std::vector<Words> states{empty};
  std::unordered_set<Words, HashWords> known{empty};
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    for (std::size_t at = 0; at < layers; ++at) {
      if (test(states[i], at)) continue;
      const auto& before = neighbours.before[order[at]];
      const bool ready = std::all_of(before.begin(), before.end(), [&](int u) {
        return test(states[i], static_cast<std::size_t>(place[u]));
      });
      if (!ready) continue;
      if (++steps > kMostStepsPerState * most_states) return std::nullopt;
      Words next = states[i];
      insert(next, at);
      if (!known.insert(next).second) continue;
      if (static_cast<int>(states.size()) >= most_states) return std::nullopt;
      states.push_back(std::move(next));
    }
  }
  // All sums add layers in the same order, so they never fall when layers are added. Sorting by them puts a
  // state behind all states inside it.
  struct Sums {
    std::vector<double> forward, backward;
    Bytes parameters = 0, touched = 0, lowered = 0, fields = 0, saved = 0, between = 0;
    int size = 0;
    std::map<std::string, Bytes> counted{};  // of the fields
  };
  const int sheets = model.num_sheets();
  std::vector<Sums> sums;
  for (const Words& state : states) {
    Sums sum{std::vector<double>(sheets, 0), std::vector<double>(sheets, 0)};
    for (std::size_t at = 0; at < layers; ++at) {
      if (!test(state, at)) continue;
      const int node = order[at];
      for (int k = 0; k < sheets; ++k) {
        sum.forward[k] += model.forward_s(k, node);
        sum.backward[k] += model.backward_s(k, node);
      }
      sum.parameters += graph.nodes[node].parameter_bytes;
      sum.touched += graph.nodes[node].touched_bytes();
      sum.lowered += graph.nodes[node].lowered_bytes;
      sum.fields += graph.bytes_of_fields({node}, sum.counted);
      sum.saved += graph.nodes[node].saved_bytes;
      sum.between += graph.nodes[node].kept_between();
      ++sum.size;
    }
    if (sum.size == static_cast<int>(layers)) {
      for (int k = 0; k < sheets; ++k) sum.forward[k] += model.loss_s(k);
    }
    sums.push_back(std::move(sum));
  }
  std::vector<int> rank(states.size());
  std::iota(rank.begin(), rank.end(), 0);
  std::stable_sort(rank.begin(), rank.end(), [&](int a, int b) {
    const auto key = [&](int i) { return std::pair(sums[i].forward[0] + sums[i].backward[0], sums[i].size); };
    return key(a) < key(b);
  });
  CutSpace space(model);
  space.order_ = order;
  space.parameters_.clear();
  space.touched_.clear();
  space.lowered_.clear();
  space.fields_.clear();
  space.saved_.clear();
  space.between_.clear();
  const std::vector<Bytes> bytes = tensor_bytes(graph);
  for (int k = 0; k < sheets; ++k) {
    space.forward_[k].clear();
    space.backward_[k].clear();
    space.compute_[k].clear();
  }
  for (int i : rank) {
    for (int k = 0; k < sheets; ++k) {
      space.forward_[k].push_back(sums[i].forward[k]);
      space.backward_[k].push_back(sums[i].backward[k]);
      space.compute_[k].push_back(sums[i].forward[k] + sums[i].backward[k]);
    }
    space.parameters_.push_back(sums[i].parameters);
    space.touched_.push_back(sums[i].touched);
    space.lowered_.push_back(sums[i].lowered);
    space.fields_.push_back(sums[i].fields);
    space.saved_.push_back(sums[i].saved);
    space.between_.push_back(sums[i].between);
    Bytes live = 0;
    for (std::size_t at = 0; at < layers; ++at) {
      if (!test(states[i], at)) continue;
      const auto& after = neighbours.after[order[at]];
      const bool needed = std::any_of(after.begin(), after.end(), [&](int v) {
        return !test(states[i], static_cast<std::size_t>(place[v]));
      });
      if (needed) live += bytes[order[at]];
    }
    space.live_.push_back(live);
    space.members_.push_back(std::move(states[i]));
  }
  space.make_tensors(graph);
  space.make_least_behind();
  space.make_late_workspaces(model);
  space.next_.assign(space.members_.size(), -1);
  space.inside_.assign(space.members_.size(), {});
  for (std::size_t a = 0; a < space.members_.size(); ++a) {
    space.inside_[a].assign(space.members_.size(), false);
    for (std::size_t b = a + 1; b < space.members_.size(); ++b) {
      space.inside_[a][b] = subset(space.members_[a], space.members_[b]);
    }
  }
  space.make_messages();
  return space;
}

std::int64_t CutSpace::pairs() const {
  const auto n = static_cast<std::int64_t>(states());
  if (!is_linear()) return n * (n - 1) / 2;
  std::int64_t halvings = 1;  // a linear space is searched by bisection
  for (std::int64_t k = n; k > 1; k /= 2) ++halvings;
  return n * halvings;
}

std::vector<int> CutSpace::layers(int a, int b) const {
  if (is_linear()) return {order_.begin() + a, order_.begin() + b};
  std::vector<int> result;
  for (std::size_t at = 0; at < order_.size(); ++at) {
    if (test(members_[b], at) && !test(members_[a], at)) result.push_back(order_[at]);
  }
  return result;
}

bool has_one_order(const LayerGraph& graph) {
  const Result<std::vector<int>> order = graph.topological_order();
  if (!order) return false;
  const Neighbours neighbours = neighbours_of(graph);
  for (std::size_t i = 0; i + 1 < order->size(); ++i) {
    const auto& after = neighbours.after[(*order)[i]];
    if (!std::binary_search(after.begin(), after.end(), (*order)[i + 1])) return false;
  }
  return true;
}

std::vector<std::vector<int>> topological_orders(const LayerGraph& graph) {
  const Result<std::vector<int>> by_index = graph.topological_order();
  if (!by_index) return {};
  std::vector<std::vector<int>> orders{*by_index};
  if (has_one_order(graph)) return orders;
  const Neighbours neighbours = neighbours_of(graph);
  for (std::vector<int> order : {branch_after_branch(neighbours), least_alive(graph, neighbours)}) {
    if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
  }
  return orders;
}

}  // namespace millrace
