// PipeDream's planner: levels solved inner to outer, each by level_solver.h. Source: SOSP'19 section 3.1.
#include <algorithm>
#include <numeric>
#include <string>
#include <unordered_map>

#include "optimizer/pipedream/level_solver.h"
#include "optimizer/pipedream/original_pipedream.h"
#include "optimizer/pipedream/pipedream_planner.h"

namespace millrace {
namespace {

// Several levels need a table of states x states.
constexpr int kMaxStatesOfLevels = 6'000;
constexpr int kMaxWorkers = 4'096;

Problems check_levels(const PipeDreamOptions& options) {
  Problems problems;
  if (options.machines.empty()) problems.push_back({"--machines", "no level given", "for example 8,2"});
  if (options.machines.size() != options.bandwidths.size()) {
    problems.push_back({"--bandwidth",
                        std::to_string(options.bandwidths.size()) + " bandwidths for " +
                            std::to_string(options.machines.size()) + " levels of machines",
                        "give one bandwidth in bytes/s for each level, innermost first"});
  }
  double workers = 1;
  for (int m : options.machines) {
    if (m < 1)
      problems.push_back({"--machines", "a level has " + std::to_string(m) + " machines", "at least 1"});
    workers *= m;
  }
  if (problems.empty() && workers > kMaxWorkers) {
    problems.push_back({"--machines", "more than " + std::to_string(kMaxWorkers) + " workers", ""});
  }
  for (double b : options.bandwidths) {
    if (!(b > 0)) problems.push_back({"--bandwidth", "a bandwidth is not above 0", "bytes/s, e.g. 1.25e9"});
  }
  if (options.activation_compression && !(*options.activation_compression > 0)) {
    problems.push_back({"--activation-compression", "the ratio is not above 0", "1 for no compression"});
  }
  return problems;
}

std::vector<LevelCosts> level_costs(const PipeDreamOptions& options) {
  std::vector<LevelCosts> costs;
  int below = 1;
  int workers = 1;
  for (std::size_t level = 0; level < options.machines.size(); ++level) {
    costs.push_back({options.machines[level], options.bandwidths[level], below, workers});
    below = options.machines[level];
    workers *= below;
  }
  return costs;
}

double data_parallel_time(const AntichainStates& states, const std::vector<LevelCosts>& levels) {
  double time = states.compute_s.back();
  for (const LevelCosts& level : levels) {
    const double m = level.machines;
    const double sync = 4 * (m - 1) * states.parameter_bytes.back() / (level.bandwidth * m);
    time = (time + sync / level.machines_below) / m;
  }
  return time;
}

/// A stage of all levels: states after `from` up to `to`.
struct FlatStage {
  int from;
  int to;
  std::vector<int> workers;
};

// Solves the levels from the inside out, and reads the plan from the outside in.
class Hierarchy {
 public:
  Hierarchy(const AntichainStates& states, const PipeDreamOptions& options)
      : states_(states), options_(options), costs_(level_costs(options)) {
    times_.assign(costs_.size(), IntervalTimes(states_));
  }

  double solve() {
    // Data parallelism is always a plan, unless replication is forbidden: it stashes nothing, so it passes
    // the memory test. Its time is summed in another order here, hence the factor.
    double bound = options_.straight ? kInfeasible : data_parallel_time(states_, costs_) * kRounding;
    solvers_.reserve(costs_.size());
    for (std::size_t level = 0; level < costs_.size(); ++level) {
      // With two components on the outermost level there are at most two stages. So a stage that does not
      // begin at the start matters only if it ends at the end.
      const bool only_last = level + 1 == costs_.size() && costs_[level].machines <= 2;
      if (level > 0)
        times_[level].use(solvers_[level - 1], costs_[level].workers_below, kInfeasible, only_last);
      solvers_.emplace_back(states_, options_, costs_[level], times_[level]);
    }
    tighten(bound);
    if (states_.size() > 2 * costs_.back().machines)
      tighten(bound = solvers_.back().coarse_bound(bound) * kRounding);
    solvers_.back().solve(-1, bound, true);
    return solvers_.back().best_of_state(states_.last(), costs_.back().machines);
  }

  std::vector<FlatStage> flat_stages() {
    std::vector<FlatStage> result;
    expand(static_cast<int>(costs_.size()) - 1, -1, states_.last(), {0}, result);
    return result;
  }

 private:
  static constexpr double kRounding = 1 + 1e-12;

  // Lowers the bounds of all inner levels. A component's time is divided by at most the number of components
  // of all outer levels.
  void tighten(double bound) {
    for (std::size_t level = costs_.size(); --level > 0;) {
      bound *= costs_[level].machines * kRounding;
      times_[level].lower_bound_to(bound);
    }
  }

