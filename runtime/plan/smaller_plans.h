// The targets of plans made ahead for lost hosts: the remaining cluster, and the path of its plan.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/plan/cluster_spec.h"

namespace millrace {

/// Returns the cluster without `lost` of its hosts. Each time the host with the most devices is removed, on a
/// tie the last one. The remaining hosts then have enough devices, whichever hosts are lost. If there is one
/// host, or none is listed, components of the outermost level are removed. Returns an error if none would
/// remain, or if hosts are not components of the outermost level.
Result<ClusterSpec> without_hosts(const ClusterSpec& cluster, int lost);

/// Returns the path of the plan that `millrace plan --smaller` writes next to `plan`, for the cluster without
/// `lost` of its hosts: "plan.minus1.json" next to "plan.json".
std::string smaller_plan_file(const std::string& plan, int lost);

}  // namespace millrace
