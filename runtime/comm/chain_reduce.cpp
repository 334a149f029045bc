#include "runtime/comm/chain_reduce.h"

#include <algorithm>

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

namespace millrace {

ChainReduce::ChainReduce(const AllReduceRoute& route, int rank, at::Tensor flat, Post post)
    : route_(route), rank_(rank), flat_(std::move(flat)), post_(std::move(post)) {
  const auto next = std::ranges::upper_bound(route.segments, rank);
  segment_ = static_cast<int>(next - route.segments.begin()) - 1;
  first_ = *(next - 1);
  end_ = *next;
  last_ = next + 1 == route.segments.end();
}

int ChainReduce::owner(int segment, int chunk) const {
  const auto s = static_cast<std::size_t>(segment);
  const int first = route_.segments[s];
  return first + chunk % (route_.segments[s + 1] - first);
}

at::Tensor ChainReduce::piece_of(int chunk, int piece) const {
  const std::int64_t all = flat_.numel();
  const std::int64_t parts = std::int64_t{route_.chunks} * route_.pieces;
  const std::int64_t part = (all + parts - 1) / parts;
  const std::int64_t begin = std::min(all, (std::int64_t{chunk} * route_.pieces + piece) * part);
  return flat_.narrow(0, begin, std::min(part, all - begin));
}

std::uint64_t ChainReduce::number(Message kind, int chunk, int piece) const {
  return (static_cast<std::uint64_t>(kind) * static_cast<std::uint64_t>(route_.chunks) +
          static_cast<std::uint64_t>(chunk)) *
             static_cast<std::uint64_t>(route_.pieces) +
         static_cast<std::uint64_t>(piece);
}

void ChainReduce::send(Message kind, int peer, int chunk, int piece, at::Tensor tensor) {
  sends_.push_back(post_(Direction::Send, peer, number(kind, chunk, piece), std::move(tensor)));
}

std::unique_ptr<Pending> ChainReduce::receive(Message kind, int peer, int chunk, int piece,
                                              at::Tensor tensor) {
  return post_(Direction::Receive, peer, number(kind, chunk, piece), std::move(tensor));
}

/// Pieces outside: the first one of every chunk is on its way before the second.
template <class Visit>
void ChainReduce::each_piece(Visit&& visit) const {
  for (int piece = 0; piece < route_.pieces; ++piece) {
    for (int chunk = 0; chunk < route_.chunks; ++chunk) {
      const at::Tensor mine = piece_of(chunk, piece);
      if (mine.numel() > 0) visit(chunk, piece, mine);
    }
  }
}

/// Everything that does not wait for a sum: what owners gather, and what comes from other segments.
void ChainReduce::post_gathering() {
  each_piece([&](int chunk, int piece, const at::Tensor& mine) {
    const int owner = this->owner(segment_, chunk);
    if (owner != rank_) {
      send(Message::Gather, owner, chunk, piece, mine);
      return;
    }
    Owned& own = owned_.emplace_back(Owned{.chunk = chunk, .piece = piece});
    const auto expect = [&](Message kind, int peer) {
      own.parts.push_back(at::empty_like(mine));
      own.incoming.push_back(receive(kind, peer, chunk, piece, own.parts.back()));
    };
    if (segment_ > 0) expect(Message::Forward, this->owner(segment_ - 1, chunk));
    for (int member = first_; member < end_; ++member) {
      if (member == rank_) {
        own.parts.push_back(mine);
      } else {
        expect(Message::Gather, member);
      }
    }
    // The result comes when all owners have added this piece, so that nobody reads `mine` any more.
    if (!last_) own.result = receive(Message::Back, this->owner(segment_ + 1, chunk), chunk, piece, mine);
  });
}

/// Adds the segment's ranks to what came from the one before; the last segment has the result then.
void ChainReduce::sum(Owned& own) {
  for (auto& message : own.incoming) message->wait();
  own.incoming.clear();
  at::Tensor sum = own.parts[0];
  for (std::size_t i = 1; i < own.parts.size(); ++i) {
    if (i == 1) {
      sum = at::add(sum, own.parts[i]);
    } else {
      sum.add_(own.parts[i]);
    }
  }
  own.parts.clear();
  if (!last_) {
    send(Message::Forward, owner(segment_ + 1, own.chunk), own.chunk, own.piece, std::move(sum));
    return;
  }
  piece_of(own.chunk, own.piece).copy_(sum);
  hand_back(own);
}

void ChainReduce::hand_back(const Owned& own) {
  const at::Tensor result = piece_of(own.chunk, own.piece);
  if (segment_ > 0) send(Message::Back, owner(segment_ - 1, own.chunk), own.chunk, own.piece, result);
  for (int member = first_; member < end_; ++member) {
    if (member != rank_) send(Message::Spread, member, own.chunk, own.piece, result);
  }
}

void ChainReduce::run() {
  post_gathering();
  std::vector<std::unique_ptr<Pending>> gathered = std::move(sends_);
  sends_.clear();
  for (Owned& own : owned_) sum(own);
  // A result overwrites what was sent to be added: not before it has left. No wait is for a rank that waits
  // for this one: sums need posted messages only, and all ranks come here once they have made theirs.
  for (auto& message : gathered) message->wait();
  std::vector<std::unique_ptr<Pending>> results;
  each_piece([&](int chunk, int piece, const at::Tensor& mine) {
    if (const int from = owner(segment_, chunk); from != rank_)
      results.push_back(receive(Message::Spread, from, chunk, piece, mine));
  });
  for (Owned& own : owned_) {
    if (!own.result) continue;
    own.result->wait();
    hand_back(own);
  }
  for (auto& message : results) message->wait();
  for (auto& message : sends_) message->wait();
}

}  // namespace millrace
