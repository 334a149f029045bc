// Evaluations and scores of a run, and what waits for them.
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

/// Runs evaluations and scores while the ranks rest, and lets averages begin. Not thread-safe.
class Evaluations {
 public:
  /// `training`, whose sources are open, outlives the object. `score` may be null. Collective. Throws
  /// ConfigError where the data does not suit the plan, or a rule waits for evaluations that never come.
  Evaluations(Training& training, std::unique_ptr<WeightsScore> score);

  bool is_due(std::int64_t step) const;  ///< an evaluation after `step`
  /// Whether the evaluation after `step` is due and was not done.
  bool lacks(std::int64_t step) const { return step == owed_ || (is_due(step) && step != newest_); }
  /// A run that went on from the steps done has left their evaluation to this one.
  void owe() { owed_ = t_.done; }
  bool scores_after(std::int64_t step) const { return score_ && t_.is_due(t_.options.score_every, step); }
  /// Whether a job's averages may begin by the evaluation after `step`. A job counts the evaluations of its
  /// own run, and each of them once.
  bool any_job_watches(std::int64_t step) const;
  /// Returns the first step after `done` with an evaluation or a score, or one far away.
  std::int64_t next_after(std::int64_t done) const;

  /// Evaluates the weights of the steps done, while the ranks rest, and reports it. Collective. Returns false
  /// if it was asked to stop and left the rest out. Throws NumericError where no job's loss is finite.
  bool run();
  /// Compares the newest evaluation, or the newest score, with the best so far. Returns whether it is the
  /// best of TrainOptions::keep_best, and reports where early_stop ends the run. Collective. Throws
  /// ConfigError if evaluations do not have the metric.
  bool judge_evaluation();
  bool judge_score();
  bool judges_scores() const;  ///< a score may be the best, or end the run
  /// Lets averages begin in the jobs that the newest evaluation says so of. Collective.
  void begin_averages();
  /// Scores the weights of the steps done, while the ranks rest. Collective. Returns false if it was asked to
  /// stop and left the rest out.
  bool run_score();

  /// The state of a job that waits for evaluations, for checkpoints; nullopt: it does not.
  std::optional<AveragingState> waiting(std::size_t job) const;
  void set_waiting(std::size_t job, const AveragingState& state);
  /// Returns the number of microbatches that are evaluated together: replicas take turns in them.
  int chunk() const { return chunk_; }

  /// Returns all parameters and buffers of the model, on every rank; a rank's own are not copied. Collective,
  /// while the ranks rest.
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
  std::int64_t owed_ = -1;      ///< the step whose evaluation the run before has left out
  std::int64_t evaluated_ = 0;  ///< microbatches, of all evaluations
  std::vector<std::optional<AveragingTrigger>> averaging_;  ///< by job: of those that wait for evaluations
};

}  // namespace millrace
