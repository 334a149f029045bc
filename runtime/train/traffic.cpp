#include "runtime/train/traffic.h"

#include <algorithm>

#include "runtime/schedule/pair_order.h"

namespace millrace {
namespace {

/// Returns the pairs of the training schedules: one for each turn if a model has turns.
RankPairs training_pairs(const Training& t, const StageLayout& layout) {
  RankPairs pairs;
  const auto add = [&](const StageLayout& one) {
    PipelineShape shape = shape_of(t.plan, one, 0);
    if (t.asynchronous()) shape.microbatches = shape.replica_cycle();  // a run consists of whole cycles
    pairs.merge(talking_pairs(shape, Passes::ForwardAndBackward));
  };
  if (layout.turns.empty()) add(layout);
  std::ranges::for_each(layout.turns, add);
  return pairs;
}

RankPairs tied_pairs(const Plan& plan, const StageLayout& layout) {
  std::vector<std::vector<RankId>> ranks_of_stage;
  for (const PlanStage& stage : plan.stages) ranks_of_stage.push_back(stage.ranks);
  RankPairs pairs = talking_pairs(layout.ties, ranks_of_stage);
  for (const StageLayout& turn : layout.turns) pairs.merge(talking_pairs(turn.ties, ranks_of_stage));
  return pairs;
}

RankPairs evaluation_pairs(const Training& t, std::size_t array, int chunk) {
  const std::int64_t total = t.sources[array].evaluation.microbatches;
  if (total == 0) return {};
  const int most = static_cast<int>(std::min<std::int64_t>(total, chunk));
  return talking_pairs(shape_of(t.plan, t.layouts[array], most), Passes::Forward);
}

}  // namespace

void connect_ranks(Training& training, int evaluation_chunk) {
  const Training& t = training;
  // Threads share memory. A thousand of them that each list a thousand ranks' messages would take minutes.
  if (t.options.shared_schedules) return;
  Traffic world;
  for (std::size_t array = 0; array < t.layouts.size(); ++array) {
    world.messages.merge(training_pairs(t, t.layouts[array]));
    world.messages.merge(tied_pairs(t.plan, t.layouts[array]));
    world.messages.merge(evaluation_pairs(t, array, evaluation_chunk));
  }
  training.world.communicator.connect(world);
  const bool shards =
      std::ranges::any_of(t.options.jobs, [](const JobOptions& job) { return job.rule.shard_state; });
  for (const HeldStage& h : t.stages->lanes().front().held()) {
    if (!h.group) continue;
    Traffic replicas = all_traffic(h.group->size());
    if (!shards) replicas.messages.clear();
    h.group->connect(replicas);
  }
}

}  // namespace millrace
