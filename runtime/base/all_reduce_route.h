// Chooses the way that an all-reduce takes. The communicator follows it, the planner prices it.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace {

/// Sums go in the order of ranks, ((r0 + r1) + r2) + ..., whichever way they take.
enum class AllReduceWay {
  Nothing,  ///< one rank
  Direct,   ///< every rank gets every rank's whole tensor: one message each, added up everywhere
  Scatter,  ///< every rank adds up a chunk, then everybody gets every chunk: bytes of a ring, two messages
            ///< each
  Chain,    ///< host after host: 1 to 2 times the tensor leaves a host, however many ranks it has
};

/// Chain: ranks that follow each other on one host are a segment. The tensor has as many chunks as the
/// largest segment has ranks, each chunk an owner in every segment (chunk modulo its ranks). Owners gather
/// their chunk from the ranks of their segment and add them, in the order of ranks, to what the owner of the
/// segment before has handed on; the last segment's result goes back along the same owners, who give it to
/// their segment. Chunks go in pieces, so that all hosts work at once.
struct AllReduceRoute {
  AllReduceWay way = AllReduceWay::Nothing;
  std::vector<int> segments;  ///< Chain: first member of each, and behind the last the number of members
  int chunks = 1;
  int pieces = 1;  ///< of a chunk
};

/// Up to here every rank gets every rank's whole tensor: one round trip instead of two.
inline constexpr std::int64_t kDirectSumBytes = 32 << 10;

/// Pieces of a chunk of a chain.
int all_reduce_pieces(int chunks, std::int64_t bytes);

/// `hosts`: of each member, in their order; equal numbers share a host. `bytes`: of the tensor.
AllReduceRoute all_reduce_route(const std::vector<int>& hosts, std::int64_t bytes);

}  // namespace millrace
