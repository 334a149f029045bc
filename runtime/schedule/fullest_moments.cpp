#include <algorithm>
#include <set>
#include <utility>

#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

bool is_backward(Op op) {
  return op == Op::Backward || op == Op::BackwardInput || op == Op::BackwardWeight;
}

/// Tells whether `a` holds no more of anything than `b`.
bool within(const StageMoment& a, const StageMoment& b) {
  return a.op == b.op && a.stashed <= b.stashed && a.open == b.open && a.activations <= b.activations &&
         a.gradients <= b.gradients;
}

void add(std::vector<StageMoment>& moments, const StageMoment& moment) {
  if (std::ranges::any_of(moments, [&](const StageMoment& m) { return within(moment, m); })) return;
  std::erase_if(moments, [&](const StageMoment& m) { return within(m, moment); });
  moments.push_back(moment);
}

/// Counts the messages of a stage among the receives that are posted. A microbatch that comes from several
/// stages counts once.
void count_posted(const std::vector<Action>& receives, std::size_t next, StageId stage, StageMoment& moment) {
  std::set<std::pair<Op, MicrobatchId>> seen;
  const std::size_t end = std::min(receives.size(), next + kReceivesAhead);
  for (std::size_t i = next; i < end; ++i) {
    const Action& a = receives[i];
    if (a.stage == stage && seen.insert({a.op, a.microbatch}).second)
      ++(a.op == Op::RecvActivation ? moment.activations : moment.gradients);
  }
}

void walk(const std::vector<Action>& actions, std::vector<std::vector<StageMoment>>& moments) {
  std::vector<Action> receives;
  for (const Action& a : actions) {
    if (is_receive(a.op)) receives.push_back(a);
  }
  std::vector<StageMoment> held(moments.size(), StageMoment{.stashed = 0});
  std::size_t received = 0;
  for (const Action& a : actions) {
    StageMoment& stage = held[static_cast<std::size_t>(a.stage.value)];
    received += is_receive(a.op);
    stage.stashed += a.op == Op::Forward;
    if (!is_backward(a.op)) continue;
    StageMoment moment = stage;
    moment.op = a.op;
    count_posted(receives, received, a.stage, moment);
    add(moments[static_cast<std::size_t>(a.stage.value)], moment);
    if (a.op == Op::BackwardInput) {
      ++stage.open;
    } else {
      --stage.stashed;
      stage.open -= a.op == Op::BackwardWeight;
    }
  }
}

}  // namespace

std::vector<std::vector<StageMoment>> fullest_moments(const Schedule& schedule, const PipelineShape& shape) {
  std::vector<std::vector<StageMoment>> moments(static_cast<std::size_t>(shape.num_stages()));
  for (const std::vector<Action>& actions : schedule.ranks) walk(actions, moments);
  for (std::vector<StageMoment>& of_stage : moments) std::ranges::sort(of_stage);
  return moments;
}

}  // namespace millrace