  void expand(int level, int from, int to, std::vector<int> workers, std::vector<FlatStage>& out) {
    if (level < 0) {
      out.push_back({from, to, std::move(workers)});
      return;
    }
    const auto at = static_cast<std::size_t>(level);
    if (at + 1 < costs_.size()) solvers_[at].solve(from, times_[at + 1].at(from, to), to == states_.last());
    const std::vector<LevelStage> stages = solvers_[at].stages(to);
    int first = 0;
    for (const LevelStage& stage : stages) {
      expand(level - 1, stage.from, stage.to,
             first_workers(workers, first, stage.machines, costs_[at].workers_below), out);
      first += stage.machines;
    }
  }

  const AntichainStates& states_;
  const PipeDreamOptions& options_;
  const std::vector<LevelCosts> costs_;
  std::vector<IntervalTimes> times_;  // [level]: seconds of a stage of that level on one component
  std::vector<LevelSolver> solvers_;
};

std::vector<std::string> nodes_of(const PipeDreamGraph& graph, const AntichainStates& states,
                                  const FlatStage& stage) {
  std::vector<int> nodes = states.nodes_between(stage.from, stage.to);
  if (stage.from < 0) {
    nodes.insert(nodes.end(), states.inputs.begin(), states.inputs.end());
    std::sort(nodes.begin(), nodes.end());
  }
  std::vector<std::string> ids;
  ids.reserve(nodes.size());
  for (int v : nodes) ids.push_back(graph.nodes[v].id);
  return ids;
}

Problem no_plan(const AntichainStates& states, const PipeDreamOptions& options) {
  if (options.straight && !options.use_fewer_machines) {
    int stages = 1;
    for (int m : options.machines) stages *= m;
    if (stages > states.size()) {
      return {"--machines",
              "a straight pipeline over " + std::to_string(stages) +
                  " workers needs as many stages, the profile " + "can be cut into " +
                  std::to_string(states.size()),
              "give fewer machines, or --use-fewer-machines"};
    }
  }
  return {options.memory_bytes ? "--memory" : "--machines", "no plan satisfies the options",
          options.memory_bytes ? "give more bytes per worker" : "allow replication or fewer machines"};
}

}  // namespace

std::vector<int> first_workers(const std::vector<int>& above, int first, int machines, int below) {
  std::vector<int> workers;
  for (int k = first; k < first + machines; ++k) {
    for (const int start : above) workers.push_back(start + k * below);
  }
  return workers;
}

Result<PipeDreamAnswer> plan_pipedream(const PipeDreamGraph& graph, const PipeDreamOptions& options) {
  if (Problems problems = check_levels(options); !problems.empty()) return problems;
  const bool levels = options.machines.size() > 1;
  const Result<AntichainStates> found =
      enumerate_antichains(graph, levels ? kMaxStatesOfLevels : kMaxAntichainStates);
  if (!found) return found.problems();
  const AntichainStates& states = *found;
  if (options.as_original) {
    Result<PipeDreamAnswer> answer = plan_as_original(graph, options);
    if (answer) answer->data_parallel_time_s = data_parallel_time(states, level_costs(options));
    return answer;
  }

  Hierarchy hierarchy(states, options);
  PipeDreamAnswer answer;
  answer.single_machine_time_s = states.compute_s.back();
  answer.data_parallel_time_s = data_parallel_time(states, level_costs(options));
  answer.pipeline_time_s = hierarchy.solve();
  if (answer.pipeline_time_s == kInfeasible) return no_plan(states, options);
  for (const FlatStage& stage : hierarchy.flat_stages()) {
    const double before = stage.from < 0 ? 0 : states.compute_s[stage.from];
    answer.stages.push_back({states.compute_s[stage.to] - before, static_cast<int>(stage.workers.size()),
                             nodes_of(graph, states, stage), stage.workers});
  }
  return answer;
}

namespace {

// Tries every way to gather a flat list of stages into the levels' stages. The least time wins.
class Evaluator {
 public:
  Evaluator(const AntichainStates& states, const PipeDreamOptions& options, std::vector<int> ends,
            std::vector<int> replicas)
      : states_(states),
        options_(options),
        costs_(level_costs(options)),
        ends_(std::move(ends)),
        replicas_(std::move(replicas)) {}

  double time() const { return component_time(static_cast<int>(costs_.size()) - 1, 0, num_stages(), 1); }

 private:
  int num_stages() const { return static_cast<int>(ends_.size()); }
  int start_of(int stage) const { return stage == 0 ? -1 : ends_[stage - 1]; }

  bool divisible(int begin, int end, int by) const {
    return std::all_of(replicas_.begin() + begin, replicas_.begin() + end,
                       [&](int r) { return r % by == 0; });
  }

  // Returns the time of stages [begin, end) on one component of the level above, which has all machines of
  // `level`. The stages are replicated `outer` times over the outer levels.
  double component_time(int level, int begin, int end, int outer) const {
    if (level < 0) return end - begin == 1 && replicas_[begin] == outer ? interval(begin, end) : kInfeasible;
    std::vector<Group> groups;
    double best = kInfeasible;
    gather(level, begin, end, outer, 0, groups, best);
    return best;
  }

