// The way that an all-reduce takes. The communicator follows it, and the planner prices it.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

/// The ways of an all-reduce. Every way adds in the order of ranks, ((r0 + r1) + r2) + ..., and gives the
/// same bits.
enum class AllReduceWay {
  Nothing,  ///< one rank
  Direct,   ///< every rank gets every rank's whole tensor: one message each, added up everywhere
  /// The tensors of all ranks go along a RankTree to the first one. It adds them up, and the sum goes back.
  /// The messages grow with the ranks, not with their square.
  Tree,
  /// Every rank adds up one chunk, then every rank gets every chunk. That moves the bytes of a ring in two
  /// messages to each rank. The sum goes from host to host. A host sends 1 to 2 times the tensor's bytes,
  /// however many ranks it has.
  Scatter,
  Chain,
};

/// The way of one all-reduce, with the numbers of a Chain.
///
/// In a Chain, consecutive ranks on one host form a segment. The tensor is cut into as many chunks as the
/// largest segment has ranks. Each chunk has one owner in every segment: the rank number (chunk modulo the
/// segment's ranks). An owner gathers its chunk from the ranks of its segment. The owner adds them, in the
/// order of ranks, to the sum from the previous segment's owner. The last segment's result goes back along
/// the same owners, and each owner sends it to its segment. A chunk travels in pieces, so that all hosts work
/// at the same time.
struct AllReduceRoute {
  AllReduceWay way = AllReduceWay::Nothing;
  /// Chain: the first member of each segment, and at the end the number of members.
  std::vector<int> segments;
  int chunks = 1;
  int pieces = 1;  ///< in each chunk
};

/// The largest tensor, in bytes, that goes the way Direct or Tree.
inline constexpr std::int64_t kDirectSumBytes = 32 << 10;
/// The most ranks of which each sends to every other one: a small sum of more goes the way Tree.
inline constexpr int kDirectRanks = 8;

/// A tree over the members of a group, by member. The root is member 0. A host's first member is the parent
/// of that host's members, or their ancestor, so that one message enters and one leaves a subtree's host.
struct RankTree {
  static constexpr int kFanOut = 8;  ///< most children on the member's host, and on other hosts
  std::vector<int> parent;           ///< -1: the root
  std::vector<std::vector<int>> children;
  std::vector<int> members;  ///< in the subtree, the member included
  int levels = 0;            ///< messages on the longest way to the root
  std::vector<int> order;    ///< all members: each one before its children's subtrees, one after the other
};

/// `hosts` as for all_reduce_route().
RankTree rank_tree(const std::vector<int>& hosts);

/// Returns the number of pieces into which a Chain cuts each chunk of a tensor of `bytes`.
int all_reduce_pieces(int chunks, std::int64_t bytes);

/// Returns the way for a tensor of `bytes`. `hosts` has a number for each member, in the order of members;
/// members with equal numbers share a host.
AllReduceRoute all_reduce_route(const std::vector<int>& hosts, std::int64_t bytes);

/// Returns how many bytes of others each of `members` ranks adds to its own in an all-reduce of `bytes`. In a
/// Tree the first rank does, and the others wait for it.
inline std::int64_t added_bytes(AllReduceWay way, int members, std::int64_t bytes) {
  if (way == AllReduceWay::Nothing) return 0;
  return bytes * (members - 1) / (way == AllReduceWay::Direct || way == AllReduceWay::Tree ? 1 : members);
}

}  // namespace millrace
