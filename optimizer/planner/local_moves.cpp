#include "optimizer/planner/local_moves.h"

#include <algorithm>

namespace millrace {
namespace {

/// Looks at the best plan with one layer moved. Returns whether that became the best plan.
bool move_layer(Candidates& candidates, const CostModel& model, int node, int from, int to) {
  Found found = candidates.best();
  std::vector<int>& nodes = found.stages[from].nodes;
  if (nodes.size() == 1) return false;
  nodes.erase(std::find(nodes.begin(), nodes.end(), node));
  found.stages[to].nodes.push_back(node);
  model.sort_by_execution(found.stages[to].nodes);
  const std::size_t layers = candidates.best().stages[from].nodes.size();
  candidates.consider(std::move(found));
  return candidates.best().stages[from].nodes.size() != layers;
}

}  // namespace

void move_cuts(Candidates& candidates, const CutSpace& space, const Layout& layout, std::vector<int> cuts,
               double known) {
  for (int move = std::max(1, space.states() / 64); move >= 1; move /= 2) {
    for (std::size_t i = 0; i < cuts.size() && !candidates.spent(); ++i) {
      for (int step : {-move, move}) {
        std::vector<int> moved = cuts;
        moved[i] += step;
        const int before = i == 0 ? 0 : cuts[i - 1];
        const int after = i + 1 == cuts.size() ? space.last() : cuts[i + 1];
        if (moved[i] <= before || moved[i] >= after) continue;
        if (!space.nested(before, moved[i]) || !space.nested(moved[i], after)) continue;
        const double found = candidates.consider(space, layout, moved);
        if (found >= known) continue;
        known = found;
        cuts = moved;
      }
    }
  }
}

void move_layers(Candidates& candidates, const CostModel& model) {
  const LayerGraph& graph = model.graph();
  if (candidates.best().stages.size() < 2) return;
  std::vector<std::vector<int>> readers(graph.nodes.size()), sources(graph.nodes.size());
  for (const LayerEdge& edge : graph.edges) {
    readers[edge.producer].push_back(edge.consumer);
    sources[edge.consumer].push_back(edge.producer);
  }
  for (bool moved = true; moved && !candidates.spent();) {
    moved = false;
    std::vector<int> stage_of(graph.nodes.size());
    for (std::size_t s = 0; s < candidates.best().stages.size(); ++s) {
      for (int node : candidates.best().stages[s].nodes) stage_of[node] = static_cast<int>(s);
    }
    for (int node = 0; node < static_cast<int>(stage_of.size()) && !candidates.spent(); ++node) {
      const int stage = stage_of[node];
      const auto later = [&](int other) { return stage_of[other] > stage; };
      const auto earlier = [&](int other) { return stage_of[other] < stage; };
      const bool last = stage + 1 == static_cast<int>(candidates.best().stages.size());
      if (!last && std::ranges::all_of(readers[node], later) &&
          move_layer(candidates, model, node, stage, stage + 1)) {
        stage_of[node] = stage + 1;
        moved = true;
      } else if (stage > 0 && std::ranges::all_of(sources[node], earlier) &&
                 move_layer(candidates, model, node, stage, stage - 1)) {
        stage_of[node] = stage - 1;
        moved = true;
      }
    }
  }
}

std::vector<std::vector<int>> neighbours_of(const std::vector<int>& replicas) {
  std::vector<std::vector<int>> result;
  const std::size_t stages = replicas.size();
  for (std::size_t i = 0; i < stages; ++i) {
    for (std::size_t j = 0; j < stages; ++j) {
      if (i == j || replicas[i] == 1) continue;
      result.push_back(replicas);
      --result.back()[i];
      ++result.back()[j];
    }
    for (int first = 1; first < replicas[i]; ++first) {
      result.push_back(replicas);
      result.back()[i] = first;
      result.back().insert(result.back().begin() + static_cast<std::ptrdiff_t>(i) + 1, replicas[i] - first);
    }
    if (i + 1 == stages) continue;
    result.push_back(replicas);
    result.back()[i] += replicas[i + 1];
    result.back().erase(result.back().begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return result;
}

}  // namespace millrace
