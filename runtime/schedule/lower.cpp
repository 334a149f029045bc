// From computations to a schedule: reduce, update, transfers.
#include <algorithm>
#include <map>
#include <set>

#include "runtime/schedule/generators.h"
#include "runtime/schedule/lock_step.h"

namespace millrace {
namespace {

/// Asynchronous orders have their updates in place.
void add_reduces(const PipelineShape& shape, Order& order) {
  Order with;
  for (const Action& a : order) {
    if (a.op == Op::Update && shape.replicas(a.stage) > 1)
      with.push_back(computation(Op::Reduce, a.stage.value, a.microbatch.value));
    with.push_back(a);
  }
  order = std::move(with);
}

/// Receives right before the computation that needs them, sends right after the one that made them: between
/// two computations all transfers are adjacent and form one exchange, which keeps 1F1B and GPipe free of
/// deadlock even where sends block (459 of 648 shapes hang otherwise).
Order add_transfers(const Order& computations, const PipelineShape& shape, const MessageIndex& messages) {
  Order actions;
  actions.reserve(computations.size() * 3);
  const auto transfer = [&](Op op, const Action& compute, StageId peer_stage) {
    actions.push_back({.op = op,
                       .stage = compute.stage,
                       .microbatch = compute.microbatch,
                       .peer_stage = peer_stage,
                       .peer = shape.rank_of(peer_stage, compute.microbatch)});
  };
  // An update in the middle (asynchronous) waits until the receives of the next computation are posted: they
  // then stand beside the sends of the last one, and the gradient leaves before the update. A replicated
  // stage must not wait for anything before its reduce: its replicas would wait for each other in a circle.
  Order updates;
  for (const Action& action : computations) {
    if (!is_compute(action.op)) {
      (shape.replicas(action.stage) > 1 ? actions : updates).push_back(action);
      continue;
    }
    const bool forward = action.op == Op::Forward, weight = action.op == Op::BackwardWeight;
    const auto &needs = forward ? messages.into(action.stage) : messages.out_of(action.stage),
               &gives = forward ? messages.out_of(action.stage) : messages.into(action.stage);
    for (auto link = needs.rbegin(); !weight && link != needs.rend(); ++link) {
      if (shape.is_local(*link, action.microbatch)) continue;
      transfer(forward ? Op::RecvActivation : Op::RecvGradient, action, forward ? link->from : link->to);
    }
    actions.insert(actions.end(), updates.begin(), updates.end());
    updates.clear();
    actions.push_back(action);
    for (auto link = gives.begin(); !weight && link != gives.end(); ++link) {
      if (shape.is_local(*link, action.microbatch)) continue;
      transfer(forward ? Op::SendActivation : Op::SendGradient, action, forward ? link->to : link->from);
    }
  }
  actions.insert(actions.end(), updates.begin(), updates.end());
  return actions;
}

/// Receives in the order in which their pair of ranks sends: a receive stands where a later message of the
/// same sender is waited for at the latest, i.e. where it has already been sent. Costs no time on wires that
/// keep the order, and lets transports without tags run the lists (pair_order.h).
void order_pairs(std::vector<Order>& ranks, const MessageIndex& messages) {
  std::vector<std::size_t> sent_as(messages.size(), 0);  // position among the messages of its pair
  for (const Order& order : ranks) {
    std::map<RankId, std::size_t> count;
    for (const Action& a : order) {
      if (is_send(a.op)) sent_as[messages.of(a)] = count[a.peer]++;
    }
  }
  for (Order& order : ranks) {
    std::map<RankId, std::map<std::size_t, Action>> to_come;  // by sender, in its order
    const auto receives = [](const Action& a) { return is_transfer(a.op) && !is_send(a.op); };
    for (const Action& a : order) {
      if (receives(a)) to_come[a.peer][sent_as[messages.of(a)]] = a;
    }
    Order ordered;
    ordered.reserve(order.size());
    for (const Action& a : order) {
      if (!receives(a)) {
        ordered.push_back(a);
        continue;
      }
      auto& queue = to_come[a.peer];
      const std::size_t own = sent_as[messages.of(a)];
      while (!queue.empty() && queue.begin()->first <= own) {
        ordered.push_back(queue.begin()->second);
        queue.erase(queue.begin());
      }
    }
    order = std::move(ordered);
  }
}

}  // namespace

void finish_step(const PipelineShape& shape, Order& order) {
  /// The ends of one array on this rank.
  struct Ends {
    std::map<int, std::int64_t> newest;  ///< by stage: the last microbatch
    std::size_t last = 0;                ///< place of its last action
  };
  std::map<int, Ends> arrays;
  std::set<std::pair<int, StageId>> reduced;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Action& a = order[i];
    const int array = shape.array_of(a.microbatch);
    if (a.op == Op::Reduce) reduced.insert({array, a.stage});
    Ends& ends = arrays[array];
    ends.last = i;
    auto& newest = ends.newest.try_emplace(a.stage.value, -1).first->second;
    newest = std::max(newest, a.microbatch.value);
  }
  std::map<std::size_t, Order> after;  // by place
  for (const auto& [array, ends] : arrays) {
    Order& end = after[ends.last];
    for (const auto& [stage, microbatch] : ends.newest) {
      if (shape.replicas(StageId(stage)) > 1 && !reduced.contains({array, StageId(stage)}))
        end.push_back(computation(Op::Reduce, stage, microbatch));
      end.push_back(computation(Op::Update, stage, microbatch));
    }
  }
  Order with;
  for (std::size_t i = 0; i < order.size(); ++i) {
    with.push_back(order[i]);
    if (const auto end = after.find(i); end != after.end())
      with.insert(with.end(), end->second.begin(), end->second.end());
  }
  order = std::move(with);
}

Schedule lower(ScheduleKind kind, const PipelineShape& shape, std::vector<std::vector<Action>> computations) {
  const MessageIndex messages(shape);
  Schedule schedule{.kind = kind};
  for (Order& order : computations) {
    is_asynchronous(kind) ? add_reduces(shape, order) : finish_step(shape, order);
    schedule.ranks.push_back(add_transfers(order, shape, messages));
  }
  order_pairs(schedule.ranks, messages);
  return schedule;
}

Schedule for_rendezvous(Schedule schedule, const PipelineShape& shape) {
  LockStep lock_step(schedule.ranks, shape, Transport::Rendezvous);
  while (!lock_step.run() && lock_step.hoist_receives()) {
  }
  return schedule;
}

}  // namespace millrace
