// Numbers of replicas as people write them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// `--replicas`: "2" for every stage, or a number for each ("3,1").
Result<std::vector<int>> parse_replicas(const std::string& text, int stages);
/// Gives stage s `replicas[s]` consecutive ranks. For plans with one stage on each rank.
void set_replicas(Plan& plan, const std::vector<int>& replicas);

}  // namespace millrace
