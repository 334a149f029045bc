// Gives the answers of PipeDream's own programme, faults included, for `--as-original` (docs/planning.md,
// section 2.2). It differs from level_solver.h if a graph with branches meets several levels of machines. An
// inner level's table has an entry for every pair of states whose numbers ascend, even if the second state
// does not follow the first. So a "stage" may hold layers twice or not at all. These pairs depend on the
// order of the states, so the order is made here as the original makes it. Source of the behaviour: SOSP'19
// section 3.1 and runs of the original.
#include "optimizer/pipedream/original_pipedream.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

namespace millrace {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
constexpr int kMostStates = 6'000;          // with several levels, which need tables of states x states
constexpr double kMostTableEntries = 60e6;  // states x states x machines
constexpr double kMostSplits = 60e9;        // splits looked at

using Bits = std::vector<std::uint64_t>;

bool has(const Bits& bits, int i) {
  return (bits[static_cast<std::size_t>(i) >> 6] >> (i & 63)) & 1;
}
void add(Bits& bits, int i) {
  bits[static_cast<std::size_t>(i) >> 6] |= std::uint64_t{1} << (i & 63);
}
void add(Bits& bits, const Bits& more) {
  for (std::size_t w = 0; w < bits.size(); ++w) bits[w] |= more[w];
}

/// The graph without inputs and unread parts of tuples; nodes keep their numbers in the file.
struct Layers {
  std::vector<char> is_there;
  std::vector<std::vector<int>> readers, producers;
  std::vector<Bits> before, after;  // layers before and after each layer, without itself
  std::vector<int> inputs;
  int first = -1;
};

void drop(Layers& layers, int node) {
  layers.is_there[node] = 0;
  for (int reader : layers.readers[node]) std::erase(layers.producers[reader], node);
  for (int producer : layers.producers[node]) std::erase(layers.readers[producer], node);
}

Result<Layers> layers_of(const PipeDreamGraph& graph) {
  const std::size_t n = graph.nodes.size();
  Layers layers{.is_there = std::vector<char>(n, 1),
                .readers = {},
                .producers = {},
                .before = {},
                .after = {},
                .inputs = {}};
  layers.readers.resize(n);
  layers.producers.resize(n);
  for (const auto& [from, to] : graph.edges) {
    layers.readers[from].push_back(to);
    layers.producers[to].push_back(from);
  }
  for (std::size_t v = 0; v < n; ++v) {
    if (layers.producers[v].empty() && graph.nodes[v].description.starts_with("Input"))
      layers.inputs.push_back(static_cast<int>(v));
  }
  for (int input : layers.inputs) drop(layers, input);
  std::vector<int> unread;
  for (std::size_t v = 0; v < n; ++v) {
    if (layers.is_there[v] && layers.readers[v].empty() &&
        graph.nodes[v].description.starts_with("__getitem__"))
      unread.push_back(static_cast<int>(v));
  }
  for (int node : unread) drop(layers, node);
  // The sets of nodes before and after a node are filled in Kahn's order.
  std::vector<int> missing(n), order;
  for (std::size_t v = 0; v < n; ++v) {
    missing[v] = static_cast<int>(layers.producers[v].size());
    if (!layers.is_there[v] || missing[v] > 0) continue;
    order.push_back(static_cast<int>(v));
    if (layers.first < 0) layers.first = static_cast<int>(v);
  }
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (int reader : layers.readers[order[at]]) {
      if (--missing[reader] == 0) order.push_back(reader);
    }
  }
  if (static_cast<std::ptrdiff_t>(order.size()) != std::ranges::count(layers.is_there, 1))
    return Problem{"", "the graph has a cycle", "a profile is acyclic"};
  if (order.empty()) return Problem{"", "the graph has no layers besides its inputs", ""};
  const Bits none((n + 63) / 64, 0);
  layers.before.assign(n, none);
  layers.after.assign(n, none);
  for (int v : order) {
    for (int reader : layers.readers[v]) {
      add(layers.before[reader], layers.before[v]);
      add(layers.before[reader], v);
    }
  }
  for (auto v = order.rbegin(); v != order.rend(); ++v) {
    for (int producer : layers.producers[*v]) {
      add(layers.after[producer], layers.after[*v]);
      add(layers.after[producer], *v);
    }
  }
  return layers;
}

