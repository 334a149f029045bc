#include "runtime/train/rank_stages.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

// Then it is not the scale: a dynamic one has come down from 2^16 to 2^-84.
constexpr std::int64_t kMostSkippedInARow = 100;

}  // namespace

RankStages::RankStages(Communicator& world, Device& device, const StageLayout& layout, const Plan& plan,
                       const RankStagesOptions& options)
    : held_at_(static_cast<std::size_t>(plan.num_stages()), -1),
      num_fields_(layout.model.fields.size()),
      stops_on_nonfinite_(options.executor.stop_on_nonfinite),
      loss_scaler_(options.precision, options.loss_scale) {
  std::vector<JobOptions> jobs = options.jobs;
  if (jobs.empty())
    jobs.push_back({.seed = options.executor.seed, .rule = options.rule, .clip = options.clip});
  clip_scope_ = jobs.front().clip.scope;
  ExecutorOptions executor = options.executor;
  executor.job_seeds.clear();
  for (const JobOptions& job : jobs) {
    executor.job_seeds.push_back(job.seed);
    executor.job_clip_values.push_back(job.clip.value);
    clips_.push_back({clip_norm_of(job.rule, job.clip), job.rule.kind == UpdateRuleKind::Lamb});
  }
  // Where steps are skipped, those of a loss that is not finite are too.
  if (loss_scaler_.active()) executor.stop_on_nonfinite = false;
  std::vector<std::vector<RankId>> ranks_of_stage;
  for (const PlanStage& stage : plan.stages) ranks_of_stage.push_back(stage.ranks);
  for (int s = 0; s < plan.num_stages(); ++s) {
    const auto& ranks = plan.stages[static_cast<std::size_t>(s)].ranks;
    const auto found = std::ranges::find(ranks, world.rank());
    if (found == ranks.end()) continue;
    HeldStage held{.stage = StageId(s),
                   .replica = static_cast<int>(found - ranks.begin()),
                   .replicas = static_cast<int>(ranks.size())};
    if (options.rate_by_replicas)
      held.rate = double(held.replicas) / double(plan.stages.front().ranks.size());
    held.store = std::make_unique<ParameterStore>(layout, held.stage, executor.job_seeds, device.where(),
                                                  options.dtype);
    if (held.replicas > 1) held.group = world.subgroup(ranks, "stage" + std::to_string(s));
    for (std::size_t job = 0; job < jobs.size(); ++job)
      held.rules.push_back(
          make_update_rule(jobs[job].rule, held.store->job(static_cast<int>(job)), held.group.get()));
    if (options.average_replicas) executor.gradient_scale = 1.0 / held.replicas;
    held.executor =
        std::make_unique<StageExecutor>(ExecutorParts{layout, held.stage, *held.store, JobRules(held.rules),
                                                      world, held.group.get(), device, ranks_of_stage},
                                        executor);
    held_at_[static_cast<std::size_t>(s)] = static_cast<int>(held_.size());
    held_.push_back(std::move(held));
  }
  if ((clips() && clip_scope_ == ClipScope::Model) || loss_scaler_.active())
    agreement_ = std::make_unique<GradientAgreement>(world, layout);
  if (held_.empty()) {
    throw ConfigError("the plan has no place for rank " + std::to_string(world.rank().value),
                      "start as many ranks as the plan names");
  }
  for (const HeldStage& one : held_) {
    for (const HeldStage& other : held_) {
      if (one.stage != other.stage) one.executor->connect(*other.executor);
    }
  }
}

const HeldStage& RankStages::at(StageId stage) const {
  const int at = held_at_.at(static_cast<std::size_t>(stage.value));
  MILLRACE_CHECK(at >= 0, "stage " << stage.value << " is on another rank");
  return held_[static_cast<std::size_t>(at)];
}

StageExecutor& RankStages::executor(StageId stage) const {
  return *at(stage).executor;
}

StageExecutor* RankStages::last() const {
  return held_.back().executor->is_last() ? held_.back().executor.get() : nullptr;
}

std::vector<char> RankStages::fields() const {
  std::vector<char> result(num_fields_, 0);
  for (const HeldStage& h : held_) {
    for (const auto& [field, place] : h.executor->program().fields)
      result[static_cast<std::size_t>(field)] = 1;
  }
  return result;
}

bool RankStages::owns_loss() const {
  return last() && held_.back().replica == 0;
}

namespace {
std::vector<double> times(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}
}  // namespace

void RankStages::begin(std::int64_t first_position, const std::vector<double>& lr) {
  for (const HeldStage& h : held_) {
    h.executor->begin(first_position, times(lr, h.rate));
    h.executor->set_loss_scale(loss_scaler_.scale(), loss_scaler_.unscale());
  }
}

void RankStages::set_learning_rate(const std::vector<double>& lr) {
  for (const HeldStage& h : held_) h.executor->set_learning_rate(times(lr, h.rate));
}