  struct Group {
    int begin;
    int end;
    int machines;
    double inner;
  };

  double interval(int begin, int end) const {
    const int from = start_of(begin);
    return states_.compute_s[ends_[end - 1]] - (from < 0 ? 0 : states_.compute_s[from]);
  }

  void gather(int level, int at, int end, int outer, int used, std::vector<Group>& groups,
              double& best) const {
    const int machines = costs_[level].machines;
    if (at == end) {
      if (used == machines || options_.use_fewer_machines)
        best = std::min(best, level_time(level, groups, used));
      return;
    }
    for (int stop = at + 1; stop <= end; ++stop) {
      for (int m = 1; used + m <= machines; ++m) {
        if (!divisible(at, stop, outer * m)) continue;
        const double inner = component_time(level - 1, at, stop, outer * m);
        if (inner == kInfeasible) continue;
        groups.push_back({at, stop, m, inner});
        gather(level, stop, end, outer, used + m, groups, best);
        groups.pop_back();
      }
    }
  }

  // Evaluates the terms of the recurrence as docs/planning.md writes them, one stage after the other.
  double level_time(int level, const std::vector<Group>& groups, int used) const {
    const LevelCosts& costs = costs_[level];
    // Unused machines count as behind the first stage: there the memory test is the least strict.
    const int idle = costs.machines - used;
    double worst = 0;
    int so_far = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Group& group = groups[i];
      const bool is_first = i == 0;
      const int from = start_of(group.begin);
      const int to = ends_[group.end - 1];
      const double m = group.machines;
      if (options_.straight && group.machines > 1) return kInfeasible;
      so_far += group.machines + (i == 1 ? idle : 0);
      const double weights = states_.parameter_bytes[to] - (from < 0 ? 0 : states_.parameter_bytes[from]);
      const double activations =
          states_.activation_bytes[to] - (from < 0 ? 0 : states_.activation_bytes[from]);
      const int later = costs.machines - so_far;
      const double stashes = (later + group.machines - 1) / group.machines;
      if (options_.memory_bytes && stashes * (weights + activations) > *options_.memory_bytes)
        return kInfeasible;
      double sync = 4 * (m - 1) * weights / (costs.bandwidth * m);
      if (is_first) sync /= costs.machines_below;
      worst = std::max(worst, (group.inner + sync) / m);
      if (is_first || !options_.activation_compression) continue;
      const double rate = costs.bandwidth * m * *options_.activation_compression;
      worst = std::max(worst, 2 * states_.output_bytes[from] / rate);
      if (to != states_.last()) worst = std::max(worst, 2 * states_.output_bytes[to] / rate);
    }
    return worst;
  }

  const AntichainStates& states_;
  const PipeDreamOptions& options_;
  const std::vector<LevelCosts> costs_;
  const std::vector<int> ends_;      // state behind each stage
  const std::vector<int> replicas_;  // replication of each stage, multiplied over all levels
};

// Returns the state with this closure; -1 if there is none.
int state_of(const AntichainStates& states, const std::vector<std::uint64_t>& closure) {
  for (int state = 0; state < states.size(); ++state) {
    if (std::equal(closure.begin(), closure.end(), states.closure(state))) return state;
  }
  return -1;
}

}  // namespace

Result<double> evaluate_pipedream(const PipeDreamGraph& graph, const PipeDreamOptions& options,
                                  const std::vector<PipeDreamStage>& stages) {
  if (Problems problems = check_levels(options); !problems.empty()) return problems;
  const Result<AntichainStates> found = enumerate_antichains(graph);
  if (!found) return found.problems();
  std::unordered_map<std::string, int> index;
  for (std::size_t v = 0; v < graph.nodes.size(); ++v) index.emplace(graph.nodes[v].id, static_cast<int>(v));

  const auto bit = [](int v) { return std::uint64_t{1} << (v & 63); };
  const std::uint64_t* const everything = found->closure(found->last());
  std::vector<std::uint64_t> before(found->words);
  std::vector<int> ends;
  std::vector<int> replicas;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::string where = "stage " + std::to_string(s);
    for (const std::string& id : stages[s].nodes) {
      const auto node = index.find(id);
      if (node == index.end()) return Problem{where, "unknown node " + id, ""};
      before[node->second >> 6] |= everything[node->second >> 6] & bit(node->second);
    }
    const int state = state_of(*found, before);
    if (state < 0) return Problem{where, "does not end at a cut of the graph", ""};
    ends.push_back(state);
    replicas.push_back(stages[s].replication);
    if (ends.size() > 1 && ends[s] <= ends[s - 1]) return Problem{where, "has no layers", ""};
  }
  if (ends.empty() || ends.back() != found->last()) return Problem{"stages", "do not cover the graph", ""};
  const double time = Evaluator(*found, options, ends, replicas).time();
  if (time == kInfeasible) return Problem{"stages", "do not fit the machines or the memory", ""};
  return time;
}

}  // namespace millrace