struct States {
  std::vector<double> compute_s, activations, parameters, output;
  std::vector<Bits> closures;  // the layers up to each state
  std::vector<Bits> before;    // the states before each state, along the original's own edges
  int size() const { return static_cast<int>(compute_s.size()); }
};

/// Makes the states in the original's order.
class StateGraph {
 public:
  StateGraph(const PipeDreamGraph& graph, const Layers& layers) : graph_(graph), layers_(layers) {}

  Result<States> build(int most) {
    number({layers_.first});
    for (std::size_t at = 0; at < antichains_.size(); ++at) {
      if (static_cast<int>(antichains_.size()) > most) {
        return Problem{"--as-original", "the graph has more than " + std::to_string(most) + " states",
                       "leave it out: our own solver takes larger graphs"};
      }
      expand(static_cast<int>(at));
    }
    return in_order();
  }

 private:
  /// Returns an antichain's number. A new antichain gets the next number.
  int number(std::vector<int> antichain) {
    std::vector<int> key = antichain;
    std::ranges::sort(key);
    const auto [found, is_new] = numbers_.emplace(std::move(key), static_cast<int>(antichains_.size()));
    if (is_new) {
      antichains_.push_back(std::move(antichain));
      next_.emplace_back();
    }
    return found->second;
  }

  /// Returns the antichain behind the branch points that another branch still needs.
  std::vector<int> augmented(const std::vector<int>& antichain) const {
    Bits extra((layers_.is_there.size() + 63) / 64, 0);
    for (int member : antichain) {
      const Bits& before = layers_.before[member];
      for (std::size_t v = 0; v < layers_.is_there.size(); ++v) {
        if (!has(before, static_cast<int>(v))) continue;
        const bool needed = std::ranges::any_of(
            layers_.readers[v], [&](int reader) { return reader != member && !has(before, reader); });
        if (needed) add(extra, static_cast<int>(v));
      }
    }
    std::vector<int> result;
    for (std::size_t v = 0; v < layers_.is_there.size(); ++v) {
      if (has(extra, static_cast<int>(v))) result.push_back(static_cast<int>(v));
    }
    result.insert(result.end(), antichain.begin(), antichain.end());
    return result;
  }

