#include "runtime/train/rank_stages.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"

namespace millrace {
namespace {

// After so many skipped steps the loss scale is not the cause: a dynamic one has come down from 2^16 to
// 2^-84.
constexpr std::int64_t kMostSkippedInARow = 100;

/// Adds the update rules of a stage, before its executors are made. Each job has one rule for each turn that
/// trains any of the stage's layers.
void add_rules(HeldStage& held, const StageLayout& layout, const std::vector<JobOptions>& jobs) {
  const auto add = [&](HeldStage::Rule rule) {
    for (rule.job = 0; rule.job < held.jobs; ++rule.job) {
      HeldStage::Rule own{rule.job, rule.turn, rule.first, rule.end, rule.part, nullptr};
      const JobOptions& told = jobs[held.first_job + rule.job];
      own.rule = make_update_rule(told.rule, held.store_of(own), held.group.get());
      held.rules.push_back(std::move(own));
    }
  };
  const std::vector<int>& layers = layout.layers[held.stage.value];
  if (layout.turns.empty()) return add({.end = layers.size()});
  for (std::size_t t = 0; t < layout.turns.size(); ++t) {
    HeldStage::Rule rule{.turn = static_cast<int>(t)};
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const NamedLayer& layer = layout.turns[t].model.layers[layers[l]];
      if (layer.frozen || layer.layer->parameters().empty()) continue;
      const auto [begin, end] = held.store->gradient_ranges(static_cast<int>(l)).front();
      if (!rule.part) {
        rule.first = l;
        rule.part = FlatRange{begin, end};
      }
      rule.end = l + 1;
      rule.part->end = end;
    }
    if (rule.part) add(std::move(rule));
  }
}

}  // namespace

ParameterStore HeldStage::store_of(const Rule& rule) const {
  if (!rule.part) return of_job(rule.job);
  return of_job(rule.job).part(rule.first, rule.end, {rule.part->begin, rule.part->end});
}

int HeldStage::readings() const {
  if (!in_turn()) return executor->reads_batch();
  return static_cast<int>(
      std::count_if(executors.begin(), executors.end() - 1, [](const auto& e) { return e->reads_batch(); }));
}

