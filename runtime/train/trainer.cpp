#include "runtime/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/median.h"
#include "runtime/device/host_memory.h"
#include "runtime/schedule/pair_order.h"
#include "runtime/train/run_settings.h"
#include "runtime/train/step_log.h"

namespace millrace {

int microbatches_per_step(const Plan& plan) {
  return updates_after_each(plan.schedule) ? 1 : plan.microbatches;
}

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
  const int minibatches =
      plan.num_ranks() + (2 * RankRunner::kReceivesAhead + 1) * static_cast<int>(replicas);
  const int steps = minibatches / microbatches_per_step(plan) + 1;
  return {.lag = steps,
          .ahead = steps,
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
  RunLock lock;                    // of rank 0
  std::string run, parent;         // see CheckpointInfo
  bool continues = false;          // in the folder of the run that it resumes
  std::int64_t unsaved_step = -1;  // of the last save, if it failed
  Settings settings;

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
      if (h.replica != 0) continue;
      result.push_back({h.stage.value, tensors(h)});
      // The threads that write know nothing of devices.
      for (auto& [name, tensor] : result.back().tensors) tensor = tensor.cpu();
    }
    return result;
  }
  std::vector<StageTensors> my_state() const {
    return mine([](const HeldStage& h) { return stage_state(*h.store, *h.rule); });
  }
  std::filesystem::path checkpoints() const {
    return std::filesystem::path(options.output_dir) / "checkpoints";
  }
  std::optional<RankProblem> together(const std::string& what, const std::function<void()>& work) {
    return run_together(world.communicator, options.checkpoint_deadline, what, work);
  }

  void agree_on_settings();
  void claim_outputs();
  void check_changes(const Checkpoint& found);
  void take_folder();
  void open_files();
  void require_finite(const std::vector<StageTensors>& tensors);
  void finish_files();
  void check_sizes();
  void build(const MakeBatches& make_batches);
  void resume();
  void run_training();
  void run_segment(std::int64_t steps);
  void on_update(RankRunner& runner, std::int64_t step);
  void evaluate();
  bool checkpoint();
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
                                     .bucket_bytes = options.bucket_bytes,
                                     .stop_on_nonfinite = options.stop_on_nonfinite},
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
}

/// Ranks that were started with different flags, or see different data, would mix two runs.
void Trainer::Impl::agree_on_settings() {
  settings = run_settings(layout.model, plan, options);
  Settings all = settings;
  const Settings more = rank_settings(plan, options);
  all.insert(all.end(), more.begin(), more.end());
  const Settings first = settings_from(broadcast_text(world.communicator, to_text(all)));
  const std::vector<SettingChange> changes = changes_between(first, settings_from(to_text(all)));
  const auto problem = together("comparing the ranks' settings", [&] {
    if (!changes.empty())
      throw ConfigError("was started with other settings than rank 0: " + to_string(changes));
  });
  if (problem)
    throw ConfigError(to_string(*problem), "start all ranks with the same flags and the same data");
}

/// Everything that will be written is made, or refused, before the first step.
void Trainer::Impl::claim_outputs() {
  const bool first_rank = world.communicator.rank() == RankId(0);
  const auto require = [](const Status& status) {
    if (!status) throw ConfigError(to_string(status.problems()));
  };
  const std::string fresh = first_rank ? new_run_id() : "";
  const auto problem = together("preparing the outputs", [&] {
    if (!options.save_weights.empty()) require(make_place_for_file(options.save_weights));
    if (options.output_dir.empty()) return;
    require(make_writable_folder(options.output_dir));
    if (!first_rank) return;
    Result<RunLock> held = RunLock::acquire(options.output_dir, fresh, options.launcher);
    if (!held) throw ConfigError(to_string(held.problems()));
    lock = std::move(*held);
    if (options.resume.empty() && !options.overwrite) require(check_unused(options.output_dir));
  });
  if (problem) throw ConfigError(problem->what);
  if (!options.output_dir.empty()) run = broadcast_text(world.communicator, fresh);
}

