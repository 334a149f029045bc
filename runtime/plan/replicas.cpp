#include "runtime/plan/replicas.h"

#include <algorithm>
#include <charconv>

namespace millrace {

Result<std::vector<int>> parse_replicas(const std::string& text, int stages) {
  constexpr int kMost = 1024;
  std::vector<int> replicas;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    int count = 0;
    const auto read = std::from_chars(text.data() + begin, text.data() + end, count);
    if (read.ec != std::errc() || read.ptr != text.data() + end || count < 1 || count > kMost)
      return Problem{"--replicas",
                     "'" + text + "' is not a number of replicas from 1 to " + std::to_string(kMost),
                     "a number, or one for each stage: 3,1"};
    replicas.push_back(count);
    begin = end + 1;
  }
  if (replicas.size() == 1) replicas.assign(static_cast<std::size_t>(std::max(1, stages)), replicas[0]);
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
