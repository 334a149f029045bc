// How long arrays of so many trials take, learnt from those that ran. Pure. LibTorch-free.
#pragma once

#include <cstddef>
#include <map>

namespace millrace {

/// Of trials that agree in what cannot be fused. Not thread-safe.
class ArrayPace {
 public:
  /// Of an array that ran. `step_s`: seconds of a step of all; `beside_s`: what its process took beside its
  /// steps: to start, to join checkpoints, to evaluate, to save.
  void learn(std::size_t trials, bool differ, double step_s, double beside_s);

  /// Whether `more` trials take less time together with `trials` than by themselves, over `steps` steps.
  /// `differ`: they have come differently far, so that each reads its own batches; `differed`: `trials`
  /// already have. `stops`: of processes that it takes more; -1: one less. Not before something is known of
  /// arrays: a size that never ran is taken to need as long a trial as the next larger one, or else the next
  /// smaller one.
  bool pays(std::size_t trials, bool differed, std::size_t more, bool differ, double steps, int stops) const;

 private:
  double step_of(std::size_t trials, bool differ) const;

  std::map<std::size_t, double> alike_, differing_;  // the least seconds of a step, by the number of trials
  double beside_s_ = 0;                              // of all that ran
  int num_ran_ = 0;
};

}  // namespace millrace
