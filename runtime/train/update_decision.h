// Decides each job's update: its rate, the factor on its gradient, and whether it is skipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/rules/nonfinite.h"
#include "runtime/stage/update_rule.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// The loss or gradient of a step was not finite. Every rank throws it in the same step, before any update.
class AgreedNumericError : public NumericError {
 public:
  using NumericError::NumericError;
  [[noreturn]] void throw_with(const std::string& context) const override {
    throw AgreedNumericError(context + what(), hint());
  }
};

/// The state of one job's updates.
struct JobUpdate {
  double lr = 0;           ///< for the following updates
  bool ended = false;      ///< its weights no longer change
  LossScaler scaler;       ///< the same on all ranks; unchanged after the job has ended
  double loss_scale = 1;   ///< the factor on the loss in the newest update
  bool skipped = false;    ///< the newest update was skipped
  std::int64_t skips = 0;  ///< updates skipped in this run without a loss scale
  std::int64_t skips_in_a_row = 0;
  double norm = -1;            ///< 2-norm of the newest gradient before clipping; negative: not measured
  double clip_norm = 0;        ///< 0: the gradient is not clipped by its norm
  bool clips_exactly = false;  ///< clip_factor's `exact`
};

/// Jobs are independent: each is decided by its own gradient. `first_job`, in all functions, is the first job
/// of an array. Not thread-safe.
class UpdateDecision {
 public:
  /// `stop_on_nonfinite`: throw NumericError if no job of an array has a finite gradient. `nonfinite`: all
  /// stages decide each step together if it specifies more than a stop on the loss; not in an asynchronous
  /// schedule.
  UpdateDecision(const std::vector<JobOptions>& jobs, Precision precision, const LossScaleOptions& loss_scale,
                 bool stop_on_nonfinite, const NonfiniteOptions& nonfinite = {}, bool asynchronous = false);

  std::vector<JobUpdate>& jobs() { return jobs_; }
  const std::vector<JobUpdate>& jobs() const { return jobs_; }
  bool scales_loss() const { return jobs_.front().scaler.active(); }
  /// Returns whether all stages must exchange the norm of the model's gradient before any of them updates.
  bool needs_model_norm() const {
    return scales_loss() || judges_together_ || (clips_ && scope_ == ClipScope::Model);
  }
  /// Returns whether the stages decide each step together by loss and gradients, whether or not the loss is
  /// scaled.
  bool judges_together() const { return judges_together_; }
  bool skips_nonfinite() const { return skips_; }
  bool clips_stages() const { return clips_ && scope_ == ClipScope::Stage; }

  /// Decides by the norms of the model's gradients, by job. Advances the jobs' loss scalers by a step.
  /// `first_nonfinite`: the location of the step's first number that is not finite, if any. Throws
  /// AgreedNumericError, on all ranks alike.
  std::vector<UpdateScalars> by_model_norm(std::size_t first_job, const std::vector<double>& norms,
                                           const std::string& first_nonfinite = {});
  /// Clips by the norms of a stage's gradients, by job. `reports`: the step reports these norms. Throws
  /// NumericError.
  void clip_stage(std::size_t first_job, std::vector<double> norms, StageId stage, bool reports,
                  std::vector<UpdateScalars>& scalars);
  /// Sets the jobs' rates times `factor`, and skips jobs that have ended.
  void set_rates(std::size_t first_job, double factor, std::vector<UpdateScalars>& scalars) const;

 private:
  void require_finite(const std::vector<double>& norms, const std::string& whose) const;
  void require_end_of_skips() const;

  std::vector<JobUpdate> jobs_;
  ClipScope scope_;
  bool clips_ = false, stops_on_nonfinite_, skips_, judges_together_;
};

}  // namespace millrace
