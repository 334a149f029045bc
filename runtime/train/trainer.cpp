#include "runtime/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <ATen/core/grad_mode.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/median.h"
#include "runtime/device/host_memory.h"
#include "runtime/schedule/pair_order.h"
#include "runtime/train/step_log.h"

namespace millrace {

int microbatches_per_step(const Plan& plan) {
  return updates_after_each(plan.schedule) ? 1 : plan.microbatches;
}

namespace {

// Microbatches of one evaluation schedule: bounds what a fast first stage can pile up in sends.
constexpr int kEvaluationChunk = 16;
// Of those, so many go between two looks at the stop flag.
constexpr int kEvaluationPiece = 4;
// Positions of evaluations lie above all training positions, so that message tags never meet.
constexpr std::int64_t kEvaluationPosition = std::int64_t{1} << 36;

StageLayout layout_or_throw(const LayeredModel& model, const Plan& plan, int microbatch) {
  Result<StageLayout> layout = make_layout(model, plan, microbatch);
  if (!layout) throw ConfigError(to_string(layout.problems()));
  return *std::move(layout);
}

int lcm_of_replicas(const Plan& plan) {
  int result = 1;
  for (const PlanStage& stage : plan.stages) result = std::lcm(result, static_cast<int>(stage.ranks.size()));
  return result;
}

/// Without a flush ranks are minibatches apart: as many as are in flight and as receives are posted ahead.
StopReach stop_reach(const Plan& plan) {
  if (!is_asynchronous(plan.schedule)) return {};
  std::size_t replicas = 1;
  for (const PlanStage& stage : plan.stages) replicas = std::max(replicas, stage.ranks.size());
  const int r = static_cast<int>(replicas), per_step = microbatches_per_step(plan);
  const int in_flight = plan.num_ranks() + 2 * r;
  return {.lag = in_flight / per_step + 1,
          .ahead = (in_flight + RankRunner::kReceivesAhead * r) / per_step + 1,
          .multiple = updates_after_each(plan.schedule) ? lcm_of_replicas(plan) : 1};
}

Transport transport_of(const Communicator& world) {
  return world.buffers_sends() ? Transport::Buffered : Transport::Rendezvous;
}

/// Proved to end, with every action at its place. Throws ConfigError.
Schedule checked_schedule(const Plan& plan, const PipelineShape& shape, const Communicator& world,
                          const std::optional<ScheduleFile>& file) {
  const Transport transport = transport_of(world);
  Result<Schedule> schedule = schedule_of(plan, shape, transport, file);
  if (!schedule)
    throw ConfigError("the plan of " + plan.model + " has no schedule: " + to_string(schedule.problems()));
  if (const Problems problems = check(*schedule, shape, transport); !problems.empty()) {
    throw ConfigError(
        "schedule " + to_string(plan.schedule) + " cannot run: " + to_string(problems),
        transport == Transport::Rendezvous && check(*schedule, shape, Transport::Buffered).empty()
            ? "it needs sends that are buffered: --backend shm, all ranks on one host"
            : "");
  }
  if (world.is_ordered()) {
    if (const Problems problems = check_pair_order(*schedule); !problems.empty())
      throw ConfigError(to_string(problems));
  }
  return *std::move(schedule);
}

/// This rank's forwards of microbatches [from, to).
std::vector<Action> evaluation_actions(const Plan& plan, const StageLayout& layout, int from, int to,
                                       const Communicator& world) {
  std::vector<Action> actions =
      std::move(forward_schedule(shape_of(plan, layout, to), transport_of(world)).ranks[world.rank().value]);
  std::erase_if(actions, [from](const Action& a) { return a.microbatch.value < from; });
  return actions;
}

}  // namespace

struct Trainer::Impl {
  World world;
  Plan plan;
  TrainOptions options;
  StageLayout layout;
  std::unique_ptr<RankStages> stages;
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
  /// In the evaluation; its lag also bounds how far a fast first stage runs ahead of the others.
  std::unique_ptr<AnyRank> evaluation_stop;

  Impl(World w, const LayeredModel& model, Plan p, TrainOptions o)
      : world(w),
        plan(std::move(p)),
        options(std::move(o)),
        layout(layout_or_throw(model, plan, options.microbatch)) {}

