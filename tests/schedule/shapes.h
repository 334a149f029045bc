// Shapes for tests.
#pragma once

#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

/// Stage s on its own `replicas[s]` ranks.
inline PipelineShape replicated_shape(const std::vector<int>& replicas, int microbatches) {
  PipelineShape shape{.microbatches = microbatches};
  int rank = 0;
  for (int r : replicas) {
    auto& ranks = shape.ranks_of_stage.emplace_back();
    for (int i = 0; i < r; ++i) ranks.emplace_back(rank++);
  }
  return shape;
}

}  // namespace millrace
