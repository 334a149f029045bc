#include "runtime/base/all_reduce_route.h"

#include <algorithm>
#include <map>

namespace millrace {
namespace {

// A piece takes 50 us on a 10 Gb/s network, about its latency; smaller pieces would only add messages.
constexpr std::int64_t kPieceBytes = 64 << 10;
constexpr std::int64_t kMostPieces = 8;

}  // namespace

int all_reduce_pieces(int chunks, std::int64_t bytes) {
  const std::int64_t chunk = (bytes + chunks - 1) / chunks;
  return static_cast<int>(std::clamp(chunk / kPieceBytes, std::int64_t{1}, kMostPieces));
}

RankTree rank_tree(const std::vector<int>& hosts) {
  const std::size_t size = hosts.size();
  RankTree tree{.parent = std::vector<int>(size, -1),
                .children = std::vector<std::vector<int>>(size),
                .members = std::vector<int>(size, 1),
                .order = {}};
  std::vector<int> level(size, 0);
  std::map<int, std::vector<int>> of_host;
  std::vector<int> leaders;  // the first member of each host
  for (int i = 0; i < static_cast<int>(size); ++i) {
    std::vector<int>& local = of_host[hosts[i]];
    const std::vector<int>& above = local.empty() ? leaders : local;
    if (!above.empty()) {
      tree.parent[i] = above[(above.size() - 1) / RankTree::kFanOut];
      tree.children[tree.parent[i]].push_back(i);
      tree.levels = std::max(tree.levels, level[i] = level[tree.parent[i]] + 1);
    }
    if (local.empty()) leaders.push_back(i);
    local.push_back(i);
  }
  std::vector<int> open{0};
  while (!open.empty()) {
    const int next = open.back();
    open.pop_back();
    tree.order.push_back(next);
    open.insert(open.end(), tree.children[next].rbegin(), tree.children[next].rend());
  }
  for (auto member = tree.order.rbegin(); member != tree.order.rend(); ++member)
    if (tree.parent[*member] >= 0) tree.members[tree.parent[*member]] += tree.members[*member];
  return tree;
}

AllReduceRoute all_reduce_route(const std::vector<int>& hosts, std::int64_t bytes) {
  const auto members = static_cast<int>(hosts.size());
  AllReduceRoute route;
  if (members < 2) return route;
  route.way = AllReduceWay::Direct;
  // For two ranks, a route by halves moves no fewer bytes.
  if (members == 2) return route;
  if (bytes <= kDirectSumBytes) {
    if (members > kDirectRanks) route.way = AllReduceWay::Tree;
    return route;
  }
  route.way = AllReduceWay::Scatter;
  int largest = 0;
  for (int i = 0; i < members; ++i) {
    if (i == 0 || hosts[i] != hosts[i - 1]) route.segments.push_back(i);
    largest = std::max(largest, i + 1 - route.segments.back());
  }
  route.segments.push_back(members);
  const bool one_host = std::ranges::all_of(hosts, [&](int host) { return host == hosts.front(); });
  // With one rank per host, or with ranks that alternate between hosts, a chain sends no fewer bytes.
  if (one_host || largest == 1) {
    route.segments.clear();
    return route;
  }
  route.way = AllReduceWay::Chain;
  route.chunks = largest;
  route.pieces = all_reduce_pieces(largest, bytes);
  return route;
}

}  // namespace millrace
