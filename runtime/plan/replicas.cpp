#include "runtime/plan/replicas.h"

#include <algorithm>

#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {

Result<std::vector<int>> parse_replicas(const std::string& text, int stages) {
  constexpr int kMost = 1024;
  std::vector<int> replicas;
  for (const std::string& word : split(text, ',')) {
    const int count = number_of<int>(word).value_or(0);
    if (count < 1 || count > kMost)
      return Problem{"--replicas",
                     "'" + text + "' is not a number of replicas from 1 to " + std::to_string(kMost),
                     "a number, or one for each stage: 3,1"};
    replicas.push_back(count);
  }
  if (replicas.size() == 1) replicas.assign(std::max(1, stages), replicas[0]);
  if (static_cast<int>(replicas.size()) != stages)
    return Problem{"--replicas",
                   "'" + text + "' has " + std::to_string(replicas.size()) + " numbers for " +
                       std::to_string(stages) + " stages",
                   "give one for each stage"};
  return replicas;
}

void set_replicas(Plan& plan, const std::vector<int>& replicas) {
  int rank = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    plan.stages[s].ranks.clear();
    for (int r = 0; r < replicas[s]; ++r) plan.stages[s].ranks.emplace_back(rank++);
  }
}

}  // namespace millrace
