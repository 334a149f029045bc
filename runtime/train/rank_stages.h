// The stages of one rank: a lane for each array that shares the pipeline.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <ranges>
#include <utility>
#include <vector>

#include "runtime/train/lane.h"
#include "runtime/train/write_check.h"

namespace millrace {

/// All lanes of a rank. Not thread-safe.
class RankStages {
 public:
  /// `layouts` has one layout per array. Collective over the replicas of each stage. `world` and `layouts`
  /// must outlive the object.
  /// Throws ConfigError if the plan has no stage for this rank.
  RankStages(Communicator& world, Device& device, const std::vector<StageLayout>& layouts, const Plan& plan,
             const RankStagesOptions& options);
  RankStages(const RankStages&) = delete;  // lanes refer to the decision
  RankStages& operator=(const RankStages&) = delete;

  std::deque<Lane>& lanes() { return lanes_; }  ///< by array
  const std::deque<Lane>& lanes() const { return lanes_; }
  /// Returns the stages of all lanes, lane by lane and ascending in a lane; at least one.
  auto held() const { return lanes_ | std::views::transform(held_of) | std::views::join; }
  UpdateDecision& decision() { return decision_; }
  const UpdateDecision& decision() const { return decision_; }
  bool owns_loss() const;  ///< whether this rank reports for the job

  /// Starts a step of all lanes, or an asynchronous run: its microbatch 0 is at `first_position`.
  void begin(std::int64_t first_position);
  void set_turn(std::optional<std::size_t> turn);  ///< Lane::set_turn, for all lanes
  void pause(std::int64_t cut);                    ///< StageExecutor::pause, for all stages
  void go_on();
  void use_averages(bool averages);  ///< StageExecutor::use_averages, for all stages
  /// Calls `read` once, before weights or the rule's state change next: another thread reads them until then.
  void before_change(std::function<void()> read) { before_change_ = std::move(read); }
  void about_to_change() {
    if (const auto read = std::exchange(before_change_, nullptr)) read();
  }
  /// Checks for tensors that changed since the previous call (WriteCheck::look), if the options enable it.
  void check_writes(const Action* action, int array, bool trains) {
    if (writes_) writes_->look(lanes_, action, array, trains);
  }
  /// Runs any action except Update. The action's microbatch is numbered within its array.
  void execute(const Action& action, bool last_gradient, int array);
  void finish_sends();

  int peak_stash() const { return peak_stash_; }  ///< most microbatches stashed in all stages together
  int peak_versions() const;                      ///< most weight versions of any stage

 private:
  static const std::vector<HeldStage>& held_of(const Lane& lane) { return lane.held(); }

  UpdateDecision decision_;
  std::deque<Lane> lanes_;
  int peak_stash_ = 0;
  std::optional<WriteCheck> writes_;
  std::function<void()> before_change_;
};

}  // namespace millrace