void Trainer::Impl::check_changes(const Checkpoint& found) {
  if (found.info.model != plan.model) {
    throw CheckpointError("cannot resume: " + found.path + " is a checkpoint of model " + found.info.model +
                              ", this run trains " + plan.model,
                          "give the same --model, or start without --resume");
  }
  const auto& allowed = options.resume_changes;
  std::vector<std::string> keys{"all"};
  for (const Settings& side : {settings, found.info.settings}) {
    for (const auto& [key, value] : side) keys.push_back(key);
  }
  for (const std::string& key : allowed) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    const auto near = nearest_name(key, keys);
    throw ConfigError("--resume-changes: a checkpoint does not record '" + key + "'",
                      near ? "did you mean '" + *near + "'?" : "docs/commands.md lists what it records");
  }
  const auto is_allowed = [&](const SettingChange& change) {
    return std::ranges::any_of(allowed, [&](const auto& a) { return a == "all" || a == change.key; });
  };
  const std::vector<SettingChange> changes = changes_between(found.info.settings, settings);
  std::vector<SettingChange> refused;
  std::string names;
  for (const SettingChange& change : changes) {
    if (is_allowed(change)) continue;
    refused.push_back(change);
    names += (names.empty() ? "" : ",") + change.key;
  }
  if (!refused.empty()) {
    throw CheckpointError(
        "cannot resume: " + found.path + " is of a run with other settings: " + to_string(refused),
        "give the same ones, or --resume-changes " + names + " to go on with these");
  }
  if (!changes.empty() && owns_loss()) log_warning("resuming with other settings: " + to_string(changes));
}

void Trainer::Impl::resume() {
  if (options.resume.empty()) return;
  std::vector<std::string> names;
  for (const HeldStage& h : stages->held()) {
    for (const auto& [name, tensor] : stage_state(*h.store, *h.rule)) names.push_back(name);
  }
  const Checkpoint opened =
      open_checkpoint_together(world.communicator, options.resume, names, options.checkpoint_deadline);
  const Checkpoint* found = &opened;
  check_changes(opened);
  const auto problem = together("loading " + opened.path, [&] {
    for (const HeldStage& h : stages->held()) {
      if (Problems problems = load_stage(opened, plan.model, *h.store, *h.rule); !problems.empty())
        throw CheckpointError(to_string(problems));
    }
  });
  if (problem) throw CheckpointError("cannot resume: " + problem->what);
  // In its own folder the run goes on; elsewhere a new one begins.
  std::error_code ignored;
  namespace fs = std::filesystem;
  const bool own = !options.output_dir.empty() && fs::weakly_canonical(opened.path, ignored).parent_path() ==
                                                      fs::weakly_canonical(checkpoints(), ignored);
  continues = broadcast_text(world.communicator, own ? "own" : "") == "own";
  if (continues) run = opened.info.run;
  parent = continues ? opened.info.parent : opened.info.run + " step " + std::to_string(opened.info.step);
  done = found->info.step;
  // A replicated stage of an asynchronous pipeline updates once for several minibatches.
  for (const HeldStage& h : stages->held()) {
    h.rule->set_updates(done / steps_per_update());
    h.store->set_current(VersionId(h.rule->updates()));
  }
  report.first_step = done;
  if (continues) report.saved_step = done;
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
}

