#include "runtime/train/lane.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/checkpoint/together.h"
#include "runtime/train/zero_gradients.h"

namespace millrace {
namespace {

/// Makes the rules of a stage: one for each job, and for each turn that trains any of the stage's layers.
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
  if (!in_turn()) return executor->program().reads_batch();
  return static_cast<int>(std::count_if(executors.begin(), executors.end() - 1,
                                        [](const auto& e) { return e->program().reads_batch(); }));
}

Lane::Lane(const LaneParts& parts)
    : world_(parts.world),
      layout_(parts.layout),
      decision_(parts.decision),
      first_job_(parts.first_job),
      begins_(static_cast<std::size_t>(parts.layout.model.jobs()), 0) {
  ExecutorOptions executor = parts.options.executor;
  executor.seeds.clear();
  for (std::size_t job = first_job_; job < first_job_ + begins_.size(); ++job) {
    executor.seeds.push_back(parts.options.jobs[job].seed);
    executor.clip_values.push_back(parts.options.jobs[job].clip.value);
  }
  // If steps are skipped, those with a loss that is not finite are skipped too.
  if (decision_.scales_loss() || decision_.judges_together()) executor.stop_on_nonfinite = false;
  const NonfiniteOptions& nonfinite = parts.options.nonfinite;
  executor.check_activations = nonfinite.check == FiniteCheckOf::Activations;
  executor.throws_at_once = !decision_.judges_together();
  executor.keeps_written = decision_.skips_nonfinite() || decision_.scales_loss();
  // With a scaled loss, a skipped step's statistics and states are kept, as in PyTorch.
  executor.keeps_statistics = decision_.skips_nonfinite() && !decision_.scales_loss();
  checks_own_gradients_ = nonfinite.check != FiniteCheckOf::Loss && !decision_.judges_together();
  for (int s = 0; s < parts.plan.num_stages(); ++s) {
    if (std::ranges::find(parts.plan.stages[s].ranks, parts.world.rank()) != parts.plan.stages[s].ranks.end())
      hold(parts, executor, StageId(s));
  }
  if (decision_.needs_model_norm())
    agreement_ = std::make_unique<GradientAgreement>(parts.world, layout_, parts.array);
  for (const HeldStage& one : held_) {
    for (const HeldStage& other : held_) {
      for (std::size_t e = 0; one.stage != other.stage && e < one.executors.size(); ++e)
        one.executors[e]->connect(*other.executors[e]);
    }
  }
}

void Lane::hold(const LaneParts& parts, const ExecutorOptions& executor, StageId stage) {
  const RankStagesOptions& options = parts.options;
  std::vector<std::vector<RankId>> ranks_of_stage;
  for (const PlanStage& one : parts.plan.stages) ranks_of_stage.push_back(one.ranks);
  const std::vector<RankId>& ranks = ranks_of_stage[stage.value];
  HeldStage held{.stage = stage,
                 .array = parts.array,
                 .first_job = static_cast<int>(first_job_),
                 .jobs = layout_.model.jobs(),
                 .all_jobs = static_cast<int>(options.jobs.size()),
                 .replica = static_cast<int>(std::ranges::find(ranks, parts.world.rank()) - ranks.begin()),
                 .replicas = static_cast<int>(ranks.size()),
                 .group = parts.groups[stage.value]};
  if (options.rate_by_replicas) held.rate = double(held.replicas) / double(ranks_of_stage.front().size());
  held.store =
      std::make_unique<ParameterStore>(layout_, stage, executor.seeds, parts.device.where(), options.dtype);
  add_rules(held, layout_, options.jobs);
  for (const int layer : layout_.layers[stage.value]) {
    const auto& names = layout_.model.layers[layer].unreached;
    held.unreached.insert(held.unreached.end(), names.begin(), names.end());
  }
  ExecutorOptions own = executor;
  if (options.average_replicas) own.gradient_scale = 1.0 / held.replicas;
  const std::size_t turns = layout_.turns.size();
  for (std::size_t e = 0; e <= turns; ++e) {
    const bool whole = e == turns;
    MessageNumbers numbers = parts.numbers;
    numbers.model = static_cast<int>(parts.array * (turns + 1) + e);
    std::vector<JobRule> rules;
    for (const HeldStage::Rule& rule : held.rules) {
      if (whole || rule.turn == static_cast<int>(e)) rules.push_back({rule.rule.get(), rule.job, rule.part});
    }
    held.executors.push_back(std::make_unique<StageExecutor>(
        ExecutorParts{whole ? layout_ : layout_.turns[e], stage, *held.store, JobRules(std::move(rules)),
                      parts.world, held.group.get(), parts.device, ranks_of_stage, numbers},
        own));
    before_first_update_.insert(held.executors.back().get());
  }
  held.executor = held.executors.back().get();
  held_.push_back(std::move(held));
}

const HeldStage& Lane::at(StageId stage) const {
  const auto found = std::ranges::find(held_, stage, &HeldStage::stage);
  MILLRACE_CHECK(found != held_.end(), "stage " << stage.value << " is on another rank");
  return *found;
}

StageExecutor* Lane::last() const {
  const bool here = !held_.empty() && held_.back().stage.value == layout_.num_stages() - 1;
  return here ? held_.back().executor : nullptr;
}

std::vector<char> Lane::fields() const {
  std::vector<char> result(layout_.model.fields.size(), 0);
  for (const HeldStage& h : held_) {
    for (const auto& executor : h.executors) {
      for (const auto& [field, place] : executor->program().fields) result[field] = 1;
    }
  }
  return result;
}

void Lane::set_begins(const std::vector<std::int64_t>& positions) {
  std::copy_n(positions.begin() + static_cast<std::ptrdiff_t>(first_job_), begins_.size(), begins_.begin());
}

void Lane::begin(std::int64_t first_position) {
  RunContext context{.first_position = first_position, .extent_of = extent_of_, .begins = begins_};
  for (std::size_t job = 0; job < begins_.size(); ++job)
    context.loss_scales.push_back(decision_.jobs()[first_job_ + job].scaler.scale());
  for (const HeldStage& h : held_) h.executor->begin(context);
}

void Lane::begin_evaluation(const RunContext& context) {
  for (const HeldStage& h : held_) h.executor->begin(context);
}

void Lane::set_turn(std::optional<std::size_t> turn) {
  for (HeldStage& h : held_) h.executor = (turn ? h.executors.at(*turn) : h.executors.back()).get();
}

void Lane::keep_ended_jobs() {
  std::vector<char> ended;
  for (std::size_t job = 0; job < begins_.size(); ++job)
    ended.push_back(decision_.jobs()[first_job_ + job].ended);
  for (const HeldStage& h : held_) {
    for (const auto& executor : h.executors) executor->statistics().set_ended(ended);
  }
}

std::vector<char> Lane::troubled() {
  std::vector<char> jobs(begins_.size(), 0);
  for (const HeldStage& h : held_) {
    if (h.executor->activations_nonfinite()) jobs.assign(jobs.size(), 1);
    const std::vector<char> losses = h.executor->heads().nonfinite_jobs();
    for (std::size_t job = 0; job < losses.size(); ++job) jobs[job] = jobs[job] || losses[job] ? 1 : 0;
  }
  return jobs;
}

std::string Lane::first_nonfinite() {
  std::optional<NonfinitePlace> mine;
  for (const HeldStage& h : held_) {
    const std::optional<NonfinitePlace> place = h.executor->nonfinite_place();
    if (place && (!mine || place->order < mine->order)) mine = place;
  }
  at::Tensor orders = at::zeros({world_.size()}, at::kDouble);  // by rank: 1 + order; 0: nothing found
  double* order = orders.mutable_data_ptr<double>();
  if (mine) order[world_.rank().value] = 1 + static_cast<double>(mine->order);
  if (world_.size() > 1) world_.all_reduce(orders, "first number that is not finite")->wait();
  int first = -1;
  for (int rank = 0; rank < world_.size(); ++rank)
    if (order[rank] > 0 && (first < 0 || order[rank] < order[first])) first = rank;
  if (first < 0) return "a gradient";
  return broadcast_text(world_, mine ? mine->text : "", RankId(first));
}

/// If stages update at different times, each checks its own gradient.
void Lane::require_finite_gradient(const HeldStage& held) {
  held.executor->complete_gradients();
  const std::vector<double> norms = norms_by_job(*held.store);
  if (std::ranges::any_of(norms, [](double norm) { return std::isfinite(norm); })) return;
  const std::optional<NonfinitePlace> place = held.executor->nonfinite_place();
  throw NumericError("not finite: " + (place ? place->text : "a gradient"),
                     "lower --lr or add --warmup-steps");
}

std::vector<UpdateScalars> Lane::before_update(StageId stage) {
  const HeldStage& held = at(stage);
  // Before the first of this step: a stage whose version is still this one's has not updated yet.
  const VersionId version = held.store->current();
  for (const HeldStage& h : held_) {
    if (h.store->current() == version) h.executor->prepare_update();
  }
  if (std::exchange(agreed_, version) != version) {
    scalars_.assign(begins_.size(), {});
    if (agreement_) {
      std::vector<GradientAgreement::Part> parts;
      for (const HeldStage& h : held_) {
        h.executor->complete_gradients();
        parts.push_back({h.store.get(), h.replica == 0});
      }
      const std::vector<double> norms =
          agreement_->norms(parts, decision_.judges_together() ? troubled() : std::vector<char>());
      const bool finite = std::ranges::all_of(norms, [](double norm) { return std::isfinite(norm); });
      const std::string first = finite || !decision_.judges_together() || decision_.scales_loss()
                                    ? std::string()
                                    : first_nonfinite();
      scalars_ = decision_.by_model_norm(first_job_, norms, first);
      const auto begins_to_skip = [](const JobUpdate& job) { return job.skips_in_a_row == 1; };
      if (!first.empty() && world_.rank().value == 0 && std::ranges::any_of(decision_.jobs(), begins_to_skip))
        log_warning("an update is skipped; not finite: " + first);
    }
  }
  if (checks_own_gradients_) require_finite_gradient(held);
  std::vector<UpdateScalars> scalars = scalars_;
  if (decision_.clips_stages()) {
    held.executor->complete_gradients();
    if (!std::ranges::all_of(scalars, &UpdateScalars::skip))
      decision_.clip_stage(first_job_, norms_by_job(*held.store), stage, stage == held_.front().stage,
                           scalars);
  }
  decision_.set_rates(first_job_, held.rate, scalars);
  return scalars;
}

void Lane::spoil_gradient(StageId stage) {
  at::Tensor gradient = at(stage).store->flat_gradient();
  if (gradient.numel() > 0) gradient.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
}

void Lane::update(StageId stage, const std::vector<UpdateScalars>& scalars) {
  const HeldStage& held = at(stage);
  const bool updates = !std::ranges::all_of(scalars, &UpdateScalars::skip);
  if (updates && before_first_update_.erase(held.executor) > 0) warn_of_zero_gradients(held);
  held.executor->update(scalars);
}

LossSums Lane::take_losses() {
  const HeldStage& held = held_.back();
  if (!held.in_turn()) return held.executor->heads().take_losses();
  StageExecutor& whole = *held.executors.back();
  std::vector<double> sums(whole.program().num_sums, 0.0);
  for (auto executor = held.executors.begin(); executor != held.executors.end() - 1; ++executor) {
    const std::vector<double> own = (*executor)->heads().take_sums();
    for (const HeadStep& head : (*executor)->program().heads) {
      const auto& heads = whole.program().heads;
      const auto place =
          std::ranges::find(heads, head.named->name, [](const HeadStep& h) { return h.named->name; });
      std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(head.sums), head.num_sums,
                  sums.begin() + static_cast<std::ptrdiff_t>(place->sums));
    }
  }
  return whole.heads().losses_of(sums);
}

}  // namespace millrace
