// Generators: the order of computations of each rank, then one pass that adds the transfers.
#include <algorithm>
#include <set>
#include <string>

#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

/// One rank's place: replica `replica` of stage `stage`.
struct Place {
  StageId stage;
  int replica;
  int replicas;
  int warm_up;  ///< forwards before the first backward, PipeDream's rule (pipedream.md 5.2)
};

/// Microbatches of a place in order: replica, replica + replicas, ...
std::vector<MicrobatchId> own_microbatches(const Place& place, int microbatches) {
  std::vector<MicrobatchId> own;
  for (int m = place.replica; m < microbatches; m += place.replicas) own.emplace_back(m);
  return own;
}

void finish_step(const Place& place, MicrobatchId last, std::vector<Action>& actions) {
  if (place.replicas > 1) actions.push_back({.op = Op::Reduce, .stage = place.stage, .microbatch = last});
  actions.push_back({.op = Op::Update, .stage = place.stage, .microbatch = last});
}

/// All forwards, all backwards, both in microbatch order. arXiv 1811.06965.
std::vector<Action> gpipe(const Place& place, int microbatches) {
  const auto own = own_microbatches(place, microbatches);
  std::vector<Action> actions;
  for (MicrobatchId m : own) actions.push_back({.op = Op::Forward, .stage = place.stage, .microbatch = m});
  for (MicrobatchId m : own) actions.push_back({.op = Op::Backward, .stage = place.stage, .microbatch = m});
  finish_step(place, own.back(), actions);
  return actions;
}

/// Warm-up forwards, then one forward, one backward, then the remaining backwards. With a flush: one update
/// at the end (PipeDream-Flush, arXiv 2006.09503); without: an update after each backward (PipeDream,
/// SOSP'19).
std::vector<Action> one_f_one_b(const Place& place, int microbatches, bool flush) {
  const auto own = own_microbatches(place, microbatches);
  const std::size_t warm_up = std::min<std::size_t>(own.size(), static_cast<std::size_t>(place.warm_up));
  std::vector<Action> actions;
  for (std::size_t k = 0; k < own.size() + warm_up; ++k) {
    if (k < own.size()) actions.push_back({.op = Op::Forward, .stage = place.stage, .microbatch = own[k]});
    if (k < warm_up) continue;
    actions.push_back({.op = Op::Backward, .stage = place.stage, .microbatch = own[k - warm_up]});
    if (!flush) finish_step(place, own[k - warm_up], actions);
  }
  if (flush) finish_step(place, own.back(), actions);
  return actions;
}

/// Receives right before the computation that needs them, sends right after the one that made them: between
/// two computations all transfers are adjacent and form one exchange, which keeps every shape free of
/// deadlock even where sends block (459 of 648 shapes hang otherwise).
std::vector<Action> add_transfers(const std::vector<Action>& computations, const PipelineShape& shape,
                                  const std::vector<StageLink>& links) {
  std::vector<Action> actions;
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
  std::vector<Action> updates;
  for (const Action& action : computations) {
    if (!is_compute(action.op)) {
      (shape.replicas(action.stage) > 1 ? actions : updates).push_back(action);
      continue;
    }
    const bool forward = action.op == Op::Forward, backward = action.op == Op::Backward;
    for (auto link = links.rbegin(); link != links.rend(); ++link) {
      if (shape.is_local(*link, action.microbatch)) continue;
      if (forward && link->to == action.stage) transfer(Op::RecvActivation, action, link->from);
      if (backward && link->from == action.stage) transfer(Op::RecvGradient, action, link->to);
    }
    actions.insert(actions.end(), updates.begin(), updates.end());
    updates.clear();
    actions.push_back(action);
    for (const StageLink& link : links) {
      if (shape.is_local(link, action.microbatch)) continue;
      if (forward && link.from == action.stage) transfer(Op::SendActivation, action, link.to);
      if (backward && link.to == action.stage) transfer(Op::SendGradient, action, link.from);
    }
  }
  actions.insert(actions.end(), updates.begin(), updates.end());
  return actions;
}

Problems problems_of(ScheduleKind kind, const PipelineShape& shape) {
  Problems problems;
  if (shape.ranks_of_stage.empty()) problems.push_back({"", "the pipeline has no stages", {}});
  if (shape.microbatches < 1) problems.push_back({"", "there are no microbatches", "use at least 1"});
  for (int s = 0; s < shape.num_stages(); ++s) {
    const int replicas = shape.replicas(StageId(s));
    const std::string where = "stage " + std::to_string(s);
    if (replicas == 0)
      problems.push_back({where, "has no ranks", {}});
    else if (replicas > shape.microbatches)
      problems.push_back({where,
                          "has " + std::to_string(replicas) + " replicas for " +
                              std::to_string(shape.microbatches) + " microbatches",
                          "use at least as many microbatches as replicas"});
    else if (kind == ScheduleKind::PipeDream && shape.microbatches % replicas != 0) {
      problems.push_back({where,
                          std::to_string(shape.microbatches) + " minibatches do not divide among " +
                              std::to_string(replicas) + " replicas",
                          "use a multiple"});
    }
  }
  for (const StageLink& link : shape.links) {
    if (link.from.value < 0 || link.to <= link.from || link.to.value >= shape.num_stages())
      problems.push_back({"",
                          "a link goes from stage " + std::to_string(link.from.value) + " to " +
                              std::to_string(link.to.value),
                          "links go to later stages"});
  }
  return problems;
}

}  // namespace

Result<Schedule> make_schedule(ScheduleKind kind, const PipelineShape& shape) {
  if (Problems problems = problems_of(kind, shape); !problems.empty()) return problems;
  const auto links = shape.all_links();
  const int world = shape.num_ranks();
  Schedule schedule{.kind = kind};
  schedule.ranks.resize(static_cast<std::size_t>(world));
  int ranks_before = 0;
  for (int s = 0; s < shape.num_stages(); ++s) {
    const auto& ranks = shape.ranks_of_stage[static_cast<std::size_t>(s)];
    const int replicas = static_cast<int>(ranks.size());
    for (int replica = 0; replica < replicas; ++replica) {
      const Place place{StageId(s), replica, replicas, (world - 1 - ranks_before) / replicas};
      const auto computations = kind == ScheduleKind::GPipe
                                    ? gpipe(place, shape.microbatches)
                                    : one_f_one_b(place, shape.microbatches, kind == ScheduleKind::OneFOneB);
      const std::size_t rank = static_cast<std::size_t>(ranks[static_cast<std::size_t>(replica)].value);
      if (rank >= schedule.ranks.size())
        return Problem{
            "", "rank " + std::to_string(rank) + " is outside 0.." + std::to_string(world - 1), {}};
      schedule.ranks[rank] = add_transfers(computations, shape, links);
    }
    ranks_before += replicas;
  }
  return schedule;
}

}  // namespace millrace
