// Numbers of replicas as people write them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Reads `--replicas`: one number for every stage ("2"), or a number for each ("3,1").
Result<std::vector<int>> parse_replicas(const std::string& text, int stages);
/// Gives stage s `replicas[s]` consecutive ranks. The plan must have one stage on each rank.
void set_replicas(Plan& plan, const std::vector<int>& replicas);

}  // namespace millrace
