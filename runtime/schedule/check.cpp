// What makes a schedule valid, and whether it can get stuck.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "runtime/schedule/message.h"

namespace millrace {
namespace {

class Checker {
 public:
  Checker(const Schedule& schedule, const PipelineShape& shape)
      : schedule_(schedule), shape_(shape), messages_(shape) {}

  Problems structure() {
    if (static_cast<int>(schedule_.ranks.size()) != shape_.num_ranks()) {
      return {{"",
               "the schedule has " + std::to_string(schedule_.ranks.size()) + " ranks, the shape " +
                   std::to_string(shape_.num_ranks()),
               {}}};
    }
    sent_.assign(messages_.size(), 0);
    received_.assign(messages_.size(), 0);
    for (std::size_t r = 0; r < schedule_.ranks.size(); ++r) rank(r);
    everything_once();
    return std::move(problems_);
  }

  Problems deadlock(Transport transport);

 private:
  using Cell = std::tuple<int, std::int64_t>;  // stage, microbatch

  void fail(std::size_t rank, const Action& action, std::string what) {
    if (problems_.size() < 50)
      problems_.push_back({"rank " + std::to_string(rank) + ", " + to_string(action), std::move(what), {}});
  }

  void rank(std::size_t r) {
    std::set<Cell> forward, input, weight, pending_gradients;
    std::set<std::size_t> have;  // messages received on this rank
    int updates = 0;
    for (const Action& a : schedule_.ranks[r]) {
      const Cell cell{a.stage.value, a.microbatch.value};
      if (a.stage.value < 0 || a.stage.value >= shape_.num_stages() || a.microbatch.value < 0 ||
          a.microbatch.value >= shape_.microbatches) {
        fail(r, a, "names a stage or microbatch outside the shape");
        continue;
      }
      if (is_compute(a.op) || is_transfer(a.op)) {
        if (shape_.rank_of(a.stage, a.microbatch) != RankId(static_cast<int>(r)))
          fail(r, a, "belongs to rank " + std::to_string(shape_.rank_of(a.stage, a.microbatch).value));
      }
      switch (a.op) {
        case Op::Forward:
          if (!forward.insert(cell).second) fail(r, a, "appears twice");
          needs(r, a, have, /*gradient=*/false);
          break;
        case Op::Backward:
        case Op::BackwardInput:
          if (!forward.contains(cell)) fail(r, a, "comes before its forward");
          if (!input.insert(cell).second) fail(r, a, "appears twice");
          if (schedule_.kind == ScheduleKind::PipeDream && !pending_gradients.empty())
            fail(r, a, "comes before the update of the backward before it");
          if (a.op == Op::Backward && !weight.insert(cell).second) fail(r, a, "appears twice");
          needs(r, a, have, /*gradient=*/true);
          if (weight.contains(cell)) pending_gradients.insert(cell);
          break;
        case Op::BackwardWeight:
          if (!input.contains(cell)) fail(r, a, "comes before its input gradient");
          if (!weight.insert(cell).second) fail(r, a, "appears twice");
          pending_gradients.insert(cell);
          break;
        case Op::Reduce:
          if (shape_.replicas(a.stage) < 2) fail(r, a, "the stage has one replica");
          reduced_ = true;
          break;
        case Op::Update:
          if (pending_gradients.empty()) fail(r, a, "there are no gradients to apply");
          if (shape_.replicas(a.stage) > 1 && !reduced_) fail(r, a, "comes before its reduce");
          reduced_ = false;
          pending_gradients.clear();
          ++updates;
          break;
        default:
          transfer(r, a, have, forward, input);
      }
    }
    if (!pending_gradients.empty())
      problems_.push_back({"rank " + std::to_string(r), "gradients are left without an update", {}});
    if (schedule_.kind != ScheduleKind::PipeDream && updates != 1)
      problems_.push_back({"rank " + std::to_string(r),
                           "has " + std::to_string(updates) + " updates in a flushing schedule, expected 1",
                           {}});
    for (const Cell& cell : forward) done_.insert({0, cell});
    for (const Cell& cell : input) done_.insert({1, cell});
    for (const Cell& cell : weight) done_.insert({2, cell});
  }

  /// The messages that a computation consumes must have been received.
  void needs(std::size_t r, const Action& a, const std::set<std::size_t>& have, bool gradient) {
    for (const StageLink& link : messages_.links()) {
      if ((gradient ? link.from : link.to) != a.stage) continue;
      const StageId peer = gradient ? link.to : link.from;
      const Action recv{gradient ? Op::RecvGradient : Op::RecvActivation, a.stage, a.microbatch, peer, {}};
      if (!have.contains(static_cast<std::size_t>(messages_.of(recv))))
        fail(r, a, "its tensor from stage " + std::to_string(peer.value) + " was not received before");
    }
  }