RankStages::RankStages(Communicator& world, Device& device, const std::vector<StageLayout>& layouts,
                       const Plan& plan, const RankStagesOptions& options)
    : stops_on_nonfinite_(options.executor.stop_on_nonfinite) {
  const std::vector<JobOptions>& jobs = options.jobs;
  clip_scope_ = jobs.front().clip.scope;
  for (const JobOptions& job : jobs)
    clips_.push_back({clip_norm_of(job.rule, job.clip), job.rule.kind == UpdateRuleKind::Lamb});
  gradient_norms_.assign(jobs.size(), -1);
  loss_scalers_.assign(jobs.size(), LossScaler(options.precision, options.loss_scale));
  last_loss_scales_.assign(jobs.size(), 1);
  skipped_last_.assign(jobs.size(), 0);
  ended_ = skipped_last_;
  lr_.assign(jobs.size(), 0);
  begins_.assign(jobs.size(), 0);
  std::vector<std::vector<RankId>> ranks_of_stage;
  // by stage; null unless this rank is one of several replicas
  std::vector<std::shared_ptr<Communicator>> groups;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const auto& ranks = ranks_of_stage.emplace_back(plan.stages[s].ranks);
    const bool mine = std::ranges::find(ranks, world.rank()) != ranks.end();
    groups.push_back(mine && ranks.size() > 1 ? world.subgroup(ranks, "stage" + std::to_string(s)) : nullptr);
  }
  const std::size_t per_array = layouts.front().turns.size() + 1;
  MessageNumbers numbers{.models = static_cast<int>(layouts.size() * per_array)};
  for (const StageLayout& layout : layouts) {
    const auto count = [&](const StageLayout& one) {
      numbers.most_crossings = std::max(numbers.most_crossings, one.crossings.size());
      numbers.most_ties = std::max(numbers.most_ties, one.ties.size());
    };
    count(layout);
    std::ranges::for_each(layout.turns, count);
  }
  for (std::size_t a = 0; a < layouts.size(); ++a) {
    const StageLayout& layout = layouts[a];
    OfArray& array = arrays_.emplace_back();
    if (a > 0) array.first_job = arrays_[a - 1].first_job + arrays_[a - 1].jobs;
    array.jobs = static_cast<std::size_t>(layout.model.jobs());
    array.num_fields = layout.model.fields.size();
    array.held_at.assign(plan.num_stages(), -1);
    ExecutorOptions executor = options.executor;
    executor.seeds.clear();
    for (std::size_t job = array.first_job; job < array.first_job + array.jobs; ++job) {
      executor.seeds.push_back(jobs[job].seed);
      executor.clip_values.push_back(jobs[job].clip.value);
    }
    // With a loss scale, steps are skipped, and so is a step whose loss is not finite.
    if (scales_loss()) executor.stop_on_nonfinite = false;
    for (int s = 0; s < plan.num_stages(); ++s) {
      const auto& ranks = ranks_of_stage[s];
      const auto found = std::ranges::find(ranks, world.rank());
      if (found == ranks.end()) continue;
      HeldStage held{.stage = StageId(s),
                     .array = static_cast<int>(a),
                     .first_job = static_cast<int>(array.first_job),
                     .jobs = static_cast<int>(array.jobs),
                     .named = jobs.size() > 1,
                     .replica = static_cast<int>(found - ranks.begin()),
                     .replicas = static_cast<int>(ranks.size()),
                     .group = groups[s]};
      if (options.rate_by_replicas)
        held.rate = double(held.replicas) / double(plan.stages.front().ranks.size());
      held.store =
          std::make_unique<ParameterStore>(layout, held.stage, executor.seeds, device.where(), options.dtype);
      add_rules(held, layout, jobs);
      for (const int layer : layout.layers[s]) {
        const auto& names = layout.model.layers[layer].unreached;
        held.unreached.insert(held.unreached.end(), names.begin(), names.end());
      }
      if (options.average_replicas) executor.gradient_scale = 1.0 / held.replicas;
      for (std::size_t e = 0; e < per_array; ++e) {
        const bool whole = e + 1 == per_array;
        numbers.model = static_cast<int>(a * per_array + e);
        std::vector<JobRule> rules;
        for (const HeldStage::Rule& rule : held.rules) {
          if (whole || rule.turn == static_cast<int>(e))
            rules.push_back({rule.rule.get(), rule.job, rule.part});
        }
        held.executors.push_back(
            std::make_unique<StageExecutor>(ExecutorParts{whole ? layout : layout.turns[e], held.stage,
                                                          *held.store, JobRules(std::move(rules)), world,
                                                          held.group.get(), device, ranks_of_stage, numbers},
                                            executor));
        before_first_update_.insert(held.executors.back().get());
      }
      held.executor = held.executors.back().get();
      array.held_at[s] = static_cast<int>(held_.size());
      held_.push_back(std::move(held));
    }
    if ((clips() && clip_scope_ == ClipScope::Model) || scales_loss())
      array.agreement = std::make_unique<GradientAgreement>(world, layout, static_cast<int>(a));
  }
  if (held_.empty()) {
    throw ConfigError("the plan has no place for rank " + std::to_string(world.rank().value),
                      "start as many ranks as the plan names");
  }
  for (const HeldStage& one : held_) {
    for (const HeldStage& other : held_) {
      if (one.array != other.array || one.stage == other.stage) continue;
      for (std::size_t e = 0; e < per_array; ++e) one.executors[e]->connect(*other.executors[e]);
    }
  }
}

const HeldStage& RankStages::at(StageId stage, int array) const {
  const int at = arrays_.at(array).held_at.at(stage.value);
  MILLRACE_CHECK(at >= 0, "stage " << stage.value << " is on another rank");
  return held_[at];
}

