// What plans are made ahead for, in case hosts are lost: the cluster that is left, and where its plan lies.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/plan/cluster_spec.h"

namespace millrace {

/// Returns the cluster without `lost` of its hosts. Each time the host with the most devices goes, of equal
/// ones the last: whichever is lost, those that are left have enough devices. Where there is one host, or
/// none is listed, components of the outermost level go. Problem: none would be left, or hosts that are no
/// components of the outermost level.
Result<ClusterSpec> without_hosts(const ClusterSpec& cluster, int lost);

/// The file of the plan that `millrace plan --smaller` makes beside `plan`, for the cluster without `lost` of
/// its hosts: "plan.minus1.json" beside "plan.json".
std::string smaller_plan_file(const std::string& plan, int lost);

}  // namespace millrace
