// An all-reduce host after host: few bytes between hosts, sums in the order of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/all_reduce_route.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// One member's part of an AllReduceWay::Chain (all_reduce_route.h) over `flat`, [elements], in place. For
/// one run().
class ChainReduce {
 public:
  /// Posts a message of this collective to or from a member; numbers are unique for each pair and direction.
  using Post = std::function<std::unique_ptr<Pending>(Direction, int peer, std::uint64_t number, at::Tensor)>;

  ChainReduce(const AllReduceRoute& route, int rank, at::Tensor flat, Post post);
  void run();

 private:
  enum class Message { Gather, Forward, Back, Spread };
  /// A piece that this owner adds up: the parts that it waits for, and the result that comes back.
  struct Owned {
    int chunk = 0, piece = 0;
    std::vector<at::Tensor> parts;  // in the order of the sum: the segment before (if any), then its ranks
    std::vector<std::unique_ptr<Pending>> incoming;
    std::unique_ptr<Pending> result;  // null in the last segment
  };

  int owner(int segment, int chunk) const;
  at::Tensor piece_of(int chunk, int piece) const;
  void send(Message kind, int peer, int chunk, int piece, at::Tensor tensor);
  std::unique_ptr<Pending> receive(Message kind, int peer, int chunk, int piece, at::Tensor tensor);
  std::uint64_t number(Message kind, int chunk, int piece) const;
  template <class Visit>
  void each_piece(Visit&& visit) const;
  void post_gathering();
  void sum(Owned& own);
  void hand_back(const Owned& own);

  const AllReduceRoute& route_;
  const int rank_;
  const at::Tensor flat_;
  const Post post_;
  int segment_ = 0, first_ = 0, end_ = 0;  // of this member
  bool last_ = false;                      // segment
  std::vector<Owned> owned_;
  std::vector<std::unique_ptr<Pending>> sends_;
};

}  // namespace millrace
