#include "runtime/plan/smaller_plans.h"

#include <algorithm>
#include <filesystem>

namespace millrace {
namespace {

/// Removes ranks from the links between ranks. Later ranks are renumbered.
void erase_ranks(std::vector<RankLink>& links, int first, int count) {
  const auto is_gone = [&](RankId rank) { return rank.value >= first && rank.value < first + count; };
  std::erase_if(links, [&](const RankLink& link) { return is_gone(link.from) || is_gone(link.to); });
  for (RankLink& link : links) {
    for (RankId* rank : {&link.from, &link.to})
      if (rank->value >= first) rank->value -= count;
  }
}

}  // namespace

Result<ClusterSpec> without_hosts(const ClusterSpec& cluster, int lost) {
  ClusterSpec left = cluster;
  const bool has_hosts = cluster.hosts.size() > 1, has_levels = !cluster.levels.empty();
  const int outermost = has_levels ? cluster.levels.back().count : cluster.num_ranks();
  const int component = cluster.num_ranks() / outermost;  // ranks
  const int parts = has_hosts ? static_cast<int>(cluster.hosts.size()) : outermost;
  if (lost >= parts)
    return Problem{"cluster",
                   "of " + std::to_string(parts) +
                       (has_hosts        ? " hosts"
                        : component == 1 ? " ranks"
                                         : " components") +
                       " none is left without " + std::to_string(lost),
                   "at most " + std::to_string(parts - 1)};
  for (; lost > 0; --lost) {
    int first = left.num_ranks() - component, gone = component;
    if (has_hosts) {
      auto largest = left.hosts.begin();
      for (auto host = left.hosts.begin(); host != left.hosts.end(); ++host)
        if (host->devices >= largest->devices) largest = host;
      first = 0;
      for (auto host = left.hosts.begin(); host != largest; ++host) first += host->devices;
      gone = largest->devices;
      std::erase_if(left.links, [&](const HostLink& link) {
        return link.from == largest->name || link.to == largest->name;
      });
      left.hosts.erase(largest);
    } else if (!left.hosts.empty()) {
      left.hosts.front().devices -= gone;
    }
    if (has_levels && gone % component != 0)
      return Problem{"cluster", "its hosts are no components of the outermost level",
                     "list hosts with network and links in place of levels"};
    if (has_levels) left.levels.back().count -= gone / component;
    erase_ranks(left.rank_links, first, gone);
  }
  return left;
}

std::string smaller_plan_file(const std::string& plan, int lost) {
  std::filesystem::path file(plan);
  const std::string end = file.extension().string();
  return file.replace_extension("minus" + std::to_string(lost) + end).string();
}

}  // namespace millrace
