#include "runtime/train/trainer.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "runtime/base/failpoint.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/log.h"
#include "runtime/comm/nccl_communicator.h"
#include "runtime/train/evaluations.h"
#include "runtime/train/flushing_loop.h"
#include "runtime/train/job_batches.h"
#include "runtime/train/run_checkpoints.h"
#include "runtime/train/run_outputs.h"
#include "runtime/train/run_settings.h"
#include "runtime/train/step_reports.h"
#include "runtime/train/stream_loop.h"
#include "runtime/train/traffic.h"
#include "runtime/train/trainable.h"

namespace millrace {
namespace {

/// Without a flush, ranks are minibatches apart: as many as are in flight and as receives are posted ahead.
StopReach stop_reach(const Plan& plan, std::int64_t period) {
  if (!is_asynchronous(plan.schedule)) return {};
  std::size_t replicas = 1;
  for (const PlanStage& stage : plan.stages) replicas = std::max(replicas, stage.ranks.size());
  const int r = static_cast<int>(replicas), per_step = microbatches_per_step(plan);
  const int in_flight = plan.num_ranks() + 2 * r;
  return {.lag = in_flight / per_step + 1,
          .ahead = (in_flight + kReceivesAhead * r) / per_step + 1,
          .multiple = static_cast<int>(period)};
}

RankStagesOptions stage_options_of(const Training& t) {
  const TrainOptions& options = t.options;
  RankStagesOptions of_stages{.jobs = options.jobs,
                              .precision = options.precision,
                              .loss_scale = options.loss_scale,
                              .nonfinite = options.nonfinite,
                              .check_writes = options.check_writes,
                              .average_replicas = t.updates_after_each(),
                              .rate_by_replicas = options.rate_by_replicas};
  of_stages.executor.microbatches_per_update = microbatches_per_step(t.plan);
  of_stages.executor.bucket_bytes = options.bucket_bytes;
  // With several arrays the others continue: StepReports checks them together.
  of_stages.executor.stop_on_nonfinite = options.stop_on_nonfinite && t.num_arrays() == 1;
  of_stages.executor.sync_batch_norm = options.sync_batch_norm;
  of_stages.executor.masks = options.masks;
  of_stages.executor.marks_losses = options.phases;
  return of_stages;
}

/// Checks that all ranks have the same settings: ranks with different flags or data would mix two runs.
/// Returns the settings. Collective. Throws ConfigError.
Settings agree_on_settings(const Training& t) {
  const Settings settings = run_settings(t.model, t.plan, t.options);
  Settings all = settings;
  const Settings more = rank_settings(t.plan, t.options);
  all.insert(all.end(), more.begin(), more.end());
  const Settings first = settings_from(broadcast_text(t.world.communicator, to_text(all)));
  const std::vector<SettingChange> changes = changes_between(first, settings_from(to_text(all)));
  const auto problem = t.together("comparing the ranks' settings", [&] {
    if (!changes.empty())
      throw ConfigError("was started with other settings than rank 0: " + to_string(changes));
  });
  if (problem)
    throw ConfigError(to_string(*problem), "start all ranks with the same flags and the same data");
  return settings;
}

}  // namespace

/// A run on this rank, composed of its parts.
struct Trainer::Impl {
  Training training;
  StepReports reports{training};
  RunOutputs outputs{training};
  std::optional<Evaluations> evaluations;
  std::optional<RunCheckpoints> checkpoints;
  std::optional<FlushingLoop> flushing;  ///< one of the two loops, set at the first step
  std::optional<StreamLoop> stream;
  bool evaluated_last = false;  ///< after the steps done
  bool rested = false;          ///< the ranks are idle, and will not continue
  bool in_steps = false;        ///< the schedule runs: weights are those after some step

  Impl(World world, const std::vector<TrainedArray>& arrays, Plan plan, TrainOptions options)
      : training(world, arrays, std::move(plan), std::move(options)) {}

