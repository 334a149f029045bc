#include "runtime/train/rank_stages.h"

#include <algorithm>
#include <string>

#include "runtime/base/error.h"

namespace millrace {
namespace {

/// Returns the numbers that separate the messages of the models of all arrays and turns.
MessageNumbers numbers_of(const std::vector<StageLayout>& layouts) {
  MessageNumbers numbers{.models = static_cast<int>(layouts.size() * (layouts.front().turns.size() + 1))};
  const auto count = [&](const StageLayout& one) {
    numbers.most_crossings = std::max(numbers.most_crossings, one.crossings.size());
    numbers.most_ties = std::max(numbers.most_ties, one.ties.size());
  };
  for (const StageLayout& layout : layouts) {
    count(layout);
    std::ranges::for_each(layout.turns, count);
  }
  return numbers;
}

/// Returns the communicators of the stages' replicas, for the stages of this rank that have any. Collective.
std::vector<std::shared_ptr<Communicator>> replica_groups(Communicator& world, const Plan& plan) {
  std::vector<std::shared_ptr<Communicator>> groups;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const std::vector<RankId>& ranks = plan.stages[s].ranks;
    const bool mine = std::ranges::find(ranks, world.rank()) != ranks.end();
    groups.push_back(mine && ranks.size() > 1 ? world.subgroup(ranks, "stage" + std::to_string(s)) : nullptr);
  }
  return groups;
}

}  // namespace

RankStages::RankStages(Communicator& world, Device& device, const std::vector<StageLayout>& layouts,
                       const Plan& plan, const RankStagesOptions& options)
    : decision_(options.jobs, options.precision, options.loss_scale, options.executor.stop_on_nonfinite,
                options.nonfinite, is_asynchronous(plan.schedule)) {
  const auto groups = replica_groups(world, plan);
  const MessageNumbers numbers = numbers_of(layouts);
  std::size_t first_job = 0;
  for (std::size_t array = 0; array < layouts.size(); ++array) {
    lanes_.emplace_back(LaneParts{world, device, layouts[array], plan, options, decision_, groups, numbers,
                                  static_cast<int>(array), first_job});
    first_job += static_cast<std::size_t>(layouts[array].model.jobs());
  }
  if (options.check_writes) writes_.emplace();
  if (lanes_.front().held().empty()) {
    throw ConfigError("the plan has no place for rank " + std::to_string(world.rank().value),
                      "start as many ranks as the plan names");
  }
}

bool RankStages::owns_loss() const {
  return lanes_.back().last() && lanes_.back().held().back().replica == 0;
}

void RankStages::begin(std::int64_t first_position) {
  for (Lane& lane : lanes_) lane.begin(first_position);
}

void RankStages::set_turn(std::optional<std::size_t> turn) {
  for (Lane& lane : lanes_) lane.set_turn(turn);
}

void RankStages::pause(std::int64_t cut) {
  for (const HeldStage& h : held()) h.executor->pause(cut);
  if (writes_) writes_->forget();  // running statistics may now be those of an earlier microbatch
}

void RankStages::go_on() {
  for (const HeldStage& h : held()) h.executor->go_on();
  if (writes_) writes_->forget();
}

void RankStages::use_averages(bool averages) {
  about_to_change();
  bool exchanged = false;
  for (const HeldStage& h : held()) exchanged = h.executor->use_averages(averages) || exchanged;
  if (exchanged) finish_sends();
  if (writes_) writes_->forget();
}

void RankStages::execute(const Action& action, bool last_gradient, int array) {
  lanes_[array].executor(action.stage).execute(action, last_gradient);
  if (action.op != Op::Forward) return;
  int stash = 0;
  for (const HeldStage& h : held()) stash += h.executor->stashed_microbatches();
  peak_stash_ = std::max(peak_stash_, stash);
}

void RankStages::finish_sends() {
  for (const HeldStage& h : held()) {
    for (const auto& executor : h.executors) executor->finish_sends();
  }
}

int RankStages::peak_versions() const {
  int most = 1;
  for (const HeldStage& h : held()) {
    for (const auto& executor : h.executors) most = std::max(most, executor->peak_versions());
  }
  return most;
}

}  // namespace millrace