void Trainer::Impl::evaluate() {
  const std::int64_t total = sources.evaluation.microbatches;
  if (total == 0) return;
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
  for (std::int64_t next = 0; next < total;) {
    // The incomplete last microbatch goes by itself: its messages are smaller.
    const std::int64_t chunk = next / kEvaluationChunk * kEvaluationChunk;
    const std::int64_t end = next < whole ? std::min(whole, chunk + kEvaluationChunk) : total;
    stages->set_samples(next < whole ? options.microbatch : static_cast<int>(last));
    stages->begin(shifted.by + chunk, 0);
    shifted_runner.run(evaluation_actions(plan, layout, static_cast<int>(next - chunk),
                                          static_cast<int>(end - chunk), world.communicator),
                       done, shifted.by + chunk, [](const Action&) {});
    next = end;
  }
  stages->set_samples(options.microbatch);
  stages->finish_sends();
  evaluated += total + kEvaluationChunk;
  stages->set_training(true);
  StageExecutor* last_stage = stages->last();
  if (!last_stage) return;
  last_stage->execute({.op = Op::Reduce, .stage = last_stage->stage(), .microbatch = MicrobatchId(0)});
  const LossSums sums = last_stage->take_losses();
  report.evaluations.push_back({.step = done,
                                .loss = sums.sample_loss / double(std::max<std::int64_t>(1, sums.samples)),
                                .top1 = double(sums.top1) / double(std::max<std::int64_t>(1, sums.samples)),
                                .top5 = double(sums.top5) / double(std::max<std::int64_t>(1, sums.samples)),
                                .samples = sums.samples});
  if (owns_loss()) log.print(report.evaluations.back());
}

/// By rank 0, before the others open their files: the folder becomes this run's.
void Trainer::Impl::take_folder() {
  const std::filesystem::path folder = options.output_dir;
  const auto require = [](const Status& status) {
    if (!status) throw ConfigError(to_string(status.problems()));
  };
  if (continues && options.overwrite) {
    throw ConfigError("--overwrite would delete " + options.resume + ", which --resume goes on from",
                      "leave one of them out, or give another --output-dir");
  }
  if (continues) {
    require(go_on_from(checkpoints(), run, done));
  } else if (options.overwrite) {
    require(remove_earlier_run(folder));
  } else {
    require(check_unused(folder));
  }
  remove_unfinished(folder);
  std::error_code ignored;
  std::filesystem::remove(folder / "summary.json", ignored);  // this run has none yet
  require(plan.save((folder / "plan.json").string()));
  if (options.schedule) {
    require(write_file_atomically(folder / "schedule.csv", options.schedule->text));
  } else {
    std::filesystem::remove(folder / "schedule.csv", ignored);
  }
}

void Trainer::Impl::open_files() {
  if (options.output_dir.empty()) return;
  const int rank = world.communicator.rank().value;
  auto problem = together("taking the output folder", [&] {
    if (rank == 0) take_folder();
  });
  if (problem) throw ConfigError(problem->what);
  problem = together("opening the logs", [&] {
    const std::filesystem::path folder = options.output_dir;
    status =
        StatusBoard(folder / ("status.rank" + std::to_string(rank) + ".json"), rank, first().stage.value);
    log = StepLog(
        folder, {.run = run, .rank = rank, .stage = first().stage.value, .ranks = world.communicator.size()},
        continues ? done : 0);
  });
  if (problem) throw ConfigError(problem->what);
  report.run = run;
}

/// On all ranks, or on none: nothing that holds NaN or Inf is written.
void Trainer::Impl::require_finite(const std::vector<StageTensors>& tensors) {
  if (!options.stop_on_nonfinite) return;
  const auto problem = together("looking for NaN", [&] {
    for (const StageTensors& part : tensors) {
      if (const std::string found = non_finite_in(part.tensors); !found.empty()) throw NumericError(found);
    }
  });
  if (problem) {
    throw NumericError("after step " + std::to_string(done) + " " + problem->what,
                       "lower --lr or add --warmup-steps");
  }
}

