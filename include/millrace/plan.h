/// \file
/// Plans: the profile of a model, the cluster, how a model is cut, and the planner.
#pragma once

#include "optimizer/planner/planner.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