  void expand(int from) {
    const std::vector<int> antichain = antichains_[from];
    const std::vector<int> whole = augmented(antichain);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int reader : layers_.readers[whole[at]]) {
        const Bits& after = layers_.after[reader];
        if (std::ranges::find(antichain, reader) != antichain.end() ||
            std::ranges::any_of(whole, [&](int member) { return has(after, member); }))
          continue;
        std::vector<int> moved = whole, kept;
        moved[at] = reader;
        for (int member : moved) {
          const Bits& later = layers_.after[member];
          if (std::ranges::none_of(moved, [&](int other) { return has(later, other); }) &&
              std::ranges::find(kept, member) == kept.end())
            kept.push_back(member);
        }
        const int to = number(std::move(kept));
        next_[from].push_back(to);
      }
    }
  }

  /// Returns the states in the reverse of the order in which a depth-first search finishes them.
  std::vector<int> finished_order() const {
    std::vector<int> finished;
    std::vector<char> seen(antichains_.size(), 0);
    std::vector<std::pair<int, std::size_t>> path;
    for (std::size_t root = 0; root < antichains_.size(); ++root) {
      if (seen[root]) continue;
      seen[root] = 1;
      path.emplace_back(static_cast<int>(root), 0);
      while (!path.empty()) {
        auto& [state, at] = path.back();
        const std::vector<int>& next = next_[state];
        if (at == next.size()) {
          finished.push_back(state);
          path.pop_back();
        } else if (const int to = next[at++]; !seen[to]) {
          seen[to] = 1;
          path.emplace_back(to, 0);
        }
      }
    }
    std::ranges::reverse(finished);
    return finished;
  }

  States in_order() const {
    const std::vector<int> order = finished_order();
    std::vector<int> place(order.size());
    for (std::size_t at = 0; at < order.size(); ++at) place[order[at]] = static_cast<int>(at);
    States states;
    states.before.assign(order.size(), Bits((order.size() + 63) / 64, 0));
    for (std::size_t at = 0; at < order.size(); ++at) {
      add_state(antichains_[order[at]], states);
      for (int to : next_[order[at]]) {
        Bits& before = states.before[place[to]];
        add(before, states.before[at]);
        add(before, static_cast<int>(at));
      }
    }
    return states;
  }

  void add_state(const std::vector<int>& antichain, States& states) const {
    Bits closure((layers_.is_there.size() + 63) / 64, 0);
    double output = 0;
    for (int member : augmented(antichain)) {
      add(closure, layers_.before[member]);
      add(closure, member);
      output += graph_.nodes[member].activation_bytes();
    }
    double compute = 0, activations = 0, parameters = 0;
    for (std::size_t v = 0; v < layers_.is_there.size(); ++v) {
      if (!has(closure, static_cast<int>(v))) continue;
      compute += (graph_.nodes[v].forward_ms + graph_.nodes[v].backward_ms) / 1000;
      activations += graph_.nodes[v].activation_bytes();
      parameters += graph_.nodes[v].parameter_bytes;
    }
    states.compute_s.push_back(compute);
    states.activations.push_back(activations);
    states.parameters.push_back(parameters);
    states.output.push_back(output);
    states.closures.push_back(std::move(closure));
  }

  const PipeDreamGraph& graph_;
  const Layers& layers_;
  std::vector<std::vector<int>> antichains_;
  std::vector<std::vector<int>> next_;  // may name a state twice
  std::map<std::vector<int>, int> numbers_;
};

/// Entry A(i, j, m): the least time of states i .. j on m + 1 machines, the split before the last stage, and
/// that stage's machines.
struct Entry {
  double time = kNone;
  int split = -1;
  int split_machines = 0;  // index of the entry before the split
  int machines = 0;
};

struct Level {
  int machines = 1;
  int machines_below = 1;
  double bandwidth = 1;
  bool is_last = true;
};

class Tables {
 public:
  Tables(const States& states, const PipeDreamOptions& options)
      : states_(states), options_(options), size_(states.size()) {}

  /// Fills the tables. Returns false if the original stops with an error of Python's.
  bool solve(const Level& level, const std::vector<double>* below) {
    level_ = level;
    below_ = below;
    rows_ = level.is_last ? 1 : size_;
    entries_.assign(static_cast<std::size_t>(rows_) * size_ * level.machines, {});
    for (int i = 0; i < rows_; ++i) {
      for (int j = i; j < size_; ++j) single_stages(i, j);
      for (int m = 1; m < level.machines; ++m) {
        for (int j = i + 1; j < size_; ++j) {
          if (!splits(i, j, m)) return false;
        }
      }
    }
    return true;
  }

  const Entry& at(int i, int j, int m) const {
    return entries_[(static_cast<std::size_t>(i) * size_ + j) * level_.machines + m];
  }
  std::vector<double> on_all_machines() const {
    std::vector<double> times(static_cast<std::size_t>(size_) * size_, kNone);
    for (int i = 0; i < rows_; ++i)
      for (int j = i; j < size_; ++j)
        times[static_cast<std::size_t>(i) * size_ + j] = at(i, j, level_.machines - 1).time;
    return times;
  }
  int machines() const { return level_.machines; }

