// How long arrays of so many trials take, learnt from those that ran. Pure. LibTorch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "experiments/sweep/next_array.h"

namespace millrace {

/// The pace of arrays of trials that agree in what cannot be fused. Not thread-safe.
class ArrayPace {
 public:
  /// Learns from an array that ran. `differ`: its trials had come differently far, so that each read its
  /// own batches. `step_s`: seconds of a step of all. `beside_s`: seconds of the process beside its steps:
  /// to start, to join checkpoints, to evaluate, to save.
  void learn(std::size_t trials, bool differ, double step_s, double beside_s);

  /// Whether `more`, who are equally far, are done sooner if they train with `steps` for the next iterations,
  /// of `steps_each` steps, than in a process of their own: ArrayRules::together. Not before something is
  /// known. A size that never ran is taken to need as long a trial as the next larger one, or else the next
  /// smaller one.
  bool pays(const std::vector<OpenStep>& steps, const std::vector<OpenStep>& more, int iterations,
            std::int64_t steps_each) const;

 private:
  struct Learnt {
    std::map<std::size_t, double> step_s;  // by the number of trials, the least
    double beside_s = 0;                   // of all that ran
    int num_ran = 0;
  };
  /// Seconds of a process that takes `trials` on by `steps` steps.
  double seconds(std::size_t trials, bool differ, double steps) const;

  Learnt alike_, differing_;
};

}  // namespace millrace
