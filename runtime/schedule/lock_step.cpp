#include "runtime/schedule/lock_step.h"

#include <algorithm>
#include <utility>

namespace millrace {

LockStep::LockStep(std::vector<std::vector<Action>>& ranks, const PipelineShape& shape, Transport transport,
                   std::vector<char> stages_that_meet)
    : ranks_(ranks),
      shape_(shape),
      transport_(transport),
      stages_that_meet_(std::move(stages_that_meet)),
      messages_(shape),
      at_(ranks.size(), 0),
      posted_until_(ranks.size(), 0),
      is_ready_(ranks.size(), 0),
      in_barrier_(ranks.size(), 0),
      released_(ranks.size(), 0),
      send_posted_(messages_.size(), 0),
      recv_posted_(messages_.size(), 0) {
  for (std::size_t r = ranks.size(); r-- > 0;) wake(r);
}

void LockStep::wake(std::size_t rank) {
  if (is_ready_[rank]) return;
  is_ready_[rank] = 1;
  ready_.push_back(rank);
}

bool LockStep::run() {
  while (!ready_.empty()) {
    const std::size_t rank = ready_.back();
    ready_.pop_back();
    is_ready_[rank] = 0;
    advance(rank);
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (at_[r] < ranks_[r].size()) return false;
  return true;
}

void LockStep::advance(std::size_t rank) {
  const std::vector<Action>& actions = ranks_[rank];
  while (at_[rank] < actions.size()) {
    const Action& action = actions[at_[rank]];
    if (is_transfer(action.op)) {
      if (!post_exchange(rank)) return;
    } else if (meets(action)) {
      if (!pass_reduce(rank, action)) return;
    } else {
      ++at_[rank];
    }
  }
}

/// Posts what is new in the exchange at the rank's position. True if the whole exchange is complete.
bool LockStep::post_exchange(std::size_t rank) {
  const std::vector<Action>& actions = ranks_[rank];
  const std::size_t end =
      transport_ == Transport::Buffered ? at_[rank] + 1 : exchange_end(actions, at_[rank]);
  for (std::size_t i = std::max(at_[rank], posted_until_[rank]); i < end; ++i) {
    (is_send(actions[i].op) ? send_posted_ : recv_posted_)[message_of(actions[i])] = 1;
    wake(static_cast<std::size_t>(actions[i].peer.value));
  }
  posted_until_[rank] = end;
  for (std::size_t i = at_[rank]; i < end; ++i) {
    const std::size_t message = message_of(actions[i]);
    if (is_send(actions[i].op) ? transport_ == Transport::Rendezvous && !recv_posted_[message]
                               : !send_posted_[message])
      return false;
  }
  at_[rank] = end;
  return true;
}

bool LockStep::pass_reduce(std::size_t rank, const Action& action) {
  if (released_[rank]) {
    released_[rank] = in_barrier_[rank] = 0;
    ++at_[rank];
    return true;
  }
  if (in_barrier_[rank]) return false;
  in_barrier_[rank] = 1;
  Barrier& barrier = barriers_[action.stage.value];
  barrier.waiting.push_back(rank);
  if (++barrier.arrived < shape_.replicas(action.stage)) return false;
  for (std::size_t member : barrier.waiting) {
    released_[member] = 1;
    if (member != rank) wake(member);
  }
  barrier = {};
  return pass_reduce(rank, action);
}

bool LockStep::hoist_receives() {
  if (transport_ == Transport::Buffered) return false;
  bool moved = false;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    for (std::size_t i = at_[r]; i < posted_until_[r]; ++i) {
      const Action send = ranks_[r][i];
      if (!is_send(send.op) || recv_posted_[message_of(send)]) continue;
      const std::size_t peer = static_cast<std::size_t>(send.peer.value);
      std::vector<Action>& list = ranks_[peer];
      const std::size_t from = std::max(at_[peer], posted_until_[peer]);
      const auto receive =
          std::find_if(list.begin() + static_cast<std::ptrdiff_t>(from), list.end(), [&](const Action& a) {
            return is_transfer(a.op) && !is_send(a.op) && message_of(a) == message_of(send);
          });
      if (receive == list.end()) continue;
      std::rotate(list.begin() + static_cast<std::ptrdiff_t>(from), receive, receive + 1);
      recv_posted_[message_of(send)] = 1;
      if (posted_until_[peer] <= at_[peer]) posted_until_[peer] = at_[peer];
      ++posted_until_[peer];
      wake(peer);
      wake(r);
      moved = true;
    }
  }
  return moved;
}

}  // namespace millrace
