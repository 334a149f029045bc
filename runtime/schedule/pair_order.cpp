#include "runtime/schedule/pair_order.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/schedule/message.h"

namespace millrace {
namespace {

/// The identity of a message for both ends: gradient or activation, producing stage, consuming stage,
/// microbatch.
using Message = std::tuple<bool, int, int, int>;

Message message_of(const Action& t) {
  const bool gradient = t.op == Op::SendGradient || t.op == Op::RecvGradient;
  const int here = t.stage.value, there = t.peer_stage.value;
  return {gradient, is_send(t.op) ? here : there, is_send(t.op) ? there : here, t.microbatch.value};
}

struct Queue {
  std::vector<const Action*> sent, received;
};

}  // namespace

RankPairs talking_pairs(const PipelineShape& shape, Passes passes) {
  RankPairs pairs;
  const int different = std::min(shape.microbatches, shape.replica_cycle());
  for (const StageLink& link : shape.all_links()) {
    for (int m = 0; m < different; ++m) {
      const MicrobatchId microbatch(m);
      if (shape.is_local(link, microbatch)) continue;
      const RankId from = shape.rank_of(link.from, microbatch), to = shape.rank_of(link.to, microbatch);
      pairs.emplace(from, to);
      if (passes == Passes::ForwardAndBackward) pairs.emplace(to, from);
    }
  }
  return pairs;
}

Problems check_pair_order(const Schedule& schedule) {
  std::map<std::pair<int, int>, Queue> queues;  // (from, to)
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (const Action& action : schedule.ranks[rank]) {
      if (!is_transfer(action.op)) continue;
      if (is_send(action.op))
        queues[{rank, action.peer.value}].sent.push_back(&action);
      else
        queues[{action.peer.value, rank}].received.push_back(&action);
    }
  }
  Problems problems;
  for (const auto& [pair, queue] : queues) {
    const auto [sent, received] = std::ranges::mismatch(
        queue.sent, queue.received,
        [](const Action* a, const Action* b) { return message_of(*a) == message_of(*b); });
    if (sent == queue.sent.end() && received == queue.received.end()) continue;
    const auto text = [](bool there, const auto& at) {
      return there ? to_string(**at) : std::string("nothing");
    };
    problems.push_back({"rank " + std::to_string(pair.first) + " to rank " + std::to_string(pair.second),
                        "message " + std::to_string(sent - queue.sent.begin() + 1) + " is " +
                            text(sent != queue.sent.end(), sent) + " for the sender and " +
                            text(received != queue.received.end(), received) + " for the receiver",
                        "NCCL delivers messages in the order of posting; use --backend auto or tcp"});
  }
  return problems;
}

}  // namespace millrace