 private:
  Entry& entry(int i, int j, int m) {
    return entries_[(static_cast<std::size_t>(i) * size_ + j) * level_.machines + m];
  }
  double difference(const std::vector<double>& sums, int i, int j) const {
    return sums[j] - (i == 0 ? 0 : sums[static_cast<std::size_t>(i) - 1]);
  }
  double compute(int i, int j) const {
    return below_ == nullptr ? difference(states_.compute_s, i, j)
                             : (*below_)[static_cast<std::size_t>(i) * size_ + j];
  }
  /// Returns whether the stage passes PipeDream's memory test. `later` machines come after the stage's own.
  bool fits(int i, int j, int later, int machines) const {
    if (!options_.memory_bytes) return true;
    const double stashes = (later + machines - 1) / machines;
    return stashes * (difference(states_.activations, i, j) + difference(states_.parameters, i, j)) <=
           *options_.memory_bytes;
  }

  void single_stages(int i, int j) {
    const int most = options_.straight ? 1 : level_.machines;
    for (int m = 0; m < most; ++m) {
      if (!fits(i, j, level_.machines - (m + 1), m + 1) || compute(i, j) == kNone) continue;
      const double sync = 4.0 * m * difference(states_.parameters, i, j) / (level_.bandwidth * (m + 1)) /
                          level_.machines_below;
      entry(i, j, m) = {(compute(i, j) + sync) / (m + 1), -1, 0, m + 1};
    }
  }

  bool splits(int i, int j, int m) {
    Entry best = at(i, j, m);
    if (options_.use_fewer_machines) {
      const Entry& fewer = at(i, j, m - 1);
      if (best.time != kNone && fewer.time == kNone) return false;  // None < float
      if (best.time == kNone || fewer.time < best.time) best = fewer;
    }
    const int most = options_.straight ? 1 : m;
    const Bits& before = states_.before[j];
    for (int k = 0; k < j; ++k) {
      if (!has(before, k) || (i > 0 && has(states_.before[static_cast<std::size_t>(i) - 1], k))) continue;
      const double inner = compute(k + 1, j);
      if (inner == kNone || k < i) continue;
      const double weights = difference(states_.parameters, k + 1, j);
      for (int last = 1; last <= most; ++last) {
        const Entry& first = at(i, k, m - last);
        if (first.time == kNone || !fits(k + 1, j, level_.machines - (m + 1), last)) continue;
        double time =
            std::max(first.time, (inner + 4.0 * (last - 1) * weights / (level_.bandwidth * last)) / last);
        if (options_.activation_compression) {
          const double rate = level_.bandwidth * last * *options_.activation_compression;
          time = std::max(time, 2 * states_.output[k] / rate);
          if (j < size_ - 1) time = std::max(time, 2 * states_.output[j] / rate);
        }
        if (time < best.time) best = {time, k, m - last, last};
      }
    }
    entry(i, j, m) = best;
    return true;
  }

  const States& states_;
  const PipeDreamOptions& options_;
  const int size_;
  Level level_;
  const std::vector<double>* below_ = nullptr;
  int rows_ = 0;
  std::vector<Entry> entries_;
};

struct Interval {
  int begin = 0, end = 0;    // the stage covers states begin .. end - 1
  std::vector<int> workers;  // first workers of its components
};

/// Cuts `whole` by one level, whose components have `below` workers each.
std::vector<Interval> stages_of(const Tables& tables, const Interval& whole, int below) {
  std::vector<Interval> stages;
  std::vector<int> machines;
  const Entry* entry = &tables.at(whole.begin, whole.end - 1, tables.machines() - 1);
  int end = whole.end;
  while (entry->split >= 0) {
    stages.push_back({entry->split + 1, end, {}});
    machines.push_back(entry->machines);
    end = entry->split + 1;
    entry = &tables.at(whole.begin, entry->split, entry->split_machines);
  }
  stages.push_back({whole.begin, end, {}});
  machines.push_back(entry->machines);
  std::ranges::reverse(stages);
  std::ranges::reverse(machines);
  int first = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    stages[s].workers = first_workers(whole.workers, first, machines[s], below);
    first += machines[s];
  }
  return stages;
}

}  // namespace

