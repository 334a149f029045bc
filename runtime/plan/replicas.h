// Numbers of replicas in command-line form.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// Parses `--replicas`: one number for every stage ("2"), or one per stage ("3,1").
Result<std::vector<int>> parse_replicas(const std::string& text, int stages);
/// Assigns `replicas[s]` consecutive ranks to stage s. The plan must have one stage on each rank.
void set_replicas(Plan& plan, const std::vector<int>& replicas);

}  // namespace millrace
