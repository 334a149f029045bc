#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "runtime/schedule/memory_walk.h"
#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

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

void walk(const std::vector<Action>& actions, std::vector<std::vector<StageMoment>>& moments) {
  const std::vector<Action> receives = receives_of(actions);
  std::vector<StageMoment> held(moments.size(), StageMoment{.stashed = 0});
  std::size_t received = 0;
  for (const Action& a : actions) {
    StageMoment& stage = held[static_cast<std::size_t>(a.stage.value)];
    received += is_receive(a.op);
    stage.stashed += a.op == Op::Forward;
    if (!is_backward(a.op)) continue;
    StageMoment moment = stage;
    moment.op = a.op;
    visit_posted(receives, received, [&](const Action& message) {
      if (message.stage == a.stage)
        ++(message.op == Op::RecvActivation ? moment.activations : moment.gradients);
    });
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

std::vector<Action> receives_of(const std::vector<Action>& actions) {
  std::vector<Action> receives;
  std::ranges::copy_if(actions, std::back_inserter(receives),
                       [](const Action& a) { return is_receive(a.op); });
  return receives;
}

void visit_posted(std::span<const Action> receives, std::size_t done,
                  const std::function<void(const Action&)>& visit) {
  std::set<std::tuple<StageId, Op, MicrobatchId>> seen;
  for (const Action& a :
       receives.subspan(done, std::min<std::size_t>(kReceivesAhead, receives.size() - done))) {
    if (seen.insert({a.stage, a.op, a.microbatch}).second) visit(a);
  }
}

std::vector<std::vector<StageMoment>> fullest_moments(const Schedule& schedule, const PipelineShape& shape) {
  std::vector<std::vector<StageMoment>> moments(static_cast<std::size_t>(shape.num_stages()));
  for (const std::vector<Action>& actions : schedule.ranks) walk(actions, moments);
  for (std::vector<StageMoment>& of_stage : moments) std::ranges::sort(of_stage);
  return moments;
}

}  // namespace millrace
