// The partitioned graph as a picture: layers as boxes in their stage's colour, tensors as lines.
#pragma once

#include <string>

#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// A self-contained <svg>, read downwards: one band for each stage, one row for each step of depth within it,
/// branches side by side. Tensors that cross stages are bold and carry their bytes; those that pass over rows
/// bulge to the right. Above 120 layers boxes are small and names are left to tooltips. `plan` is valid for
/// `graph`.
std::string partition_svg(const Plan& plan, const LayerGraph& graph);

}  // namespace millrace
