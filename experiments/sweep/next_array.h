// Chooses the trials that train next as one array, and how far they go. Pure. LibTorch-free.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/sweep/search.h"
#include "experiments/sweep/settings.h"

namespace millrace {

/// A step that a search gave out and that is not done: its trial has had `at` iterations.
struct OpenStep {
  TrialStep step;
  int at = 0;  ///< less than `to`; less than `from` too if the checkpoint of `from` is gone
  int left() const { return step.to - at; }
  bool operator==(const OpenStep&) const = default;
};

/// The work of one process: each trial goes on by the same number of iterations, after which the first of
/// them are done.
struct ArrayRun {
  std::vector<OpenStep> steps;  ///< those that have begun first, then new trials
  int iterations = 0;
};

struct ArrayRules {
  int most = 0;        ///< trials of an array; 0: no limit
  bool mixed = false;  ///< trials that have come differently far, or go differently far, may share one
  /// Mixed: whether `more`, who are equally far, train together with `steps` for so many iterations, or else
  /// by themselves. Empty: always together.
  std::function<bool(const std::vector<OpenStep>& steps, const std::vector<OpenStep>& more, int iterations)>
      together = {};
  std::vector<std::string> infusible;  ///< settings in which they agree
  std::function<JobSettings(int trial)> settings;
};

/// Whether they have come differently far.
bool differ(const std::vector<OpenStep>& steps);

/// Takes what runs next out of `open`, which is not empty; the oldest first.
///
/// Not mixed: the first, with all that agree and have come as far and go as far.
/// Mixed: an array runs until its first step is done, as that is the next result that a search can decide
/// on. So the step with the fewest iterations left goes first, with those that agree and are as far; then
/// others of its kind that fit in, as many as are equally far or none of them, so that they stay together.
/// Long steps wait for company: they go on whenever a short one does.
ArrayRun take_array(std::vector<OpenStep>& open, const ArrayRules& rules);

}  // namespace millrace
