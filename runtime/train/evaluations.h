// Evaluations and scores of a run, and the decisions that depend on them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/rules/averaging_trigger.h"
#include "runtime/train/first_uses.h"
#include "runtime/train/stop.h"
#include "runtime/train/training.h"

namespace millrace {

/// Runs evaluations and scores while the ranks are idle, and starts averaging. Not thread-safe.
class Evaluations {
 public:
  /// `training` must have its sources opened and outlive the object. `score` may be null. Collective. Throws
  /// ConfigError if the data does not suit the plan, or if a rule depends on evaluations that are not
  /// scheduled.
  Evaluations(Training& training, std::unique_ptr<WeightsScore> score);

  bool is_due(std::int64_t step) const;  ///< an evaluation after `step`
  /// Returns whether the evaluation after `step` is due and was not done.
  bool lacks(std::int64_t step) const { return step == owed_ || (is_due(step) && step != newest_); }
  /// Records that the run resumed and that the earlier run left out the evaluation of the completed steps.
  void owe() { owed_ = t_.done; }
  bool scores_after(std::int64_t step) const { return score_ && t_.is_due(t_.options.score_every, step); }
  /// Returns whether a job's averaging may start after the evaluation of `step`. A job counts the evaluations
  /// of its own run, each of them once.
  bool any_job_watches(std::int64_t step) const;
  /// Returns the first step after `done` with an evaluation or a score, or a very large step.
  std::int64_t next_after(std::int64_t done) const;

  /// Evaluates the weights after the completed steps, while the ranks are idle, and reports it. Collective.
  /// Returns false if the run was asked to stop and the rest was left out. Throws NumericError if no job's
  /// loss is finite.
  bool run();
  /// Compares the newest evaluation, or the newest score, with the best so far. Returns whether it is the
  /// best for TrainOptions::keep_best, and reports if early_stop ends the run. Collective. Throws ConfigError
  /// if evaluations do not have the metric.
  bool judge_evaluation();
  bool judge_score();
  bool judges_scores() const;  ///< a score may be the best, or end the run
  /// Starts averaging in the jobs for which the newest evaluation triggers it. Collective.
  void begin_averages();
  /// Scores the weights after the completed steps, while the ranks are idle. Collective. Returns false if the
  /// run was asked to stop and the rest was left out.
  bool run_score();

  /// Returns the state of a job that waits for evaluations, for checkpoints; nullopt: the job does not wait.
  std::optional<AveragingState> waiting(std::size_t job) const;
  void set_waiting(std::size_t job, const AveragingState& state);
  /// Returns the number of microbatches that are evaluated together: replicas process them round-robin.
  int chunk() const { return chunk_; }

  /// Returns all parameters and buffers of the model, on every rank; a rank's own are not copied. Collective,
  /// while the ranks are idle.
  NamedTensors whole_weights() const;

 private:
  bool evaluates() const;
  bool watches(std::size_t job, std::int64_t step) const;
  bool run_array(int array);
  bool judge(BestSoFar& best, double value);
  bool asked_to_stop() { return vote_.next(t_.options.stop && t_.options.stop->load()); }

  Training& t_;
  std::unique_ptr<WeightsScore> score_;
  AnyRank vote_;  ///< its lag also bounds how far a fast first stage runs ahead of the others
  int chunk_;
  FirstUses first_uses_;
  std::int64_t newest_ = -1;    ///< the step after which the newest evaluation was done
  std::int64_t owed_ = -1;      ///< the step whose evaluation the earlier run left out
  std::int64_t evaluated_ = 0;  ///< microbatches, of all evaluations
  /// by job: set for those that wait for evaluations
  std::vector<std::optional<AveragingTrigger>> averaging_;
};

}  // namespace millrace
