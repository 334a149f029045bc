// Graphs with random costs, for the planner's tests.
#pragma once

#include <string>

#include "runtime/base/random.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// Layers without edges.
inline LayerGraph random_layers(RandomStream& random, int layers) {
  LayerGraph graph;
  graph.model = "dag";
  graph.microbatch = 8;
  graph.loss_s = random.uniform(0, 1e-4);
  graph.update_s_per_byte = random.uniform(0, 1e-10);
  for (int i = 0; i < layers; ++i) {
    LayerNode node;
    node.name = "layer" + std::to_string(i);
    node.kind = "linear";
    node.forward_s = random.below(6) == 0 ? 0 : random.uniform(1e-4, 3e-3);
    node.backward_input_s = node.forward_s * random.uniform(0.5, 1.5);
    node.backward_weight_s = node.forward_s * random.uniform(0.5, 1.5);
    node.parameter_bytes = static_cast<Bytes>(random.below(2'000'000));
    node.activation_bytes = static_cast<Bytes>(random.below(1'000'000));
    node.saved_bytes = static_cast<Bytes>(random.below(1'000'000));
    graph.nodes.push_back(node);
  }
  return graph;
}

}  // namespace millrace
