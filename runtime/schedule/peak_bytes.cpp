#include <algorithm>
#include <utility>

#include "runtime/schedule/simulate.h"

namespace millrace {
namespace {

double bytes_at(const std::vector<double>& bytes, std::size_t stage) {
  return stage < bytes.size() ? bytes[stage] : 0;
}

/// By order alone: what is stashed, and versions pinned at a forward and released at its last backward.
class ByteCounter {
 public:
  ByteCounter(const PipelineShape& shape, const SimulationOptions& options)
      : shape_(shape), options_(options), slot_of_(static_cast<std::size_t>(shape.num_stages()), -1) {}

  double count(const std::vector<Action>& actions) {
    stages_.clear();
    bytes_ = 0;
    peak_ = 0;
    for (const Action& a : actions) step(a);
    for (const Stage& stage : stages_) slot_of_[stage.id] = -1;
    return peak_;
  }

 private:
  struct Stage {
    std::size_t id = 0;
    std::vector<int> pinned;  // by own microbatch: version + 1, 0: none
    std::vector<int> users;   // by version
  };

  Stage& stage_of(const Action& a) {
    int& slot = slot_of_[static_cast<std::size_t>(a.stage.value)];
    if (slot < 0) {
      slot = static_cast<int>(stages_.size());
      Stage& stage = stages_.emplace_back();
      stage.id = static_cast<std::size_t>(a.stage.value);
      stage.pinned.assign(static_cast<std::size_t>(shape_.microbatches / shape_.replicas(a.stage) + 1), 0);
      stage.users.assign(1, 0);
      bytes_ += bytes_at(options_.weight_bytes, stage.id) + bytes_at(options_.state_bytes, stage.id);
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
      bytes_ += bytes_at(options_.stash_bytes, stage.id);
    } else if ((a.op == Op::Backward || a.op == Op::BackwardWeight) && pinned > 0) {
      const auto version = static_cast<std::size_t>(std::exchange(pinned, 0));
      bytes_ -= bytes_at(options_.stash_bytes, stage.id);
      if (--stage.users[version - 1] == 0 && version < stage.users.size()) change_versions(stage, -1);
    } else if (a.op == Op::Update) {
      const bool old_lives = stage.users.back() > 0;
      stage.users.push_back(0);
      if (old_lives) change_versions(stage, +1);
    }
    peak_ = std::max(peak_, bytes_);
  }

  void change_versions(Stage& stage, int by) { bytes_ += by * bytes_at(options_.weight_bytes, stage.id); }

  const PipelineShape& shape_;
  const SimulationOptions& options_;
  std::vector<int> slot_of_;  // by stage: its place in stages_, on the rank at hand
  std::vector<Stage> stages_;
  double bytes_ = 0;
  double peak_ = 0;
};

}  // namespace

std::vector<double> peak_bytes_of(const Schedule& schedule, const PipelineShape& shape,
                                  const SimulationOptions& options) {
  ByteCounter counter(shape, options);
  std::vector<double> bytes;
  for (const auto& actions : schedule.ranks) bytes.push_back(counter.count(actions));
  return bytes;
}

}  // namespace millrace
