// What a rank holds at most, by the order of its list.
#include <algorithm>
#include <utility>

#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

double cost(const std::vector<double>& costs, std::size_t index) {
  return index < costs.size() ? costs[index] : 0;
}

std::size_t index(StageId stage) {
  return static_cast<std::size_t>(stage.value);
}

/// Peaks by order alone: stashed microbatches, versions pinned at Forward and released at the last backward.
class PeakCounter {
 public:
  PeakCounter(const PipelineShape& shape, const SimulationOptions& options)
      : shape_(shape), options_(options), slot_of_(static_cast<std::size_t>(shape.num_stages()), -1) {}

  struct Peak {
    int stash = 0;
    int versions = 1;
    double bytes = 0;
  };

  Peak count(const std::vector<Action>& actions) {
    stages_.clear();
    live_ = 0;
    bytes_ = 0;
    peak_ = {};
    for (const Action& a : actions) step(a);
    for (const Stage& stage : stages_) slot_of_[stage.id] = -1;
    return peak_;
  }

 private:
  struct Stage {
    std::size_t id = 0;
    std::vector<int> pinned;  // by own microbatch: version + 1, 0: none
    std::vector<int> users;   // by version
    int live_versions = 1;
  };

  Stage& stage_of(const Action& a) {
    int& slot = slot_of_[index(a.stage)];
    if (slot < 0) {
      slot = static_cast<int>(stages_.size());
      Stage& stage = stages_.emplace_back();
      stage.id = index(a.stage);
      stage.pinned.assign(static_cast<std::size_t>(shape_.microbatches / shape_.replicas(a.stage) + 1), 0);
      stage.users.assign(1, 0);
      bytes_ += cost(options_.weight_bytes, stage.id) + cost(options_.state_bytes, stage.id);
    }
    return stages_[static_cast<std::size_t>(slot)];
  }

  void step(const Action& a) {
    if (a.op == Op::Reduce || is_transfer(a.op)) return;
    Stage& stage = stage_of(a);
    int& pinned = stage.pinned[static_cast<std::size_t>(a.microbatch.value / shape_.replicas(a.stage))];
    if (a.op == Op::Forward && pinned == 0) {
      ++stage.users.back();
      pinned = static_cast<int>(stage.users.size());
      ++live_;
      bytes_ += cost(options_.stash_bytes, stage.id);
    } else if ((a.op == Op::Backward || a.op == Op::BackwardWeight) && pinned > 0) {
      const auto version = static_cast<std::size_t>(std::exchange(pinned, 0));
      --live_;
      bytes_ -= cost(options_.stash_bytes, stage.id);
      if (--stage.users[version - 1] == 0 && version < stage.users.size()) change_versions(stage, -1);
    } else if (a.op == Op::Update) {
      const bool old_lives = stage.users.back() > 0;
      stage.users.push_back(0);
      if (old_lives) change_versions(stage, +1);
    }
    peak_.stash = std::max(peak_.stash, live_);
    peak_.versions = std::max(peak_.versions, stage.live_versions);
    peak_.bytes = std::max(peak_.bytes, bytes_);
  }

  void change_versions(Stage& stage, int by) {
    stage.live_versions += by;
    bytes_ += by * cost(options_.weight_bytes, stage.id);
  }

  const PipelineShape& shape_;
  const SimulationOptions& options_;
  std::vector<int> slot_of_;  // by stage: its place in stages_, on the rank at hand
  std::vector<Stage> stages_;
  int live_ = 0;
  double bytes_ = 0;
  Peak peak_;
};

}  // namespace

Peaks peaks_of(const Schedule& schedule, const PipelineShape& shape) {
  const SimulationOptions no_bytes;
  PeakCounter counter(shape, no_bytes);
  Peaks peaks;
  for (const auto& actions : schedule.ranks) {
    const auto peak = counter.count(actions);
    peaks.stash.push_back(peak.stash);
    peaks.versions.push_back(peak.versions);
  }
  return peaks;
}

std::vector<double> peak_bytes_of(const Schedule& schedule, const PipelineShape& shape,
                                  const SimulationOptions& options) {
  PeakCounter counter(shape, options);
  std::vector<double> bytes;
  for (const auto& actions : schedule.ranks) bytes.push_back(counter.count(actions).bytes);
  return bytes;
}

}  // namespace millrace