std::vector<HeldStage*> RankStages::of(const OfArray& array) {
  std::vector<HeldStage*> result;
  for (const int at : array.held_at)
    if (at >= 0) result.push_back(&held_[at]);
  return result;
}

StageExecutor& RankStages::executor(StageId stage, int array) const {
  return *at(stage, array).executor;
}

StageExecutor* RankStages::last(int array) const {
  const int at = arrays_.at(array).held_at.back();
  return at >= 0 ? held_[at].executor : nullptr;
}

std::vector<char> RankStages::fields(int array) const {
  std::vector<char> result(arrays_.at(array).num_fields, 0);
  for (const HeldStage& h : held_) {
    if (h.array != array) continue;
    for (const auto& executor : h.executors) {
      for (const auto& [field, place] : executor->program().fields) result[field] = 1;
    }
  }
  return result;
}

bool RankStages::owns_loss() const {
  return last() && held_.back().replica == 0;
}

namespace {
/// Returns the part of `all`, which is by job of the run, that belongs to the array of `held`.
template <class Value>
std::vector<Value> own_of(const HeldStage& held, const std::vector<Value>& all) {
  const auto first = all.begin() + held.first_job;
  return {first, first + held.jobs};
}
}  // namespace

void RankStages::begin(std::int64_t first_position, std::optional<int> array) {
  for (const HeldStage& h : held_) {
    if (array && h.array != *array) continue;
    RunContext context{.first_position = first_position,
                       .extent_of = arrays_[h.array].extent_of,
                       .begins = own_of(h, begins_)};
    for (const LossScaler& scaler : own_of(h, loss_scalers_)) context.loss_scales.push_back(scaler.scale());
    h.executor->begin(std::move(context));
  }
}

void RankStages::begin_evaluation(int array, const RunContext& context) {
  for (const HeldStage& h : held_)
    if (h.array == array) h.executor->begin(context);
}

void RankStages::set_extents(const ExtentOf& extent_of, int array) {
  arrays_.at(array).extent_of = extent_of;
}

void RankStages::set_ended(const std::vector<char>& ended) {
  ended_ = ended;
  ended_.resize(loss_scalers_.size());
  for (const HeldStage& h : held_) {
    for (const auto& executor : h.executors) executor->set_ended(own_of(h, ended));
  }
}

bool RankStages::clips() const {
  return std::ranges::any_of(clips_, [](const Clip& clip) { return clip.norm > 0; });
}

/// Returns the clip factor of a job. It depends on the job's own norm alone, so jobs do not change each
/// other.
double RankStages::clip_factor_of(std::size_t job, double norm) const {
  const Clip& clip = clips_[job];
  return clip.norm > 0 ? clip_factor(norm, clip.norm, clip.exact) : 1;
}

void RankStages::set_norms(const OfArray& array, const std::vector<double>& norms) {
  std::ranges::copy(norms, gradient_norms_.begin() + static_cast<std::ptrdiff_t>(array.first_job));
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

void RankStages::set_turn(std::optional<std::size_t> turn) {
  for (HeldStage& h : held_) h.executor = (turn ? h.executors.at(*turn) : h.executors.back()).get();
}

LossSums RankStages::take_losses(int array) {
  const int at = arrays_.at(array).held_at.back();
  const HeldStage& held = held_.at(at);
  if (!held.in_turn()) return held.executor->take_losses();
  StageExecutor& whole = *held.executors.back();
  std::vector<double> sums(whole.program().num_sums, 0.0);
  for (auto executor = held.executors.begin(); executor != held.executors.end() - 1; ++executor) {
    const std::vector<double> own = (*executor)->take_sums();
    for (const HeadStep& head : (*executor)->program().heads) {
      const auto& heads = whole.program().heads;
      const auto place =
          std::ranges::find(heads, head.named->name, [](const HeadStep& h) { return h.named->name; });
      std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(head.sums), head.num_sums,
                  sums.begin() + static_cast<std::ptrdiff_t>(place->sums));
    }
  }
  return whole.losses_of(sums);
}