  bool asynchronous() const { return is_asynchronous(plan.schedule); }
  /// PipeDream: a step is a minibatch, and replicas average over one each.
  bool updates_after_each() const { return millrace::updates_after_each(plan.schedule); }
  const HeldStage& first() const { return stages->held().front(); }
  /// Steps of the job per Update of this rank's stages.
  int steps_per_update() const { return updates_after_each() ? first().replicas : 1; }
  bool owns_loss() const { return stages->owns_loss(); }
  std::int64_t position_of(std::int64_t step) const { return step * microbatches_per_step(plan); }

  /// What this rank writes: of the stages whose first replica it is.
  std::vector<StageTensors> mine(const std::function<NamedTensors(const HeldStage&)>& tensors) const {
    std::vector<StageTensors> result;
    for (const HeldStage& h : stages->held()) {
      if (h.replica == 0) result.push_back({h.stage.value, tensors(h)});
    }
    return result;
  }

  void check_sizes();
  void build(const MakeBatches& make_batches);
  void resume();
  void run_training();
  void run_segment(std::int64_t steps);
  void on_update(RankRunner& runner, std::int64_t step);
  bool evaluate();
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
  if (updates_after_each() && options.steps % lcm_of_replicas(plan) != 0) {
    throw ConfigError("--steps " + std::to_string(options.steps) + " is not a multiple of " +
                          std::to_string(lcm_of_replicas(plan)) +
                          ", the least common multiple of the stages' replicas",
                      "the asynchronous schedule gives every replica the same number of minibatches");
  }
}

void Trainer::Impl::build(const MakeBatches& make_batches) {
  check_sizes();
  stages = std::make_unique<RankStages>(
      world.communicator, layout, plan,
      RankStagesOptions{.executor = {.seed = options.seed,
                                     .loss_scale = 1.0 / microbatches_per_step(plan),
                                     .bucket_bytes = options.bucket_bytes},
                        .rule = options.rule,
                        .average_replicas = updates_after_each(),
                        .device = &world.device});
  BatchNeeds train{.input = stages->needs_input(), .target = stages->last() != nullptr};
  std::vector<std::pair<int, int>> readers;  // replica, replicas
  for (const HeldStage& h : stages->held()) {
    if (h.executor->needs_input() || h.executor->is_last()) readers.emplace_back(h.replica, h.replicas);
  }
  const auto mine = [readers](std::int64_t microbatch) {
    return std::ranges::any_of(readers, [&](const auto& r) { return microbatch % r.second == r.first; });
  };
  const int per_step = microbatches_per_step(plan);
  const bool whole_run = updates_after_each();
  train.mine = [=](std::int64_t position) { return mine(whole_run ? position : position % per_step); };
  BatchNeeds evaluation = train;
  evaluation.mine = [=](std::int64_t position) { return mine(position % kEvaluationChunk); };
  sources = make_batches(train, evaluation);
  stop = std::make_unique<StopVote>(world.communicator, options.stop, stop_reach(plan));
  evaluation_stop =
      std::make_unique<AnyRank>(world.communicator, "evaluation", 2 + plan.num_ranks() / kEvaluationPiece);
}

void Trainer::Impl::resume() {
  if (options.resume.empty()) return;
  Result<Checkpoint> found = open_checkpoint(options.resume);
  if (!found) throw CheckpointError("cannot resume: " + to_string(found.problems()));
  for (const HeldStage& h : stages->held()) {
    if (Problems problems = load_stage(*found, plan.model, *h.store, *h.rule); !problems.empty())
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
  for (const HeldStage& h : stages->held()) {
    h.rule->set_updates(done / steps_per_update());
    h.store->set_current(VersionId(h.rule->updates()));
  }
  if (owns_loss()) log_info("resumed step=" + std::to_string(done) + " from=" + found->path);
  if (sources.train) sources.train->seek(position_of(done));
}

std::int64_t Trainer::Impl::steps_to_next_event() const {
  std::int64_t next = options.steps;
  for (std::int64_t every : {options.checkpoint_every, options.evaluate_every}) {
    if (every > 0) next = std::min(next, (done / every + 1) * every);
  }
  return next - done;
}

void Trainer::Impl::run_segment(std::int64_t steps) {
  RankRunner runner({*stages, sources.train.get(), world.clock, trace, status, &world.device});
  stages->set_training(true);
  last_update = world.clock.now();
  const RankId rank = world.communicator.rank();
  if (asynchronous()) {
    const PipelineShape shape = shape_of(plan, layout, static_cast<int>(steps * microbatches_per_step(plan)));
    const Schedule schedule = checked_schedule(plan, shape, world.communicator, options.schedule);
    std::int64_t step = done;
    stages->begin(position_of(done), learning_rate(options.learning_rate, done));
    if (plan.schedule != ScheduleKind::PipeDream) stages->set_versions(forward_versions(schedule, shape));
    runner.run(schedule.ranks[rank.value], done, position_of(done), [&](const Action&) {
      on_update(runner, step);
      for (int i = 0; i < steps_per_update(); ++i) stop->completed(++step);
      stages->set_learning_rate(learning_rate(options.learning_rate, step));
      if (stop->limit() < done + steps) runner.end_before(position_of(stop->limit() - done));
    });
    stages->finish_sends();
    done = std::min(done + steps, stop->limit());
    report.stopped = done == stop->limit();
    return;
  }
  const std::vector<Action> actions =
      checked_schedule(plan, shape_of(plan, layout, plan.microbatches), world.communicator, options.schedule)
          .ranks[rank.value];
  for (std::int64_t i = 0; i < steps; ++i) {
    stages->begin(position_of(done), learning_rate(options.learning_rate, done));
    runner.run(actions, done, position_of(done), [&](const Action&) { on_update(runner, done); });
    ++done;
    stop->completed(done);
    if (report.stopped = done == stop->limit(); report.stopped) break;
  }
  stages->finish_sends();
}

void Trainer::Impl::on_update(RankRunner& runner, std::int64_t step) {
  const TimePoint now = world.clock.now();
  const double seconds = Seconds(now - last_update).count();
  last_update = now;
  step_seconds.push_back(seconds);
  ++report.steps;
  const std::int64_t samples =
      std::int64_t{options.microbatch} * (updates_after_each() ? first().replicas : plan.microbatches);
  StepRecord record{.step = step,
                    .times = runner.take_times(),
                    .step_s = seconds,
                    .samples_per_s = double(samples) / seconds,
                    .lr = learning_rate(options.learning_rate, step),
                    .peak_memory_bytes = world.device.memory().peak,
                    .resident_memory_bytes = peak_resident_bytes(),
                    .weight_versions = stages->peak_versions(),
                    .stashed = stages->peak_stash()};
  if (StageExecutor* last = stages->last()) {
    record.losses = last->take_losses();
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
    throw NumericError(
        "the loss is " + std::to_string(record.losses->mean_loss()) + " at step " + std::to_string(step),
        "lower --lr or add --warmup-steps; the last checkpoint is intact");
  }
}

/// False if it was asked to stop and left the rest out.
bool Trainer::Impl::evaluate() {
  const std::int64_t total = sources.evaluation.microbatches;
  if (total == 0) return true;
  bool asked = false;
  stages->set_training(false);
  if (stages->last()) stages->last()->take_losses();
  if (sources.evaluation.batches) sources.evaluation.batches->seek(0);
  // Positions of the tags go up from evaluation to evaluation; those of the data start at 0 each time.
  struct Shifted final : BatchSource {
    BatchSource* inner;
    std::int64_t by;
    Batch get(std::int64_t position) override { return inner->get(position - by); }
    void seek(std::int64_t position) override { inner->seek(position - by); }
  } shifted;
  shifted.inner = sources.evaluation.batches.get();
  shifted.by = kEvaluationPosition + evaluated;
  RankRunner shifted_runner(
      {*stages, shifted.inner ? &shifted : nullptr, world.clock, trace, status, &world.device});
  const std::int64_t last = sources.evaluation.last_samples;
  const std::int64_t whole = last > 0 && last < options.microbatch ? total - 1 : total;
  for (std::int64_t next = 0; next < total && !asked;) {
    // The incomplete last microbatch goes by itself: its messages are smaller.
    const std::int64_t chunk = next / kEvaluationChunk * kEvaluationChunk;
    const std::int64_t end =
        next < whole ? std::min({whole, chunk + kEvaluationChunk, next + kEvaluationPiece}) : total;
    stages->set_samples(next < whole ? options.microbatch : static_cast<int>(last));
    stages->begin(shifted.by + chunk, 0);
    shifted_runner.run(evaluation_actions(plan, layout, static_cast<int>(next - chunk),
                                          static_cast<int>(end - chunk), world.communicator),
                       done, shifted.by + chunk, [](const Action&) {});
    next = end;
    asked = evaluation_stop->next(options.stop && options.stop->load()) && next < total;
  }
  evaluation_stop->finish();
  stages->set_samples(options.microbatch);
  stages->finish_sends();
  evaluated += total + kEvaluationChunk;
  stages->set_training(true);
  StageExecutor* last_stage = stages->last();
  if (asked) {
    if (last_stage) last_stage->take_losses();
    if (owns_loss()) log_warning("the evaluation of step " + std::to_string(done) + " was interrupted");
    return false;
  }
  if (!last_stage) return true;
  last_stage->execute({.op = Op::Reduce, .stage = last_stage->stage(), .microbatch = MicrobatchId(0)});
  const LossSums sums = last_stage->take_losses();
  report.evaluations.push_back({.step = done,
                                .loss = sums.sample_loss / double(std::max<std::int64_t>(1, sums.samples)),
                                .top1 = double(sums.top1) / double(std::max<std::int64_t>(1, sums.samples)),
                                .top5 = double(sums.top5) / double(std::max<std::int64_t>(1, sums.samples)),
                                .samples = sums.samples});
  if (owns_loss()) log.print(report.evaluations.back());
  return true;
}

void Trainer::Impl::checkpoint() {
  const TimePoint start = world.clock.now();
  const std::string folder = (std::filesystem::path(options.output_dir) / "checkpoints").string();
  save_checkpoint(world.communicator, folder,
                  {.model = plan.model,
                   .seed = options.seed,
                   .step = done,
                   .position = position_of(done),
                   .updates = first().rule->updates(),
                   .rule = options.rule.kind,
                   .plan_fingerprint = plan.fingerprint()},
                  plan.num_stages(), mine([](const HeldStage& h) { return stage_state(*h.store, *h.rule); }));
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
    if (evaluated_last && !evaluate()) {
      report.stopped = true;
      break;
    }
    const bool due = options.checkpoint_every > 0 && done % options.checkpoint_every == 0;
    if (due || (at_end && options.checkpoint_at_end)) checkpoint();
  }
  report.seconds = Seconds(world.clock.now() - start).count();
  stop->finish();
  if (!report.stopped && !evaluated_last) report.stopped = !evaluate();
  if (report.stopped) {
    if (owns_loss()) log_warning("asked to stop: saving step " + std::to_string(done));
    if (!options.output_dir.empty()) checkpoint();
    return;
  }
  if (!options.save_weights.empty()) {
    save_weights(world.communicator, options.save_weights, plan.num_stages(),
                 mine([](const HeldStage& h) { return stage_weights(*h.store); }));
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
    self.status = StatusBoard(folder / ("status.rank" + std::to_string(rank) + ".json"), rank,
                              self.first().stage.value);
    self.log = StepLog(folder, rank, self.first().stage.value, world.communicator.size(),
                       /*append=*/!self.options.resume.empty());
  }
}

Trainer::~Trainer() = default;

RunReport Trainer::run() {
  at::NoGradGuard no_grad;
  Impl& self = *impl_;
  try {
    self.run_training();
  } catch (const std::exception&) {
    self.write_trace();
    throw;
  }
  self.write_trace();
  RunReport& report = self.report;
  report.median_step_s =
      median({self.step_seconds.begin() + (self.step_seconds.size() > 1), self.step_seconds.end()});
  const double samples = double(self.options.microbatch) *
                         (self.updates_after_each() ? self.first().replicas : self.plan.microbatches);
  report.samples_per_s = report.median_step_s > 0 ? samples / report.median_step_s : 0;
  report.peak_stash = self.stages->peak_stash();
  report.peak_versions = self.stages->peak_versions();
  report.peak_memory_bytes = self.world.device.memory().peak;
  self.status.update(self.done, "done");
  return report;
}

}  // namespace millrace
