// When a run of NT-ASGD begins to average its weights. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {

/// The state of an AveragingTrigger, for checkpoints.
struct AveragingState {
  std::vector<double> losses;  ///< the least of all but the newest, then the newest, oldest first
  std::int64_t from = -1;      ///< updates done when averaging began; -1: it has not
  std::int64_t evaluated = 0;  ///< steps done at the newest evaluation, until it has begun
  bool operator==(const AveragingState&) const = default;
};

/// Non-monotonically triggered averaging (arXiv 1708.02182, algorithm 1): it begins when the loss of an
/// evaluation is above the least of all but the newest `patience` before it. Every rank has one of each job
/// and tells it the same, so all agree. Not thread-safe.
class AveragingTrigger {
 public:
  explicit AveragingTrigger(std::size_t patience) : patience_(patience) {}
  /// Takes the loss of an evaluation, with the steps and the updates done so far. Returns true if averaging
  /// begins now. Callers call it after each evaluation.
  bool evaluated(double loss, std::int64_t steps, std::int64_t updates);

  bool has_begun() const { return state_.from >= 0; }
  const AveragingState& state() const { return state_; }
  void set_state(AveragingState state) { state_ = std::move(state); }

 private:
  std::size_t patience_;
  AveragingState state_;
};

}  // namespace millrace