bool RankStages::clips() const {
  return std::ranges::any_of(clips_, [](const Clip& clip) { return clip.norm > 0; });
}

/// Of each job by its own norm: another's changes nothing.
std::vector<double> RankStages::clip_factors(const std::vector<double>& norms) const {
  std::vector<double> factors;
  for (std::size_t job = 0; job < clips_.size(); ++job)
    factors.push_back(clips_[job].norm > 0 ? clip_factor(norms[job], clips_[job].norm, clips_[job].exact)
                                           : 1);
  return factors;
}

void RankStages::pause(std::int64_t cut) {
  for (const HeldStage& h : held_) h.executor->pause(cut);
}

void RankStages::go_on() {
  for (const HeldStage& h : held_) h.executor->go_on();
}

void RankStages::set_training(bool training) {
  bool exchanged = false;
  for (const HeldStage& h : held_) exchanged = h.executor->set_training(training) || exchanged;
  if (exchanged) finish_sends();
}

void RankStages::set_extents(const ExtentOf& extent_of) {
  for (const HeldStage& h : held_) h.executor->set_extents(extent_of);
}

void RankStages::before_update(StageId stage) {
  // Before the first of this step: whose version is still this stage's has not updated yet.
  const VersionId version = at(stage).store->current();
  for (const HeldStage& h : held_) {
    if (h.store->current() == version) h.executor->prepare_update();
  }
  if (agreement_ && std::exchange(agreed_, version) != version) agree();
  if (clips() && clip_scope_ == ClipScope::Stage) clip_stage(at(stage));
}

/// Of all stages, before any of them updates: whether they do, and by how much they are clipped.
void RankStages::agree() {
  std::vector<GradientAgreement::Part> parts;
  for (const HeldStage& h : held_) {
    h.executor->complete_gradients();
    parts.push_back({h.store.get(), h.replica == 0});
  }
  const std::vector<double> norms = agreement_->norms(parts);
  last_loss_scale_ = loss_scaler_.scale();
  gradient_norms_ = times(norms, loss_scaler_.unscale());
  const bool finite = std::ranges::all_of(norms, [](double norm) { return std::isfinite(norm); });
  skipped_last_ = loss_scaler_.active() && !finite;  // one job alone: the Trainer refuses others
  loss_scaler_.completed(finite);
  if (skipped_last_) {
    for (const HeldStage& h : held_) h.executor->skip_update();
    return require_end_of_skips();
  }
  require_finite(norms, "of the model");
  if (!clips() || clip_scope_ == ClipScope::Stage) return;
  for (const HeldStage& h : held_) h.executor->scale_gradients(clip_factors(gradient_norms_));
}

void RankStages::clip_stage(const HeldStage& held) {
  held.executor->complete_gradients();
  if (skipped_last_) return;
  const std::vector<double> sums = square_sums_by_slot(*held.store, held.store->flat_gradient());
  const auto per_job = static_cast<std::ptrdiff_t>(sums.size() / clips_.size());
  std::vector<double> norms;
  for (auto from = sums.begin(); norms.size() < clips_.size(); from += per_job)
    norms.push_back(norm_of({from, from + per_job}) / last_loss_scale_);
  if (held.stage == held_.front().stage) gradient_norms_ = norms;
  require_finite(norms, "of stage " + std::to_string(held.stage.value));
  held.executor->scale_gradients(clip_factors(norms));
}

void RankStages::require_end_of_skips() const {
  const LossScaleState& state = loss_scaler_.state();
  if (!stops_on_nonfinite_ || state.skipped_in_a_row < kMostSkippedInARow) return;
  throw NumericError("the last " + std::to_string(state.skipped_in_a_row) +
                         " steps were skipped: the gradient is not finite, whatever the scale of the loss",
                     "lower --lr, or give --precision bfloat16, whose range is float32's");
}

/// On all ranks in the same step, before any of them updates.
void RankStages::require_finite(const std::vector<double>& norms, const std::string& whose) const {
  const auto finite = [](double norm) { return std::isfinite(norm); };
  if (!stops_on_nonfinite_ || std::ranges::any_of(norms, finite)) return;
  throw NumericError("the norm of the gradient " + whose + " is " + std::to_string(norms.front()),
                     "lower --lr or add --warmup-steps");
}

void RankStages::execute(const Action& action, bool last_gradient) {
  if (action.op == Op::Update) before_update(action.stage);
  executor(action.stage).execute(action, last_gradient);
  if (action.op != Op::Forward) return;
  int stash = 0;
  for (const HeldStage& h : held_) stash += h.executor->stashed_microbatches();
  peak_stash_ = std::max(peak_stash_, stash);
}

void RankStages::finish_sends() {
  for (const HeldStage& h : held_) h.executor->finish_sends();
}

int RankStages::peak_versions() const {
  int most = 1;
  for (const HeldStage& h : held_) most = std::max(most, h.executor->peak_versions());
  return most;
}

}  // namespace millrace
