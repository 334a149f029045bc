#include "runtime/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <ATen/core/grad_mode.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/train/step_log.h"

namespace millrace {
namespace {

// Microbatches of one evaluation schedule: bounds what a fast first stage can pile up in sends.
constexpr int kEvaluationChunk = 16;
// Positions of evaluations lie above all training positions, so that message tags never meet.
constexpr std::int64_t kEvaluationPosition = std::int64_t{1} << 36;

StageLayout layout_or_throw(const LayeredModel& model, const Plan& plan, int microbatch) {
  Result<StageLayout> layout = make_layout(model, plan, microbatch);
  if (!layout) throw ConfigError(to_string(layout.problems()));
  return *std::move(layout);
}

/// Stage and replica of a rank.
std::pair<StageId, int> place_of(const Plan& plan, RankId rank) {
  for (int s = 0; s < plan.num_stages(); ++s) {
    const auto& ranks = plan.stages[s].ranks;
    if (auto found = std::ranges::find(ranks, rank); found != ranks.end()) {
      return {StageId(s), static_cast<int>(found - ranks.begin())};
    }
  }
  throw ConfigError("the plan has no place for rank " + std::to_string(rank.value),
                    "start as many ranks as the plan names");
}

int lcm_of_replicas(const Plan& plan) {
  int result = 1;
  for (const PlanStage& stage : plan.stages) result = std::lcm(result, static_cast<int>(stage.ranks.size()));
  return result;
}

std::vector<Action> actions_of(const Plan& plan, ScheduleKind kind, const PipelineShape& shape, RankId rank) {
  Result<Schedule> schedule = make_schedule(kind, shape);
  if (!schedule)
    throw ConfigError("the plan of " + plan.model + " has no schedule: " + to_string(schedule.problems()));
  return std::move(schedule->ranks[rank.value]);
}

/// The forward half of GPipe.
std::vector<Action> evaluation_actions(const Plan& plan, const PipelineShape& shape, RankId rank) {
  std::vector<Action> actions = actions_of(plan, ScheduleKind::GPipe, shape, rank);
  std::erase_if(actions, [](const Action& a) {
    return a.op != Op::Forward && a.op != Op::SendActivation && a.op != Op::RecvActivation;
  });
  return actions;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int microbatches_per_step(const Plan& plan) {
  return plan.schedule == ScheduleKind::PipeDream ? 1 : plan.microbatches;
}

struct Trainer::Impl {
  World world;
  Plan plan;
  TrainOptions options;
  StageLayout layout;
  StageId stage;
  int replica;
  ParameterStore store;
  std::unique_ptr<UpdateRule> rule;
  std::unique_ptr<Communicator> replicas;
  std::unique_ptr<StageExecutor> executor;
  BatchSources sources;
  SpanRing trace;
  StatusBoard status;
  StepLog log;
  RunReport report;
  std::vector<double> step_seconds;
  std::vector<Span> window;
  TimePoint last_update{};
  std::int64_t done = 0;  // steps, counted over resumes
  std::int64_t evaluated = 0;
  std::unique_ptr<StopVote> stop;

  Impl(World w, const LayeredModel& model, Plan p, TrainOptions o)
      : world(w),
        plan(std::move(p)),
        options(std::move(o)),
        layout(layout_or_throw(model, plan, options.microbatch)),
        stage(place_of(plan, world.communicator.rank()).first),
        replica(place_of(plan, world.communicator.rank()).second),
        store(layout, stage, options.seed) {}

  bool asynchronous() const { return plan.schedule == ScheduleKind::PipeDream; }
  int stage_replicas() const { return static_cast<int>(plan.stages[stage.value].ranks.size()); }
  /// Steps of the job per Update of this rank's stage.
  int steps_per_update() const { return asynchronous() ? stage_replicas() : 1; }
  bool owns_loss() const { return executor->is_last() && replica == 0; }
  std::int64_t position_of(std::int64_t step) const { return step * microbatches_per_step(plan); }

  void check_sizes();
  void build(const MakeBatches& make_batches);
  void resume();
  void run_training();
  void run_segment(std::int64_t steps);
  void on_update(RankRunner& runner, std::int64_t step);
  void evaluate();
  void checkpoint();
  void write_trace();
  std::int64_t steps_to_next_event() const;
};

void Trainer::Impl::check_sizes() {
  if (plan.num_ranks() != world.communicator.size()) {
    throw ConfigError("the plan has " + std::to_string(plan.num_ranks()) + " ranks, this job has " +
                          std::to_string(world.communicator.size()),
                      "start exactly the plan's ranks");
  }
  if (asynchronous() && options.steps % lcm_of_replicas(plan) != 0) {
    throw ConfigError("--steps " + std::to_string(options.steps) + " is not a multiple of " +
                          std::to_string(lcm_of_replicas(plan)) +
                          ", the least common multiple of the stages' replicas",
                      "the asynchronous schedule gives every replica the same number of minibatches");
  }
}

void Trainer::Impl::build(const MakeBatches& make_batches) {
  check_sizes();
  auto made = make_update_rule(options.rule, store.flat_weights());
  if (!made) throw ConfigError(to_string(made.problems()));
  rule = std::move(*made);
  if (stage_replicas() > 1)
    replicas =
        world.communicator.subgroup(plan.stages[stage.value].ranks, "stage" + std::to_string(stage.value));
  executor = std::make_unique<StageExecutor>(
      ExecutorParts{layout, stage, store, *rule, world.communicator, replicas.get()},
      ExecutorOptions{.seed = options.seed,
                      .loss_scale = 1.0 / microbatches_per_step(plan),
                      .gradient_scale = asynchronous() ? 1.0 / stage_replicas() : 1.0,
                      .bucket_bytes = options.bucket_bytes});
  const int r = stage_replicas(), mine = replica, per_step = microbatches_per_step(plan);
  const bool async = asynchronous();
  BatchNeeds train{.input = executor->needs_input(), .target = executor->is_last()};
  train.mine = [=](std::int64_t position) { return (async ? position : position % per_step) % r == mine; };
  BatchNeeds evaluation = train;
  evaluation.mine = [=](std::int64_t position) { return position % kEvaluationChunk % r == mine; };
  sources = make_batches(train, evaluation);
  stop = std::make_unique<StopVote>(world.communicator, options.stop);
}

void Trainer::Impl::resume() {
  if (options.resume.empty()) return;
  Result<Checkpoint> found = open_checkpoint(options.resume);
  if (!found) throw CheckpointError("cannot resume: " + to_string(found.problems()));
  if (Problems problems = load_stage(*found, plan.model, store, *rule); !problems.empty()) {
    throw CheckpointError("cannot resume: " + to_string(problems));
  }
  if (found->info.seed != options.seed) {
    throw CheckpointError(
        "cannot resume: the checkpoint was made with --seed " + std::to_string(found->info.seed),
        "give the same seed");
  }
  if (found->info.position != position_of(found->info.step)) {
    throw CheckpointError("cannot resume: the checkpoint used another number of microbatches per step",
                          "give a plan with the same number");
  }
  done = found->info.step;
  // A replicated stage of an asynchronous pipeline updates once for several minibatches.
  rule->set_updates(done / steps_per_update());
  store.set_current(VersionId(rule->updates()));
  if (owns_loss()) log_info("resumed step=" + std::to_string(done) + " from=" + found->path);
  if (sources.train) sources.train->seek(position_of(done));
}

std::int64_t Trainer::Impl::steps_to_next_event() const {
  std::int64_t next = options.steps;
  for (std::int64_t every : {options.checkpoint_every, options.evaluate_every}) {
    if (every > 0) next = std::min(next, (done / every + 1) * every);
  }
  // Without a flush the pipeline drains only at events; a bound keeps the schedule's list small.
  if (asynchronous()) next = std::min(next, done + std::max<std::int64_t>(options.steps, 1));
  return next - done;
}

void Trainer::Impl::run_segment(std::int64_t steps) {
  RankRunner runner({*executor, sources.train.get(), world.clock, trace, status});
  const RankId rank = world.communicator.rank();
  executor->set_training(true);
  last_update = world.clock.now();
  if (asynchronous()) {
    const auto actions =
        actions_of(plan, plan.schedule, shape_of(plan, layout, static_cast<int>(steps)), rank);
    std::int64_t step = done;
    executor->begin(position_of(done), learning_rate(options.learning_rate, done));
    runner.run(actions, done, position_of(done), [&](const Action&) {
      on_update(runner, step);
      step += steps_per_update();
      executor->set_learning_rate(learning_rate(options.learning_rate, step));
    });
    executor->finish_sends();
    done += steps;
    report.stopped = stop->stop_here();
    return;
  }
  const auto actions = actions_of(plan, plan.schedule, shape_of(plan, layout, plan.microbatches), rank);
  for (std::int64_t i = 0; i < steps; ++i) {
    executor->begin(position_of(done), learning_rate(options.learning_rate, done));
    runner.run(actions, done, position_of(done), [&](const Action&) { on_update(runner, done); });
    ++done;
    if (report.stopped = stop->stop_here(); report.stopped) break;
  }
  executor->finish_sends();
}

void Trainer::Impl::on_update(RankRunner& runner, std::int64_t step) {
  const TimePoint now = world.clock.now();
  const double seconds = Seconds(now - last_update).count();
  last_update = now;
  step_seconds.push_back(seconds);
  ++report.steps;
  const std::int64_t samples =
      std::int64_t{options.microbatch} * (asynchronous() ? stage_replicas() : plan.microbatches);
  StepRecord record{.step = step,
                    .times = runner.take_times(),
                    .step_s = seconds,
                    .samples_per_s = double(samples) / seconds,
                    .lr = learning_rate(options.learning_rate, step),
                    .weight_versions = executor->peak_versions(),
                    .stashed = executor->peak_stash()};
  if (executor->is_last()) {
    record.losses = executor->take_losses();
    report.losses.push_back(record.losses->mean_loss());
  }
  log.write(record);
  if (step >= options.trace_first && step < options.trace_first + options.trace_count) {
    for (const Span& span : trace.spans()) {
      if (span.step == step) window.push_back(span);
    }
  }
  if (owns_loss() && (step + 1 == options.steps || (step + 1) % options.print_every == 0))
    log.print(record, options.steps);
  if (record.losses && options.stop_on_nonfinite && !std::isfinite(record.losses->mean_loss())) {
    throw NumericError("the loss is " + std::to_string(record.losses->mean_loss()) + " at step " +
                           std::to_string(step) + " on stage " + std::to_string(stage.value),
                       "lower --lr or add --warmup-steps; the last checkpoint is intact");
  }
}

void Trainer::Impl::evaluate() {
  const std::int64_t total = sources.evaluation.microbatches;
  if (total == 0) return;
  executor->set_training(false);
  executor->take_losses();
  if (sources.evaluation.batches) sources.evaluation.batches->seek(0);
  int most = 1;
  for (const PlanStage& s : plan.stages) most = std::max<int>(most, s.ranks.size());
  // Positions of the tags go up from evaluation to evaluation; those of the data start at 0 each time.
  struct Shifted final : BatchSource {
    BatchSource* inner;
    std::int64_t by;
    Batch get(std::int64_t position) override { return inner->get(position - by); }
    void seek(std::int64_t position) override { inner->seek(position - by); }
  } shifted;
  shifted.inner = sources.evaluation.batches.get();
  shifted.by = kEvaluationPosition + evaluated;
  RankRunner shifted_runner({*executor, shifted.inner ? &shifted : nullptr, world.clock, trace, status});
  for (std::int64_t first = 0; first < total;) {
    const int count = static_cast<int>(std::min<std::int64_t>(kEvaluationChunk, total - first));
    if (count < most) break;  // fewer microbatches than replicas: dropped, as a last incomplete batch is
    const auto actions = evaluation_actions(plan, shape_of(plan, layout, count), world.communicator.rank());
    executor->begin(shifted.by + first, 0);
    shifted_runner.run(actions, done, shifted.by + first, [](const Action&) {});
    first += count;
  }
  executor->finish_sends();
  evaluated += total + kEvaluationChunk;
  executor->set_training(true);
  if (!executor->is_last()) return;
  if (replicas) executor->execute({.op = Op::Reduce, .stage = stage, .microbatch = MicrobatchId(0)});
  const LossSums sums = executor->take_losses();
  report.evaluations.push_back({.step = done,
                                .loss = sums.mean_loss(),
                                .top1 = double(sums.top1) / double(std::max<std::int64_t>(1, sums.samples)),
                                .top5 = double(sums.top5) / double(std::max<std::int64_t>(1, sums.samples)),
                                .samples = sums.samples});
  if (owns_loss()) log.print(report.evaluations.back());
}

void Trainer::Impl::checkpoint() {
  const TimePoint start = world.clock.now();
  const std::string folder = (std::filesystem::path(options.output_dir) / "checkpoints").string();
  save_checkpoint(world.communicator, folder,
                  {.model = plan.model,
                   .seed = options.seed,
                   .step = done,
                   .position = position_of(done),
                   .updates = rule->updates(),
                   .rule = options.rule.kind,
                   .plan_fingerprint = plan.fingerprint()},
                  stage.value, plan.num_stages(), replica == 0, stage_state(store, *rule));
  if (owns_loss()) {
    log_info("checkpoint step=" + std::to_string(done) +
             " seconds=" + std::to_string(Seconds(world.clock.now() - start).count()));
  }
}

void Trainer::Impl::write_trace() {
  if (options.output_dir.empty() || window.empty()) return;
  const auto path = std::filesystem::path(options.output_dir) /
                    ("trace.rank" + std::to_string(world.communicator.rank().value) + ".json");
  if (Status status = write_file_atomically(path, spans_to_json(window)); !status)
    log_warning(to_string(status.problems()));
}

void Trainer::Impl::run_training() {
  const TimePoint start = world.clock.now();
  bool evaluated_last = false;
  while (done < options.steps) {
    run_segment(steps_to_next_event());
    const bool at_end = done >= options.steps;
    report.stopped = report.stopped && !at_end;
    if (report.stopped) break;
    evaluated_last = options.evaluate_every > 0 && done % options.evaluate_every == 0;
    if (evaluated_last) evaluate();
    const bool due = options.checkpoint_every > 0 && done % options.checkpoint_every == 0;
    if (due || (at_end && options.checkpoint_at_end)) checkpoint();
  }
  report.seconds = Seconds(world.clock.now() - start).count();
  stop->finish();
  if (report.stopped) {
    if (owns_loss()) log_warning("asked to stop: saving step " + std::to_string(done));
    if (!options.output_dir.empty()) checkpoint();
    return;
  }
  if (!evaluated_last) evaluate();
  if (!options.save_weights.empty()) {
    save_weights(world.communicator, options.save_weights, stage.value, plan.num_stages(), replica == 0,
                 stage_weights(store));
  }
}

Trainer::Trainer(World world, LayeredModel model, Plan plan, TrainOptions options,
                 const MakeBatches& make_batches) {
  at::NoGradGuard no_grad;
  if (options.learning_rate.total_steps <= 1) options.learning_rate.total_steps = options.steps;
  if (Problems problems = validate(options.learning_rate); !problems.empty())
    throw ConfigError(to_string(problems));
  impl_ = std::make_unique<Impl>(world, model, std::move(plan), std::move(options));
  Impl& self = *impl_;
  self.build(make_batches);
  self.resume();
  const int rank = world.communicator.rank().value;
  if (!self.options.output_dir.empty()) {
    const std::filesystem::path folder = self.options.output_dir;
    if (Status made = make_writable_folder(folder); !made) throw ConfigError(to_string(made.problems()));
    self.status =
        StatusBoard(folder / ("status.rank" + std::to_string(rank) + ".json"), rank, self.stage.value);
    self.log = StepLog(folder, rank, self.stage.value, world.communicator.size(),
                       /*append=*/!self.options.resume.empty());
  }
}

Trainer::~Trainer() = default;

RunReport Trainer::run() {
  at::NoGradGuard no_grad;
  Impl& self = *impl_;
  try {
    self.run_training();
  } catch (const std::exception& error) {
    self.write_trace();
    self.world.communicator.abort(error.what());
    throw;
  }
  self.write_trace();
  RunReport& report = self.report;
  report.median_step_s =
      median({self.step_seconds.begin() + (self.step_seconds.size() > 1), self.step_seconds.end()});
  const double samples = double(self.options.microbatch) *
                         (self.asynchronous() ? self.stage_replicas() : self.plan.microbatches);
  report.samples_per_s = report.median_step_s > 0 ? samples / report.median_step_s : 0;
  report.peak_stash = self.executor->peak_stash();
  report.peak_versions = self.executor->peak_versions();
  self.status.update(self.done, "done");
  return report;
}

}  // namespace millrace