  void open(const std::vector<TrainedArray>& arrays, std::unique_ptr<WeightsScore> score);
  void open_sources(const std::vector<TrainedArray>& arrays);
  BatchSources batches_of(const TrainedArray& array, std::size_t first_job, const BatchNeeds& train,
                          const BatchNeeds& evaluation) const;
  std::int64_t next_event() const;
  bool saves_after(std::int64_t step) const;
  void run_to(std::int64_t step);
  void rest();
  bool evaluate();
  bool advance(std::int64_t most);
  void finish();
  void end_failed();
  void rescue();
  std::string nonfinite_input() const;
  NamedTensors weights();
};

void Trainer::Impl::open(const std::vector<TrainedArray>& arrays, std::unique_ptr<WeightsScore> score) {
  Training& t = training;
  refuse(training_problems(t.layouts, t.plan, t.options, score != nullptr, t.world.communicator.size()));
  Settings settings = agree_on_settings(t);
  outputs.claim();
  t.stages = std::make_unique<RankStages>(t.world.communicator, t.world.device, t.layouts, t.plan,
                                          stage_options_of(t));
  open_sources(arrays);
  t.stop = std::make_unique<StopVote>(t.world.communicator, t.options.stop, stop_reach(t.plan, t.cycle));
  evaluations.emplace(t, std::move(score));
  connect_ranks(t, evaluations->chunk());
  through_host(t.world.communicator, kAllMessages);
  checkpoints.emplace(t, outputs, *evaluations, arrays, std::move(settings));
  checkpoints->load();
  outputs.open();
  if (!t.options.output_dir.empty())
    reports.trace(
        trace_windows(std::max(t.options.trace_first, t.start), t.options.trace_count, t.last_step()));
}

void Trainer::Impl::open_sources(const std::vector<TrainedArray>& arrays) {
  Training& t = training;
  std::vector<std::pair<int, int>> readers;  // replica, replicas; of every array alike
  for (const HeldStage& h : t.stages->lanes().front().held()) {
    if (h.executor->program().reads_batch()) readers.emplace_back(h.replica, h.replicas);
  }
  const auto mine = [readers](std::int64_t microbatch) {
    return std::ranges::any_of(readers, [&](const auto& r) { return microbatch % r.second == r.first; });
  };
  const int per_step = microbatches_per_step(t.plan);
  const bool whole_run = t.updates_after_each();
  std::size_t first_job = 0;
  for (std::size_t array = 0; array < arrays.size(); ++array) {
    Lane& lane = t.stages->lanes()[array];
    BatchNeeds train{.fields = lane.fields()};
    train.spans = t.loader_spans;
    // Replicas are assigned round-robin from the run's first position, which the checkpoint specifies before
    // any batch is read.
    train.mine = [=, &t](std::int64_t position) {
      return mine(whole_run ? position - t.position_of(t.start) : position % per_step);
    };
    BatchNeeds evaluation = train;
    evaluation.spans = {};
    evaluation.mine = [=, this](std::int64_t position) { return mine(position % evaluations->chunk()); };
    t.sources.push_back(batches_of(arrays[array], first_job, train, evaluation));
    lane.set_extents(extents_of(*t.sources.back().train));
    first_job += static_cast<std::size_t>(t.layouts[array].model.jobs());
  }
}

/// Returns batches at the positions of the run: a job's own batches start where it joined.
BatchSources Trainer::Impl::batches_of(const TrainedArray& array, std::size_t first_job,
                                       const BatchNeeds& train, const BatchNeeds& evaluation) const {
  const auto begins_at = [&t = training, first_job](std::size_t job) {
    return t.position_of(t.job_steps.joined(first_job + job));
  };
  if (!array.of_jobs.empty())
    return batches_of_jobs(array.of_jobs, array.model.of_jobs.front().fields.size(), train, evaluation,
                           begins_at);
  BatchSources of_all = array.make_batches(train, evaluation);
  of_all.train = std::make_unique<ShiftedBatches>(std::move(of_all.train), [=] { return begins_at(0); });
  return of_all;
}

/// Returns the step after which the ranks pause next: to evaluate, to save, or at the end.
std::int64_t Trainer::Impl::next_event() const {
  const Training& t = training;
  std::int64_t next = std::min(t.job_steps.last(), evaluations->next_after(t.done));
  if (const std::int64_t every = t.options.checkpoint_every; every > 0)
    next = std::min(next, (t.done / every + 1) * every);
  return t.end_of_cycle(next);
}

bool Trainer::Impl::saves_after(std::int64_t step) const {
  return training.is_due(training.options.checkpoint_every, step) ||
         (step >= training.last_step() && training.options.checkpoint_at_end);
}

void Trainer::Impl::run_to(std::int64_t step) {
  Training& t = training;
  if (t.asynchronous() && !stream) {
    stream.emplace(t, reports, checkpoints->older_versions(), [this, &t](std::int64_t after) {
      return t.is_due(t.options.checkpoint_every, after) || evaluations->is_due(after) ||
             evaluations->scores_after(after);
    });
  } else if (!t.asynchronous() && !flushing) {
    flushing.emplace(t, reports);
  }
  reports.begin();
  in_steps = true;
  stream ? stream->run_to(step) : flushing->run_to(step);
  in_steps = false;
  t.report.stopped = t.done == t.limit();
}

void Trainer::Impl::rest() {
  if (stream) return stream->rest();
  through_host(training.world.communicator, kAllMessages);
  training.stages->pause(0);
}

/// Evaluates the weights after the completed steps, and keeps the best. Returns false if a stop was
/// requested.
bool Trainer::Impl::evaluate() {
  if (!evaluations->run()) return false;
  evaluations->begin_averages();
  if (evaluations->judge_evaluation()) checkpoints->save_best();
  return true;
}

/// Trains to the next event, or by `most` steps if that is less. Returns false if the run ends here.
bool Trainer::Impl::advance(std::int64_t most) {
  Training& t = training;
  RunReport& report = t.report;
  if (t.done >= t.last_step() || report.stopped || report.ended_by_metric()) return false;
  const TimePoint begin = t.world.clock.now();
  // The run that saved this step was stopped before its evaluation.
  if (evaluations->lacks(t.done) || evaluations->any_job_watches(t.done)) {
    rest();
    evaluated_last = evaluate();
    report.stopped = !evaluated_last;
    rested = report.stopped || report.ended_by_metric();
    if (rested) return true;
    t.stages->go_on();
  }
  run_to(std::min(next_event(), t.end_of_cycle(t.done + most)));
  report.stopped = report.stopped && t.done < t.last_step();
  evaluated_last = !report.stopped && evaluations->is_due(t.done);
  const bool saves = !report.stopped && saves_after(t.done);
  const bool scores = !report.stopped && evaluations->scores_after(t.done);
  if (evaluated_last || saves || scores) {
    TimePoint from = t.world.clock.now();
    const auto note = [&](SpanKind kind) {
      reports.paused(kind, from);
      from = t.world.clock.now();
    };
    rest();
    report.stopped = evaluated_last && !evaluate();
    if (evaluated_last) note(SpanKind::Eval);
    const auto score = [&] {
      if (!report.stopped && scores) report.stopped = !evaluations->run_score();
      if (!report.stopped && scores && evaluations->judge_score()) checkpoints->save_best();
      if (scores) note(SpanKind::Eval);
    };
    // A checkpoint records the score's result, so scoring precedes it.
    const bool scores_first = evaluations->judges_scores();
    if (scores_first) score();
    if (!report.stopped && saves) {
      if (t.world.failpoints) t.world.failpoints->reach("checkpoint", t.done);
      checkpoints->save();
      note(SpanKind::Checkpoint);
    }
    // Last, because it takes long: everything else is saved by then.
    if (!scores_first) score();
    rested = report.stopped || report.ended_by_metric();
    if (!rested) t.stages->go_on();
  }
  report.seconds += Seconds(t.world.clock.now() - begin).count();
  return true;
}

/// After the last step: does the last evaluation and the final saves.
void Trainer::Impl::finish() {
  Training& t = training;
  RunReport& report = t.report;
  t.stop->finish();
  if (t.world.failpoints) t.world.failpoints->reach("end", t.done);
  if (!rested) rest();
  rested = true;
  if (!report.stopped && !evaluated_last) {
    const TimePoint from = t.world.clock.now();
    report.stopped = !evaluations->run();
    if (!report.stopped && evaluations->judge_evaluation()) checkpoints->save_best();
    if (t.options.phases && t.sources.front().evaluation.microbatches > 0)
      reports.paused(SpanKind::Eval, from);
  }
  if (report.stopped) {
    const std::string step = "step " + std::to_string(t.done);
    if (t.owns_loss())
      log_warning(t.options.saves() ? "asked to stop: saving " + step + ", from which --resume goes on"
                                    : "asked to stop after " + step);
    if (t.options.saves()) checkpoints->save();
  } else {
    checkpoints->settle();
    if (report.ended_by_metric() && t.options.checkpoint_at_end && report.saved_step != t.done)
      checkpoints->save();
    checkpoints->save_final_weights();
  }
  checkpoints->finish();
  outputs.finish();
  reports.finish();
}

/// After a failure: ends the save in progress, and writes the trace.
void Trainer::Impl::end_failed() {
  try {
    if (checkpoints) checkpoints->settle();
  } catch (const std::exception& error) {
    log_warning(std::string("while the run failed: ") + error.what());
  }
  reports.write_trace();
}

/// After a lost peer: saves this rank's state, if the job will be restarted.
void Trainer::Impl::rescue() {
  if (!in_steps) return;
  try {
    checkpoints->rescue();
  } catch (const std::exception& error) {
    log_warning(std::string("what this rank has left cannot be saved: ") + error.what());
  }
}

/// Returns the sample of the current step with data that are not finite; empty: there is none. In pipelines
/// without a flush, and with several arrays, a stage may be ahead of the last completed step.
std::string Trainer::Impl::nonfinite_input() const {
  constexpr std::int64_t kMostAhead = 1000;
  const Training& t = training;
  const std::int64_t steps = t.asynchronous() || t.num_arrays() > 1 ? kMostAhead : 1;
  std::string found;
  for (std::size_t array = 0; in_steps && array < t.sources.size() && found.empty(); ++array)
    found = t.sources[array].train->nonfinite_sample(t.position_of(t.done), t.position_of(t.done + steps));
  return found;
}

NamedTensors Trainer::Impl::weights() {
  Training& t = training;
  if (t.is_one_of_several())
    throw ConfigError("the weights of a single job are asked for, and this run has several",
                      "TrainOptions::save_weights writes a file for each");
  const bool goes_on = !rested;
  if (goes_on) rest();
  t.stages->use_averages(true);
  NamedTensors all = evaluations->whole_weights();
  for (auto& [name, tensor] : all) tensor = tensor.clone();
  t.stages->use_averages(false);
  if (goes_on) t.stages->go_on();
  return all;
}

Trainer::Trainer(World world, LayeredModel model, Plan plan, TrainOptions options,
                 const MakeBatches& make_batches, std::unique_ptr<WeightsScore> score)
    : Trainer(world, std::vector<TrainedArray>{{std::move(model), make_batches}}, std::move(plan),
              std::move(options), std::move(score)) {}

Trainer::Trainer(World world, std::vector<TrainedArray> arrays, Plan plan, TrainOptions options,
                 std::unique_ptr<WeightsScore> score) {
  at::NoGradGuard no_grad;
  options.jobs = jobs_of(options);
  impl_ = std::make_unique<Impl>(world, arrays, std::move(plan), std::move(options));
  impl_->open(arrays, std::move(score));
}

Trainer::~Trainer() = default;

/// Records a failure and throws it. Only for exception handlers; `error` is the handled exception, unless it
/// is numeric.
void Trainer::fail(const Error& error) {
  Impl& self = *impl_;
  self.end_failed();
  if (error.code() == ExitCode::Peer) self.rescue();
  const std::string input = error.code() == ExitCode::Numeric ? self.nonfinite_input() : "";
  const std::string what = input.empty() ? error.what() : error.what() + ("; " + input);
  const std::string hint = input.empty() ? error.hint() : kRepairSample;
  self.outputs.note_failure(error.code(), what, hint);
  if (error.code() != ExitCode::Numeric) {
    self.outputs.log_end();
    throw;
  }
  const std::int64_t saved = self.training.report.saved_step;
  throw NumericError(
      what, hint + (saved < 0 ? "; no checkpoint was saved before it"
                              : "; the checkpoint of step " + std::to_string(saved) + " is from before it"));
}

/// Runs `work`. If it fails, writes the rank's trace, and reports the failure in the output folder and the
/// log.
template <class Work>
void Trainer::guarded(Work&& work) {
  at::NoGradGuard no_grad;
  Impl& self = *impl_;
  try {
    work();
  } catch (const AgreedNumericError& error) {
    Training& t = self.training;
    if (t.options.nonfinite.on != OnNonfinite::Rollback || t.options.host_folder) fail(error);
    self.checkpoints->settle();  // rollback may use a save in progress
    if (t.report.saved_step < 0) fail(error);
    if (t.done <= t.options.rolled_back_at)
      fail(NumericError(std::string(error.what()) + "; so it was before the run went back to step " +
                            std::to_string(t.report.first_step),
                        error.hint() + ", or give --on-nonfinite skip"));
    t.stop->finish();
    t.stages->finish_sends();
    throw RollbackError(error.what(), error.hint(), t.done, t.report.saved_step);
  } catch (const Error& error) {
    fail(error);
  } catch (...) {
    self.end_failed();
    self.outputs.note_failure(ExitCode::RunFailed, text_of_failure(), {});
    self.outputs.log_end();
    throw;
  }
}

bool Trainer::step() {
  bool more = false;
  guarded([&] { more = impl_->advance(1); });
  return more;
}

NamedTensors Trainer::weights() {
  NamedTensors all;
  guarded([&] { all = impl_->weights(); });
  return all;
}

std::int64_t Trainer::steps_done() const {
  return impl_->training.done;
}

const RunReport& Trainer::report() const {
  return impl_->training.report;
}

RunReport Trainer::run() {
  Impl& self = *impl_;
  Training& t = self.training;
  guarded([&] {
    while (self.advance(t.options.steps)) {
    }
    self.finish();
  });
  self.reports.ended();
  self.reports.write_trace();
  RunReport& report = t.report;
  if (t.waits) report.drawn_s = t.waits->drawn_s(), report.waited_s = t.waits->waited_s();
  report.peak_stash = t.stages->peak_stash();
  report.peak_versions = t.stages->peak_versions();
  report.peak_memory_bytes = t.world.device.memory().peak;
  report.device = t.world.device.name();
  if (t.jobs() == 1) report.loss_scale = t.loss_scale(0);
  if (const UpdateDecision& decision = t.stages->decision(); decision.skips_nonfinite() && t.jobs() == 1)
    report.skipped_steps = decision.jobs().front().skips;
  for (std::size_t job = 0; job < report.jobs.size(); ++job) report.jobs[job].loss_scale = t.loss_scale(job);
  t.status.update(t.done, "done");
  return report;
}

}  // namespace millrace