  void transfer(std::size_t r, const Action& a, std::set<std::size_t>& have, const std::set<Cell>& forward,
                const std::set<Cell>& input) {
    const std::int64_t message = messages_.of(a);
    if (message < 0) return fail(r, a, "no link joins these stages");
    if (shape_.rank_of(a.peer_stage, a.microbatch) != a.peer)
      fail(r, a, "the peer must be rank " + std::to_string(shape_.rank_of(a.peer_stage, a.microbatch).value));
    const Cell cell{a.stage.value, a.microbatch.value};
    if (is_send(a.op)) {
      if (sent_[static_cast<std::size_t>(message)]++) fail(r, a, "is sent twice");
      const auto& made = a.op == Op::SendActivation ? forward : input;
      if (!made.contains(cell)) fail(r, a, "comes before the computation that makes it");
    } else {
      if (received_[static_cast<std::size_t>(message)]++) fail(r, a, "is received twice");
      have.insert(static_cast<std::size_t>(message));
    }
  }

  void everything_once() {
    for (int s = 0; s < shape_.num_stages(); ++s) {
      for (std::int64_t m = 0; m < shape_.microbatches; ++m) {
        for (int kind = 0; kind < 3; ++kind) {
          if (done_.contains({kind, {s, m}})) continue;
          static const char* names[] = {"forward", "input gradient", "weight gradient"};
          problems_.push_back(
              {"stage " + std::to_string(s),
               std::string("the ") + names[kind] + " of microbatch " + std::to_string(m) + " is missing",
               {}});
          if (problems_.size() > 50) return;
        }
      }
    }
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (sent_[i] != 1 || received_[i] != 1) {
        problems_.push_back({"link " + std::to_string(messages_.link_of(i)),
                             "a message is sent " + std::to_string(sent_[i]) + " and received " +
                                 std::to_string(received_[i]) + " times",
                             {}});
        if (problems_.size() > 50) return;
      }
    }
  }

  const Schedule& schedule_;
  const PipelineShape& shape_;
  MessageIndex messages_;
  Problems problems_;
  std::vector<int> sent_, received_;
  std::set<std::pair<int, Cell>> done_;
  bool reduced_ = false;
};

/// Executes all ranks symbolically. A run of adjacent transfers is posted at once and completed as a whole; a
/// receive completes when the send was posted, a blocking send when the receive was posted.
Problems Checker::deadlock(Transport transport) {
  const std::size_t ranks = schedule_.ranks.size();
  std::vector<std::size_t> at(ranks, 0), posted_until(ranks, 0), reduces(ranks, 0);
  std::vector<char> send_posted(messages_.size(), 0), recv_posted(messages_.size(), 0);
  const auto run_end = [&](std::size_t r, std::size_t i) {
    while (i < schedule_.ranks[r].size() && is_transfer(schedule_.ranks[r][i].op)) ++i;
    return i;
  };
  const auto run_done = [&](std::size_t r, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Action& a = schedule_.ranks[r][i];
      const auto message = static_cast<std::size_t>(messages_.of(a));
      if (is_send(a.op) ? transport == Transport::Rendezvous && !recv_posted[message] : !send_posted[message])
        return false;
    }
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < ranks; ++r) {
      while (at[r] < schedule_.ranks[r].size()) {
        const Action& a = schedule_.ranks[r][at[r]];
        if (is_transfer(a.op)) {
          const std::size_t end = run_end(r, at[r]);
          for (std::size_t i = std::max(at[r], posted_until[r]); i < end; ++i) {
            const Action& t = schedule_.ranks[r][i];
            (is_send(t.op) ? send_posted : recv_posted)[static_cast<std::size_t>(messages_.of(t))] = 1;
            progress = true;
          }
          posted_until[r] = end;
          if (!run_done(r, at[r], end)) break;
          at[r] = end;
        } else if (a.op == Op::Reduce) {
          // A barrier of the replicas: the k-th reduce of each.
          const bool arrived = reduces[r] % 2 == 0;
          if (arrived) ++reduces[r], progress = true;
          const auto& group = shape_.ranks_of_stage[static_cast<std::size_t>(a.stage.value)];
          const bool all = std::ranges::all_of(
              group, [&](RankId p) { return reduces[static_cast<std::size_t>(p.value)] >= reduces[r]; });
          if (!all) break;
          ++reduces[r];
          ++at[r];
        } else {
          ++at[r];
        }
        progress = true;
      }
    }
  }
  Problems problems;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (at[r] < schedule_.ranks[r].size()) {
      problems.push_back(
          {"rank " + std::to_string(r),
           "is stuck at " + to_string(schedule_.ranks[r][at[r]]) + " (action " + std::to_string(at[r] + 1) +
               " of " + std::to_string(schedule_.ranks[r].size()) + ")",
           transport == Transport::Rendezvous ? "sends block here: adjacent transfers must form one exchange"
                                              : ""});
    }
  }
  return problems;
}

}  // namespace

Problems check(const Schedule& schedule, const PipelineShape& shape, Transport transport) {
  Checker checker(schedule, shape);
  if (Problems problems = checker.structure(); !problems.empty()) return problems;
  return checker.deadlock(transport);
}

}  // namespace millrace
