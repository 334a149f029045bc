// The step at which an NT-ASGD run starts to average its weights. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace millrace {

/// The state of an AveragingTrigger, for checkpoints.
struct AveragingState {
  std::vector<double> losses;  ///< the minimum of all but the newest, then the newest, oldest first
  std::int64_t from = -1;      ///< updates done when averaging started; -1: not started
  std::int64_t evaluated = 0;  ///< steps done at the newest evaluation before averaging starts
  bool operator==(const AveragingState&) const = default;
};

/// Non-monotonically triggered averaging (arXiv 1708.02182, algorithm 1). It starts when an evaluation's loss
/// exceeds the minimum of all losses but the newest `patience` before it. Every rank has one trigger per job
/// and feeds it the same losses, so all ranks agree. Not thread-safe.
class AveragingTrigger {
 public:
  explicit AveragingTrigger(std::size_t patience) : patience_(patience) {}
  /// Records the loss of an evaluation, with the steps and updates done so far. Returns true if averaging
  /// starts now. Must be called after each evaluation.
  bool evaluated(double loss, std::int64_t steps, std::int64_t updates);

  bool has_begun() const { return state_.from >= 0; }
  const AveragingState& state() const { return state_; }
  void set_state(AveragingState state) { state_ = std::move(state); }

 private:
  std::size_t patience_;
  AveragingState state_;
};

}  // namespace millrace