Result<PipeDreamAnswer> plan_as_original(const PipeDreamGraph& graph, const PipeDreamOptions& options) {
  const Result<Layers> layers = layers_of(graph);
  if (!layers) return layers.problems();
  const Result<States> found = StateGraph(graph, *layers).build(kMostStates);
  if (!found) return found.problems();
  const States& states = *found;
  const double s = states.size();
  const int most_machines = std::ranges::max(options.machines);
  const double rows = options.machines.size() > 1 ? s : 1;
  if (rows * s * most_machines > kMostTableEntries ||
      rows * s * s * most_machines * most_machines / 12 > kMostSplits) {
    return Problem{"--as-original",
                   "the original's tables are too large for " + std::to_string(states.size()) +
                       " states on " + std::to_string(most_machines) + " machines",
                   "leave it out: our own solver takes larger graphs"};
  }
  std::vector<Tables> tables;
  std::vector<std::vector<double>> times;
  tables.reserve(options.machines.size());
  times.reserve(options.machines.size());
  int below = 1;
  for (std::size_t level = 0; level < options.machines.size(); ++level) {
    tables.emplace_back(states, options);
    const bool is_last = level + 1 == options.machines.size();
    if (!tables.back().solve({options.machines[level], below, options.bandwidths[level], is_last},
                             level == 0 ? nullptr : &times.back())) {
      return Problem{"--as-original",
                     "the original stops here: with its memory test and fewer machines it compares None with "
                     "a number",
                     "leave out --as-original, --use-fewer-machines or --memory"};
    }
    if (!is_last) times.push_back(tables.back().on_all_machines());
    below = options.machines[level];
  }
  PipeDreamAnswer answer;
  answer.single_machine_time_s = states.compute_s.back();
  answer.pipeline_time_s = tables.back().at(0, states.size() - 1, options.machines.back() - 1).time;
  if (answer.pipeline_time_s == kNone)
    return Problem{
        options.memory_bytes ? "--memory" : "--machines", "no plan satisfies the options",
        options.memory_bytes ? "give more bytes per worker" : "allow replication or fewer machines"};
  std::vector<Interval> stages{{0, states.size(), {0}}};
  int workers = std::reduce(options.machines.begin(), options.machines.end(), 1, std::multiplies());
  for (std::size_t level = tables.size(); level-- > 0;) {
    workers /= options.machines[level];
    std::vector<Interval> inner;
    for (const Interval& stage : stages) {
      const std::vector<Interval> parts = stages_of(tables[level], stage, workers);
      inner.insert(inner.end(), parts.begin(), parts.end());
    }
    stages = std::move(inner);
  }
  Bits placed((graph.nodes.size() + 63) / 64, 0);
  for (const Interval& stage : stages) {
    PipeDreamStage& made = answer.stages.emplace_back();
    const auto end = static_cast<std::size_t>(stage.end) - 1;
    made.compute_time_s =
        states.compute_s[end] -
        (stage.begin == 0 ? 0 : states.compute_s[static_cast<std::size_t>(stage.begin) - 1]);
    made.replication = static_cast<int>(stage.workers.size());
    made.workers = stage.workers;
    for (std::size_t v = 0; v < graph.nodes.size(); ++v) {
      const int node = static_cast<int>(v);
      const bool input =
          answer.stages.size() == 1 && std::ranges::find(layers->inputs, node) != layers->inputs.end();
      if (input || (has(states.closures[end], node) && !has(placed, node)))
        made.nodes.push_back(graph.nodes[v].id);
    }
    add(placed, states.closures[end]);
  }
  return answer;
}

}  // namespace millrace
