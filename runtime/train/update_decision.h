// Decides what each job's update does: its rate, the factor on its gradient, and whether it is skipped.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/stage/update_rule.h"
#include "runtime/train/train_options.h"

namespace millrace {

/// The state of one job's updates.
struct JobUpdate {
  double lr = 0;               ///< of the updates that follow
  bool ended = false;          ///< its weights stay as they are
  LossScaler scaler;           ///< the same on all ranks; that of a job that has ended stays as it is
  double loss_scale = 1;       ///< the factor on the loss in the newest update
  bool skipped = false;        ///< the newest update
  double norm = -1;            ///< 2-norm of the newest gradient before clipping; negative: not measured
  double clip_norm = 0;        ///< 0: the gradient is not clipped by its norm
  bool clips_exactly = false;  ///< clip_factor's `exact`
};

/// Jobs do not meet: each is judged by its own gradient. `first_job`, in all functions, is the first job of
/// an array. Not thread-safe.
class UpdateDecision {
 public:
  /// `stop_on_nonfinite`: throw NumericError where no job of an array has a finite gradient.
  UpdateDecision(const std::vector<JobOptions>& jobs, Precision precision, const LossScaleOptions& loss_scale,
                 bool stop_on_nonfinite);

  std::vector<JobUpdate>& jobs() { return jobs_; }
  const std::vector<JobUpdate>& jobs() const { return jobs_; }
  bool scales_loss() const { return jobs_.front().scaler.active(); }
  /// All stages must agree on the norm of the model's gradient before one of them updates.
  bool needs_model_norm() const { return scales_loss() || (clips_ && scope_ == ClipScope::Model); }
  bool clips_stages() const { return clips_ && scope_ == ClipScope::Stage; }

  /// Decides by the norms of the model's gradients, by job. Moves the jobs' loss scalers on by a step.
  /// Throws NumericError.
  std::vector<UpdateScalars> by_model_norm(std::size_t first_job, const std::vector<double>& norms);
  /// Clips by the norms of a stage's gradients, by job. `reports`: the norms are the ones that the step
  /// reports. Throws NumericError.
  void clip_stage(std::size_t first_job, std::vector<double> norms, StageId stage, bool reports,
                  std::vector<UpdateScalars>& scalars);
  /// Fills in the jobs' rates times `factor`, and skips those that have ended.
  void set_rates(std::size_t first_job, double factor, std::vector<UpdateScalars>& scalars) const;

 private:
  void require_finite(const std::vector<double>& norms, const std::string& whose) const;
  void require_end_of_skips() const;

  std::vector<JobUpdate> jobs_;
  ClipScope scope_;
  bool clips_ = false, stops_on_nonfinite_;
};

}  // namespace millrace
