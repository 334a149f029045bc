#include "runtime/train/update_decision.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/stage/finite_check.h"
#include "runtime/stage/gradient_agreement.h"

namespace millrace {
namespace {

// After this many the scale is not the cause: a dynamic one has decreased from 2^16 to 2^-84.
constexpr std::int64_t kMostSkippedInARow = 100;

constexpr const char* kLowerRate = "lower --lr or add --warmup-steps";

bool any_finite(const std::vector<double>& norms) {
  return std::ranges::any_of(norms, [](double norm) { return std::isfinite(norm); });
}

double factor_for(const JobUpdate& job, double norm) {
  return job.clip_norm > 0 ? clip_factor(norm, job.clip_norm, job.clips_exactly) : 1;
}

}  // namespace

UpdateDecision::UpdateDecision(const std::vector<JobOptions>& jobs, Precision precision,
                               const LossScaleOptions& loss_scale, bool stop_on_nonfinite,
                               const NonfiniteOptions& nonfinite, bool asynchronous)
    : scope_(jobs.front().clip.scope),
      stops_on_nonfinite_(stop_on_nonfinite),
      skips_(nonfinite.on == OnNonfinite::Skip),
      judges_together_(!asynchronous &&
                       (nonfinite.on != OnNonfinite::Stop || nonfinite.check != FiniteCheckOf::Loss)) {
  for (const JobOptions& job : jobs)
    jobs_.push_back({.scaler = LossScaler(precision, loss_scale),
                     .clip_norm = clip_norm_of(job.rule, job.clip),
                     .clips_exactly = job.rule.kind == UpdateRuleKind::Lamb});
  clips_ = std::ranges::any_of(jobs_, [](const JobUpdate& job) { return job.clip_norm > 0; });
}

std::vector<UpdateScalars> UpdateDecision::by_model_norm(std::size_t first_job,
                                                         const std::vector<double>& norms,
                                                         const std::string& first_nonfinite) {
  std::vector<UpdateScalars> scalars(norms.size());
  const bool clips_model = clips_ && scope_ == ClipScope::Model;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    JobUpdate& job = jobs_[first_job + i];
    const bool finite = std::isfinite(norms[i]);
    job.loss_scale = job.scaler.scale();
    job.norm = norms[i] * job.scaler.unscale();
    job.skipped = (job.scaler.active() || skips_) && !finite;
    scalars[i].skip = job.skipped;
    scalars[i].gradient_factor = (clips_model ? factor_for(job, job.norm) : 1) * job.scaler.unscale();
    if (job.ended) continue;
    job.scaler.completed(finite);
    if (job.scaler.active()) continue;
    job.skips += job.skipped;
    job.skips_in_a_row = job.skipped ? job.skips_in_a_row + 1 : 0;
  }
  if (std::ranges::all_of(scalars, &UpdateScalars::skip))
    require_end_of_skips();
  else if (!first_nonfinite.empty() && stops_on_nonfinite_ && !any_finite(norms))
    throw AgreedNumericError("not finite: " + first_nonfinite, kLowerRate);
  else
    require_finite(norms, "of the model");
  return scalars;
}

void UpdateDecision::clip_stage(std::size_t first_job, std::vector<double> norms, StageId stage, bool reports,
                                std::vector<UpdateScalars>& scalars) {
  for (std::size_t i = 0; i < norms.size(); ++i) {
    norms[i] /= jobs_[first_job + i].loss_scale;
    if (reports) jobs_[first_job + i].norm = norms[i];
  }
  require_finite(norms, "of stage " + std::to_string(stage.value));
  for (std::size_t i = 0; i < norms.size(); ++i)
    scalars[i].gradient_factor = factor_for(jobs_[first_job + i], norms[i]) * scalars[i].gradient_factor;
}

void UpdateDecision::set_rates(std::size_t first_job, double factor,
                               std::vector<UpdateScalars>& scalars) const {
  for (std::size_t i = 0; i < scalars.size(); ++i) {
    const JobUpdate& job = jobs_[first_job + i];
    scalars[i].lr = job.lr * factor;
    scalars[i].skip = scalars[i].skip || job.ended;
  }
}

/// An array continues while one of its jobs does.
void UpdateDecision::require_end_of_skips() const {
  std::int64_t in_a_row = std::numeric_limits<std::int64_t>::max();
  for (const JobUpdate& job : jobs_)
    if (!job.ended)
      in_a_row =
          std::min(in_a_row, job.scaler.active() ? job.scaler.state().skipped_in_a_row : job.skips_in_a_row);
  if (!stops_on_nonfinite_ || in_a_row < kMostSkippedInARow) return;
  const std::string skipped = "the last " + std::to_string(in_a_row) + " steps were skipped: ";
  if (!scales_loss()) throw NumericError(skipped + "loss or gradient is not finite", kLowerRate);
  throw NumericError(skipped + "the gradient is not finite, whatever the scale of the loss",
                     "lower --lr, or give --precision bfloat16, whose range is float32's");
}

/// All ranks throw in the same step, before any of them updates.
void UpdateDecision::require_finite(const std::vector<double>& norms, const std::string& whose) const {
  if (!stops_on_nonfinite_ || any_finite(norms)) return;
  throw NumericError("the norm of the gradient " + whose + " is " + nonfinite_text(norms.front()),
                     kLowerRate);
}

}  // namespace millrace
