#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "runtime/schedule/memory_walk.h"
#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

/// Follows the list of one rank.
class RankBytes {
 public:
  RankBytes(const std::vector<Action>& actions, const PipelineShape& shape,
            const std::vector<StageBytes>& of_stage)
      : actions_(actions), shape_(shape), of_stage_(of_stage), receives_(receives_of(actions)) {}

  double peak(const std::vector<StageId>& stages, const std::vector<std::int64_t>& versions) {
    for (StageId stage : stages) {
      held_ += shape_.arrays * (at(stage).weights + at(stage).state);
      leave_exchange(stage);  // that of the step before
    }
    peak_ = held_ + under_way();
    walk_memory(actions_, shape_, versions, [&](const Action& a, const MemoryStep& step) { act(a, step); });
    return peak_;
  }

 private:
  const StageBytes& at(StageId stage) const { return of_stage_[static_cast<std::size_t>(stage.value)]; }

  void act(const Action& a, const MemoryStep& step) {
    const StageBytes& stage = at(a.stage);
    received_ += is_receive(a.op);
    if (is_send(a.op)) sent_.emplace(a.stage, a.op);
    if (a.op == Op::Forward) under_way_[a.stage] = 0;
    if (is_backward(a.op)) {
      if (a.op != Op::BackwardInput && stashed_[a.stage] == 1) under_way_[a.stage] = stage.reduced;
      peak_ = std::max(peak_, held_ + while_running(a));
    }
    if (is_backward(a.op) || a.op == Op::Forward) sent_.clear();
    stashed_[a.stage] += step.stash;
    if (a.op == Op::Update) leave_exchange(a.stage);
    held_ += step.stash * stage.stash + step.open * (stage.half_done - stage.stash) +
             step.versions * stage.weights;
    peak_ = std::max(peak_, held_ + under_way());
  }

  void leave_exchange(StageId stage) { under_way_[stage] = at(stage).exchanged; }

  double under_way() const {
    double bytes = 0;
    for (const auto& [stage, of_stage] : under_way_) bytes += of_stage;
    return bytes;
  }

  /// Returns what a backward adds: its workspace, its two messages, those of the posted receives, those that
  /// the rank's other stages have just sent, and what is under way between steps.
  double while_running(const Action& backward) const {
    const StageBytes& stage = at(backward.stage);
    double bytes = stage.workspace_of(backward.op) + stage.incoming + stage.outgoing + under_way();
    for (const auto& [sender, op] : sent_)
      if (sender != backward.stage)
        bytes += op == Op::SendActivation ? at(sender).outgoing : at(sender).incoming;
    visit_posted(receives_, received_, [&](const Action& a) {
      bytes += a.op == Op::RecvActivation ? at(a.stage).incoming : at(a.stage).outgoing;
    });
    return bytes;
  }

  const std::vector<Action>& actions_;
  const PipelineShape& shape_;
  const std::vector<StageBytes>& of_stage_;
  const std::vector<Action> receives_;
  std::size_t received_ = 0;
  std::set<std::pair<StageId, Op>> sent_;  // since the rank's last computation
  std::map<StageId, int> stashed_;
  std::map<StageId, double> under_way_;  // gradients that were reduced, tied parameters that were exchanged
  double held_ = 0, peak_ = 0;
};

}  // namespace

std::vector<double> peak_bytes_of(const Schedule& schedule, const PipelineShape& shape,
                                  const std::vector<StageBytes>& of_stage) {
  const std::vector<std::int64_t> versions = forward_versions(schedule, shape);
  const auto stages = shape.stages_of_ranks();
  std::vector<double> peaks;
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r)
    peaks.push_back(RankBytes(schedule.ranks[r], shape, of_stage).peak(stages[r], versions));
  return peaks;
}

}  // namespace millrace