std::vector<UpdateScalars> RankStages::before_update(StageId stage, int array_index) {
  const HeldStage& held = at(stage, array_index);
  OfArray& array = arrays_[held.array];
  // Prepares every stage that has not updated in this step yet: its version is still that of this stage.
  const VersionId version = held.store->current();
  for (HeldStage* h : of(array)) {
    if (h->store->current() == version) h->executor->prepare_update();
  }
  if (std::exchange(array.agreed, version) != version) {
    array.scalars.assign(array.jobs, {});
    if (array.agreement) agree(array);
  }
  std::vector<UpdateScalars> scalars = array.scalars;
  if (clips() && clip_scope_ == ClipScope::Stage) clip_stage(held, scalars);
  for (std::size_t job = 0; job < array.jobs; ++job) {
    scalars[job].lr = lr_[array.first_job + job] * held.rate;
    scalars[job].skip = scalars[job].skip || ended_[array.first_job + job];
  }
  return scalars;
}

/// Lets all stages of an array agree, before any of them updates, on whether they update and on the factors
/// of their gradients.
void RankStages::agree(OfArray& array) {
  std::vector<GradientAgreement::Part> parts;
  for (const HeldStage* h : of(array)) {
    h->executor->complete_gradients();
    parts.push_back({h->store.get(), h->replica == 0});
  }
  const std::vector<double> norms = array.agreement->norms(parts);
  std::vector<double> unscaled;
  const bool clips_model = clips() && clip_scope_ == ClipScope::Model;
  // each job by its own norm, so that jobs do not change each other
  for (std::size_t job = 0; job < array.jobs; ++job) {
    const std::size_t at = array.first_job + job;
    LossScaler& scaler = loss_scalers_[at];
    const bool finite = std::isfinite(norms[job]);
    last_loss_scales_[at] = scaler.scale();
    unscaled.push_back(norms[job] * scaler.unscale());
    array.scalars[job].skip = scaler.active() && !finite;
    array.scalars[job].gradient_factor =
        (clips_model ? clip_factor_of(at, unscaled[job]) : 1) * scaler.unscale();
    skipped_last_[at] = array.scalars[job].skip;
    if (!ended_[at]) scaler.completed(finite);
  }
  set_norms(array, unscaled);
  if (std::ranges::all_of(array.scalars, &UpdateScalars::skip)) return require_end_of_skips();
  require_finite(norms, "of the model");
}

void RankStages::clip_stage(const HeldStage& held, std::vector<UpdateScalars>& scalars) {
  held.executor->complete_gradients();
  const OfArray& array = arrays_[held.array];
  if (std::ranges::all_of(scalars, &UpdateScalars::skip)) return;
  const std::vector<double> sums = square_sums_by_slot(*held.store, held.store->flat_gradient());
  const auto per_job = static_cast<std::ptrdiff_t>(sums.size() / array.jobs);
  std::vector<double> norms;
  for (auto from = sums.begin(); norms.size() < array.jobs; from += per_job)
    norms.push_back(norm_of({from, from + per_job}) / last_loss_scales_[array.first_job + norms.size()]);
  if (held.stage == held_.front().stage) set_norms(array, norms);
  require_finite(norms, "of stage " + std::to_string(held.stage.value));
  for (std::size_t job = 0; job < array.jobs; ++job)
    scalars[job].gradient_factor =
        clip_factor_of(array.first_job + job, norms[job]) * scalars[job].gradient_factor;
}

void RankStages::update(StageId stage, const std::vector<UpdateScalars>& scalars, int array) {
  const HeldStage& held = at(stage, array);
  if (before_first_update_.erase(held.executor) > 0) look_for_zero_gradients(held);
  held.executor->update(scalars);
}

