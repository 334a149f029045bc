// The route of an all-reduce. The communicator follows it, and the planner prices it.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

/// The algorithms of an all-reduce. Each adds in rank order, ((r0 + r1) + r2) + ..., and gives the same bits.
enum class AllReduceWay {
  Nothing,  ///< no exchange: one rank
  Direct,   ///< every rank sends its whole tensor to every other rank, and every rank adds them all
  /// Tensors travel along a RankTree to its root. The root adds them, and the sum travels back. The message
  /// size grows with the number of ranks, not with its square.
  Tree,
  /// Each rank reduces one chunk, then all ranks gather all chunks. This moves as many bytes as a ring, in
  /// two messages to each rank.
  Scatter,
  /// The sum travels from host to host. A host sends 1 to 2 times the tensor's bytes, however many ranks it
  /// has.
  Chain,
};

/// The route of one all-reduce, with the parameters of a Chain.
///
/// In a Chain, consecutive ranks on one host form a segment. The tensor is cut into as many chunks as the
/// largest segment has ranks. Each chunk has one owner in every segment: the rank with index (chunk modulo
/// the segment's size). An owner gathers its chunk from the ranks of its segment. It adds them, in rank
/// order, to the sum from the previous segment's owner. The last segment's result travels back along the same
/// owners, and each owner sends it to its segment. A chunk is sent in pieces, so that all hosts work at the
/// same time.
struct AllReduceRoute {
  AllReduceWay way = AllReduceWay::Nothing;
  /// Chain: the index of each segment's first member, followed by the number of members.
  std::vector<int> segments;
  int chunks = 1;
  int pieces = 1;  ///< pieces per chunk
};

/// The largest tensor, in bytes, for which Direct or Tree is used.
inline constexpr std::int64_t kDirectSumBytes = 32 << 10;
/// The largest group in which each rank sends to every other one; small sums of larger groups use Tree.
inline constexpr int kDirectRanks = 8;

/// A tree over the members of a group, by member index. The root is member 0. A host's first member is the
/// parent or ancestor of that host's other members. One message therefore enters, and one leaves, a subtree's
/// host.
struct RankTree {
  static constexpr int kFanOut = 8;  ///< most children on the member's host, and most on other hosts
  std::vector<int> parent;           ///< -1 for the root
  std::vector<std::vector<int>> children;
  std::vector<int> members;  ///< size of each member's subtree, the member included
  int levels = 0;            ///< messages on the longest path to the root
  std::vector<int> order;    ///< all members in depth-first preorder
};

/// `hosts` as for all_reduce_route().
RankTree rank_tree(const std::vector<int>& hosts);

/// Returns the number of pieces into which a Chain cuts each chunk of a tensor of `bytes`.
int all_reduce_pieces(int chunks, std::int64_t bytes);

/// Returns the route for a tensor of `bytes`. `hosts` holds a number for each member, in member order;
/// members with equal numbers share a host.
AllReduceRoute all_reduce_route(const std::vector<int>& hosts, std::int64_t bytes);

/// Returns how many received bytes each of `members` ranks adds to its own in an all-reduce of `bytes`. In a
/// Tree only the root adds, and the others wait for it.
inline std::int64_t added_bytes(AllReduceWay way, int members, std::int64_t bytes) {
  if (way == AllReduceWay::Nothing) return 0;
  return bytes * (members - 1) / (way == AllReduceWay::Direct || way == AllReduceWay::Tree ? 1 : members);
}

}  // namespace millrace
