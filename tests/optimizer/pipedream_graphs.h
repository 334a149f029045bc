// Small PipeDream graphs for tests.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {

struct PipeDreamLayer {
  std::string description;
  double forward_ms;
  double backward_ms;
  double activation;
  double parameters;
};

inline PipeDreamGraph pipedream_graph(const std::vector<PipeDreamLayer>& layers,
                                      const std::vector<std::pair<int, int>>& edges) {
  PipeDreamGraph graph;
  for (const PipeDreamLayer& layer : layers) {
    PipeDreamNode node;
    node.id = "node" + std::to_string(graph.nodes.size() + 1);
    node.description = layer.description;
    node.forward_ms = layer.forward_ms;
    node.backward_ms = layer.backward_ms;
    node.activation_sizes = {layer.activation};
    node.parameter_bytes = layer.parameters;
    graph.nodes.push_back(node);
  }
  graph.edges = edges;
  return graph;
}

/// Connected, acyclic, one source and one sink, some layers free of cost.
inline PipeDreamGraph random_pipedream_graph(std::uint64_t seed, int nodes) {
  RandomStream random(derive_seed(seed, "pipedream graph"));
  std::vector<PipeDreamLayer> layers;
  std::vector<std::pair<int, int>> edges;
  std::vector<bool> has_reader(nodes, false);
  for (int v = 0; v < nodes; ++v) {
    const bool is_free = random.below(4) == 0;
    layers.push_back({"Layer", is_free ? 0 : random.uniform(1, 20), is_free ? 0 : random.uniform(1, 40),
                      random.uniform(0, 5e6), random.uniform(0, 4e6)});
    if (v == 0) continue;
    // Mostly a chain, with a skip now and then.
    const int back = random.below(3) == 0 ? static_cast<int>(1 + random.below(std::min(v, 3))) : 1;
    edges.push_back({v - back, v});
    has_reader[v - back] = true;
    if (random.below(4) == 0) {
      const int other = static_cast<int>(random.below(v));
      edges.push_back({other, v});
      has_reader[other] = true;
    }
  }
  for (int v = 0; v + 1 < nodes; ++v) {
    if (!has_reader[v]) edges.push_back({v, nodes - 1});
  }
  return pipedream_graph(layers, edges);
}

}  // namespace millrace