/// False if it could not be saved: training goes on, the run's end tells.
bool Trainer::Impl::checkpoint() {
  const TimePoint start = world.clock.now();
  const std::vector<StageTensors> state = my_state();
  require_finite(state);
  const auto problem = save_checkpoint(world.communicator, checkpoints().string(),
                                       {.run = run,
                                        .parent = parent,
                                        .model = plan.model,
                                        .step = done,
                                        .position = position_of(done),
                                        .updates = first().rule->updates(),
                                        .plan_fingerprint = plan.fingerprint(),
                                        .settings = settings},
                                       plan.num_stages(), state, {.deadline = options.checkpoint_deadline});
  if (problem) {
    ++report.failed_saves;
    unsaved_step = done;
    if (owns_loss()) {
      log_warning("checkpoint step=" + std::to_string(done) + " NOT saved: " + to_string(*problem) + ". " +
                  (report.saved_step < 0 ? "There is none yet"
                                         : "The last one is of step " + std::to_string(report.saved_step)));
    }
    return false;
  }
  report.saved_step = done;
  unsaved_step = -1;
  if (owns_loss()) {
    log_info("checkpoint step=" + std::to_string(done) +
             " seconds=" + std::to_string(Seconds(world.clock.now() - start).count()));
  }
  return true;
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
  if (options.save_weights.empty()) return;
  const auto weights = mine([](const HeldStage& h) { return stage_weights(*h.store); });
  require_finite(weights);
  const auto problem = save_weights(world.communicator, options.save_weights, plan.num_stages(), weights,
                                    options.checkpoint_deadline);
  if (!problem) return;
  report.lost.push_back("the weights (" + to_string(*problem) + ")");
  // What was trained is not thrown away while there is another place for it.
  if (!options.output_dir.empty() && report.saved_step != done) checkpoint();
}

/// What is missing on the disk, told to all ranks.
void Trainer::Impl::finish_files() {
  if (unsaved_step >= 0) {
    report.lost.push_back("the checkpoint of step " + std::to_string(unsaved_step));
    report.lost_checkpoint = true;
  }
  at::Tensor lines = at::full({1}, static_cast<double>(log.lost_lines()), at::kDouble);
  if (world.communicator.size() > 1 && !options.output_dir.empty())
    world.communicator.all_reduce(lines, "lost log lines")->wait();
  report.lost_log_lines = static_cast<std::int64_t>(*lines.const_data_ptr<double>());
  if (report.lost_log_lines > 0 && owns_loss())
    log_warning(std::to_string(report.lost_log_lines) + " line(s) of the steps' logs could not be written");
}

Trainer::Trainer(World world, LayeredModel model, Plan plan, TrainOptions options,
                 const MakeBatches& make_batches) {
  at::NoGradGuard no_grad;
  if (options.learning_rate.total_steps <= 1) options.learning_rate.total_steps = options.steps;
  if (Problems problems = validate(options.learning_rate); !problems.empty())
    throw ConfigError(to_string(problems));
  impl_ = std::make_unique<Impl>(world, model, std::move(plan), std::move(options));
  Impl& self = *impl_;
  self.agree_on_settings();
  self.claim_outputs();
  self.build(make_batches);
  self.resume();
  self.open_files();
}

Trainer::~Trainer() = default;

RunReport Trainer::run() {
  at::NoGradGuard no_grad;
  Impl& self = *impl_;
  try {
    self.run_training();
    self.finish_files();
  } catch (const Error& error) {
    self.write_trace();
    self.world.communicator.abort(error.what());
    if (error.code() != ExitCode::Numeric) throw;
    const std::int64_t saved = self.report.saved_step;
    throw NumericError(error.what(),
                       error.hint() + (saved < 0 ? "; no checkpoint was saved before it"
                                                 : "; the checkpoint of step " + std::to_string(saved) +
                                                       " is from before it"));
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
                         (self.updates_after_each() ? self.first().replicas : self.plan.microbatches);
  report.samples_per_s = report.median_step_s > 0 ? samples / report.median_step_s : 0;
  report.peak_stash = self.stages->peak_stash();
  report.peak_versions = self.stages->peak_versions();
  report.peak_memory_bytes = self.world.device.memory().peak;
  self.status.update(self.done, "done");
  return report;
}

}  // namespace millrace