/// Throws NumericError if every job that has not ended has skipped too many steps in a row. The run goes on
/// as long as one job does.
void RankStages::require_end_of_skips() const {
  std::int64_t in_a_row = std::numeric_limits<std::int64_t>::max();
  for (std::size_t job = 0; job < loss_scalers_.size(); ++job)
    if (!ended_[job]) in_a_row = std::min(in_a_row, loss_scalers_[job].state().skipped_in_a_row);
  if (!stops_on_nonfinite_ || in_a_row < kMostSkippedInARow) return;
  throw NumericError("the last " + std::to_string(in_a_row) +
                         " steps were skipped: the gradient is not finite, whatever the scale of the loss",
                     "lower --lr, or give --precision bfloat16, whose range is float32's");
}

/// Throws NumericError if no job's norm is finite. All ranks throw in the same step, before any of them
/// updates.
void RankStages::require_finite(const std::vector<double>& norms, const std::string& whose) const {
  const auto finite = [](double norm) { return std::isfinite(norm); };
  if (!stops_on_nonfinite_ || std::ranges::any_of(norms, finite)) return;
  throw NumericError("the norm of the gradient " + whose + " is " + std::to_string(norms.front()),
                     "lower --lr or add --warmup-steps");
}

namespace {
/// Tells whether all elements are zero. It looks at the first elements alone, and reads the whole tensor only
/// if those are zero.
bool is_all_zero(const at::Tensor& values) {
  const at::Tensor flat = values.flatten();
  const std::int64_t first = std::min<std::int64_t>(flat.numel(), 256);
  return !flat.narrow(0, 0, first).any().item<bool>() && !flat.any().item<bool>();
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}
}  // namespace

/// Warns before the first update of parameters whose gradient is zero. The loss would not show that they do
/// not train.
void RankStages::look_for_zero_gradients(const HeldStage& held) {
  held.executor->complete_gradients();
  if (held.replica != 0) return;
  std::vector<std::string> zero;  // names of parameters, without the job
  // by name: the jobs whose gradient of this parameter is zero
  std::map<std::string, std::vector<int>> jobs_of;
  for (const HeldStage::Rule& rule : held.rules) {
    if (held.in_turn() && held.executor != held.executors[rule.turn].get()) continue;
    const ParameterStore store = held.store_of(rule);
    for (std::size_t s = 0; s < store.slots().size(); ++s) {
      if (!is_all_zero(store.view(store.flat_gradient(), s))) continue;
      std::string name = store.slots()[s].name;
      if (held.named) name.erase(0, name.find('/') + 1);  // "job3/fc.weight"
      if (jobs_of[name].empty()) zero.push_back(name);
      jobs_of[name].push_back(held.first_job + rule.job);
    }
  }
  for (std::string& name : zero) {
    const std::vector<int>& jobs = jobs_of[name];
    if (!held.named || static_cast<int>(jobs.size()) == held.jobs) continue;
    std::vector<std::string> numbers;
    for (const int job : jobs) numbers.push_back(std::to_string(job));
    name += " (job " + listed(numbers) + ")";
  }
  if (!zero.empty())
    log_warning("in the first step the gradient is zero in all elements of " + listed(zero) +
                ": they do not train as long as that is so. Does the loss depend on them, and does what "
                "follows them start at zero?");
  if (!held.unreached.empty() && held.executor == held.executors.back().get())
    log_warning("no path leads to the loss from " + listed(held.unreached) + ": they keep their values");
}

void RankStages::execute(const Action& action, bool last_gradient, int array) {
  const HeldStage& held = at(action.stage, array);
  held.executor->execute(action, last_gradient);
  if (action.op != Op::Forward) return;
  int stash = 0;
  for (const HeldStage& h : held_) stash += h.executor->stashed_microbatches();
  peak_stash_ = std::max(peak_stash_, stash);
}

void RankStages::finish_sends() {
  for (const HeldStage& h : held_) {
    for (const auto& executor : h.executors) executor->finish_sends();
  }
}

int RankStages::peak_versions() const {
  int most = 1;
  for (const HeldStage& h : held_) {
    for (const auto& executor : h.executors) most = std::max(most, executor->peak_versions());
  }
  return most;
}

}  // namespace millrace
