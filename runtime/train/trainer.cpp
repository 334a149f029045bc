#include "runtime/train/trainer_impl.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <ATen/core/grad_mode.h>

#include "runtime/base/error.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/log.h"
#include "runtime/base/median.h"
#include "runtime/base/run_files.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/stash.h"
#include "runtime/device/host_memory.h"
#include "runtime/schedule/pair_order.h"
#include "runtime/stage/stage_program.h"
#include "runtime/train/trainable.h"

namespace millrace {

int microbatches_per_step(const Plan& plan) {
  return updates_after_each(plan.schedule) ? 1 : plan.microbatches;
}

namespace {

// The number of minibatches whose actions an asynchronous run lists at a time.
constexpr std::int64_t kFlowWindow = 256;
constexpr double kMostInStretch = 256;  // steps
std::vector<StageLayout> layouts_or_throw(const std::vector<TrainedArray>& arrays, const Plan& plan,
                                          const TrainOptions& options) {
  std::vector<StageLayout> layouts;
  for (const TrainedArray& array : arrays) {
    Result<StageLayout> layout = make_layout(array.model, plan, options.microbatch, options.precision);
    if (!layout) throw ConfigError(to_string(layout.problems()));
    layouts.push_back(*std::move(layout));
  }
  return layouts;
}

/// Returns a model that has the jobs of all arrays. It serves for their settings alone.
LayeredModel with_all_jobs(const std::vector<TrainedArray>& arrays) {
  LayeredModel all = arrays.front().model;
  if (arrays.size() == 1) return all;
  all.of_jobs.clear();
  for (const TrainedArray& array : arrays) {
    const std::vector<LayeredModel>& jobs = array.model.of_jobs;
    if (jobs.empty())
      all.of_jobs.push_back(array.model);
    else
      all.of_jobs.insert(all.of_jobs.end(), jobs.begin(), jobs.end());
  }
  return all;
}

/// Removes the losses of jobs that have ended.
void leave_out(const std::vector<char>& ended, LossSums& losses) {
  if (ended.empty()) return;
  for (std::size_t job = 0; job < ended.size(); ++job)
    if (ended[job]) losses.jobs[job].clear();
  losses.values = values_of_jobs(losses.jobs);
}

/// Returns how far ranks may be apart. Without a flush they are minibatches apart: as many as are in flight
/// and as receives are posted ahead.
StopReach stop_reach(const Plan& plan, std::int64_t period) {
  if (!is_asynchronous(plan.schedule)) return {};
  std::size_t replicas = 1;
  for (const PlanStage& stage : plan.stages) replicas = std::max(replicas, stage.ranks.size());
  const int r = static_cast<int>(replicas), per_step = microbatches_per_step(plan);
  const int in_flight = plan.num_ranks() + 2 * r;
  return {.lag = in_flight / per_step + 1,
          .ahead = (in_flight + RankRunner::kReceivesAhead * r) / per_step + 1,
          .multiple = static_cast<int>(period)};
}

/// Returns the schedule after proving that it ends and that every action is at its place. Throws ConfigError.
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

/// Returns the stages whose layers have running statistics. These layers also compute statistics of the
/// batch.
std::vector<StageId> stages_with_statistics(const StageLayout& layout) {
  std::vector<StageId> stages;
  for (int s = 0; s < layout.num_stages(); ++s) {
    const auto& layers = layout.layers[s];
    const bool any = std::ranges::any_of(layers, [&](int layer) {
      return std::ranges::any_of(layout.model.layers[layer].layer->parameters(), &ParameterSpec::is_buffer);
    });
    if (any) stages.emplace_back(s);
  }
  return stages;
}

/// Returns this rank's actions of one step. Throws ConfigError if the schedule cannot run.
std::vector<Action> actions_of_step(const Plan& plan, const StageLayout& layout, const Communicator& world,
                                    const TrainOptions& options, bool agrees_before_updates) {
  const PipelineShape shape = shape_of(plan, layout, 0);
  Schedule schedule = checked_schedule(plan, shape, world, options.schedule);
  if (options.sync_batch_norm) {
    const Problems problems =
        check_rounds(schedule, shape, transport_of(world), stages_with_statistics(layout));
    if (!problems.empty()) {
      throw ConfigError("--sync-batch-norm: the replicas cannot wait for each other at every microbatch of " +
                            to_string(plan.schedule) + ": " + to_string(problems),
                        "use --schedule gpipe, or equal replicas in all stages");
    }
  }
  std::vector<Action> actions = std::move(schedule.ranks[world.rank().value]);
  // Gradients of tied parameters go to their owners, and norms are agreed on, after all Reduces and before
  // all Updates. So Updates move to the end.
  if (!layout.ties.empty() || agrees_before_updates)
    std::ranges::stable_partition(actions, [](const Action& a) { return a.op != Op::Update; });
  return actions;
}

/// Returns the stream of actions after proving that it ends at any length and that every action is at its
/// place. Throws ConfigError.
ScheduleStream checked_stream(const Plan& plan, const PipelineShape& shape, const Communicator& world) {
  Result<ScheduleStream> stream = ScheduleStream::make(plan.schedule, shape, transport_of(world));
  if (!stream)
    throw ConfigError("schedule " + to_string(plan.schedule) +
                      " cannot run: " + to_string(stream.problems()));
  if (world.is_ordered()) {
    constexpr std::int64_t kPeriods = 8;
    Schedule part{.kind = plan.schedule};
    for (int r = 0; r < plan.num_ranks(); ++r) {
      std::vector<Action> actions = stream->actions(RankId(r), 0, kPeriods * stream->period());
      std::erase_if(actions,
                    [&](const Action& a) { return a.microbatch.value >= kPeriods * stream->period(); });
      part.ranks.push_back(std::move(actions));
    }
    if (const Problems problems = check_pair_order(part); !problems.empty())
      throw ConfigError(to_string(problems));
  }
  return *std::move(stream);
}

}  // namespace

LossSums joined(std::vector<LossSums> arrays) {
  if (arrays.size() == 1) return std::move(arrays.front());
  LossSums all{.weight = arrays.front().weight};
  for (LossSums& array : arrays) std::ranges::move(array.jobs, std::back_inserter(all.jobs));
  all.values = values_of_jobs(all.jobs);
  return all;
}

Trainer::Impl::Impl(World w, const std::vector<TrainedArray>& arrays, Plan p, TrainOptions o)
    : world(w),
      plan(std::move(p)),
      options(std::move(o)),
      layouts(layouts_or_throw(arrays, plan, options)),
      model(with_all_jobs(arrays)),
      job_steps(wanted_steps(options), asynchronous()) {
  if (updates_after_each()) round = shape_of(plan).round();
}

void Trainer::Impl::build(const std::vector<TrainedArray>& arrays) {
  RankStagesOptions stage_options;
  stage_options.jobs = options.jobs;
  stage_options.precision = options.precision;
  stage_options.loss_scale = options.loss_scale;
  stage_options.average_replicas = updates_after_each();
  stage_options.rate_by_replicas = options.rate_by_replicas;
  ExecutorOptions& executor = stage_options.executor;
  executor.microbatches_per_update = microbatches_per_step(plan);
  executor.bucket_bytes = options.bucket_bytes;
  // With several arrays, a loss that is not finite in one array does not end the others:
  // require_a_finite_loss() decides for all.
  executor.stop_on_nonfinite = options.stop_on_nonfinite && num_arrays() == 1;
  executor.sync_batch_norm = options.sync_batch_norm;
  executor.masks = options.masks;
  stages = std::make_unique<RankStages>(world.communicator, world.device, layouts, plan, stage_options);
  std::vector<std::pair<int, int>> readers;  // replica and number of replicas; the same in every array
  for (const HeldStage& h : stages->held()) {
    if (h.array == 0 && h.executor->reads_batch()) readers.emplace_back(h.replica, h.replicas);
  }
  const auto mine = [readers](std::int64_t microbatch) {
    return std::ranges::any_of(readers, [&](const auto& r) { return microbatch % r.second == r.first; });
  };
  const int per_step = microbatches_per_step(plan);
  const bool whole_run = updates_after_each();
  for (int array = 0; array < num_arrays(); ++array) {
    BatchNeeds train{.fields = stages->fields(array)};
    reads_own.push_back(!arrays[array].of_jobs.empty());
    choices.push_back(arrays[array].choices);
    // Replicas share the microbatches from the start of the run, which resume() sets before the first batch
    // is read.
    train.mine = [=, this](std::int64_t position) {
      return mine(whole_run ? position - position_of(start) : position % per_step);
    };
    BatchNeeds evaluation = train;
    evaluation.mine = [=, this](std::int64_t position) { return mine(position % evaluation_chunk); };
    sources.push_back(batches_of(arrays[array], array, train, evaluation));
    stages->set_extents(extents_of(*sources.back().train), array);
  }
  prepare_averaging();
  place_followers();
  stop = std::make_unique<StopVote>(world.communicator, options.stop, stop_reach(plan, round));
  evaluation_stop =
      std::make_unique<AnyRank>(world.communicator, "evaluation", 2 + plan.num_ranks() / kEvaluationPiece);
}

/// Makes the sources of an array, by positions of the run. A job that joined later reads its own positions
/// from the step at which it joined.
BatchSources Trainer::Impl::batches_of(const TrainedArray& array, int index, const BatchNeeds& train,
                                       const BatchNeeds& evaluation) const {
  std::size_t first = 0;
  for (int before = 0; before < index; ++before)
    first += static_cast<std::size_t>(layouts[before].model.jobs());
  const auto begins_at = [this, first](std::size_t job) {
    return position_of(job_steps.joined(first + job));
  };
  if (!array.of_jobs.empty())
    return batches_of_jobs(array.of_jobs, array.model.of_jobs.front().fields.size(), train, evaluation,
                           begins_at);
  BatchSources of_all = array.make_batches(train, evaluation);
  of_all.train = std::make_unique<ShiftedBatches>(std::move(of_all.train), [=] { return begins_at(0); });
  return of_all;
}

void Trainer::Impl::prepare_averaging() {
  for (std::size_t job = 0; job < job_steps.size(); ++job) {
    const double patience = value_of(options.jobs[job].rule, &RuleOptions::nonmonotone);
    averaging.emplace_back();
    if (patience == 0) continue;
    if (!evaluates()) {
      throw ConfigError("--nonmonotone waits for evaluations, and there are none during training",
                        "give --evaluate-every N, and data with a test split");
    }
    averaging.back().emplace(static_cast<std::size_t>(patience));
  }
}

/// Checks that a microbatch and the one that it follows are on the same replica of every stage, where the
/// states lie. Throws ConfigError. Also sets the size of evaluation schedules.
void Trainer::Impl::place_followers() {
  if (!carries()) return;
  const std::int64_t apart = sources.front().train->extent(position_of(1)).follows;
  for (const PlanStage& stage : plan.stages) {
    const auto replicas = static_cast<std::int64_t>(stage.ranks.size());
    const std::int64_t turn = asynchronous() ? replicas : microbatches_per_step(plan);
    if (replicas == 1 || apart % turn == 0) continue;
    throw ConfigError(
        "the windows of " + plan.model +
            " follow each other, and the replicas of a stage take turns: the state of one would "
            "be another's",
        "use a schedule that flushes, for example --schedule 1f1b, or no replicas");
  }
  for (std::int64_t p = 0; p < sources.front().evaluation.microbatches; ++p) {
    const std::int64_t between = sources.front().evaluation.batches->extent(p).follows;
    if (between == 0) continue;
    evaluation_chunk = static_cast<int>(between);
    break;
  }
}

/// Opens the stream of an asynchronous run. Nothing runs before flow_to().
void Trainer::Impl::open_flow() {
  const PipelineShape shape = shape_of(plan, layout(), 0);
  flow = Flow{.stream = checked_stream(plan, shape, world.communicator),
              .runner = std::make_unique<RankRunner>(runner_parts())};
  flow->runner->end_before(position_of(last_step() - start));
  for (const HeldStage& h : stages->held()) {
    h.executor->set_versions(version_rule(plan.schedule, shape, h.stage),
                             VersionId(h.store->current().value - older_versions), h.replica, h.replicas);
    h.executor->set_cuts([this](std::int64_t microbatch) {
      const int per_step = microbatches_per_step(plan);
      const std::int64_t step = start + microbatch / per_step;
      return microbatch % per_step == 0 && (is_due(options.checkpoint_every, step) ||
                                            (evaluates() && is_due(options.evaluate_every, step)) ||
                                            (scores() && is_due(options.score_every, step)));
    });
  }
  if (last_step() != options.steps && owns_loss())
    log_warning("--steps " + std::to_string(options.steps) + " ends within a round of " +
                std::to_string(round) + " minibatches, which the replicas share: the run ends after " +
                std::to_string(last_step()));
}

std::int64_t Trainer::Impl::next_event() const {
  std::int64_t next = job_steps.last();
  for (std::int64_t every : {options.checkpoint_every, evaluates() ? options.evaluate_every : 0,
                             scores() ? options.score_every : 0}) {
    if (every > 0) next = std::min(next, (done / every + 1) * every);
  }
  for (std::size_t job = 0; job < averaging.size(); ++job) {
    // A job that waits for evaluations has them at its own steps.
    if (!averaging[job] || averaging[job]->has_begun()) continue;
    const std::int64_t every = options.evaluate_every, own = done - job_steps.joined(job);
    if (const std::int64_t step = job_steps.joined(job) + (own / every + 1) * every; watches(job, step))
      next = std::min(next, step);
  }
  return end_of_round(next);
}

void Trainer::Impl::run_to(std::int64_t step) {
  stages->set_training(true);
  last_update = world.clock.now();
  cpu_at_last_update = process_cpu_seconds();
  asynchronous() ? flow_to(step) : step_to(step);
  report.stopped = done == limit();
}

/// Runs the flow up to `end` steps. It goes in windows without a pause between them, so that lists of actions
/// stay short.
void Trainer::Impl::flow_to(std::int64_t end) {
  if (!flow) open_flow();
  const std::int64_t period = flow->stream.period(), per_step = microbatches_per_step(plan);
  const std::int64_t window = std::max<std::int64_t>(1, kFlowWindow / period) * period;
  const RankId rank = world.communicator.rank();
  stages->set_learning_rate(rates(done));
  stages->begin(position_of(start));
  const std::int64_t last = (end - start) * per_step;
  for (std::int64_t from = (done - start) * per_step; from < last;) {
    const std::int64_t to = std::min(last, from + window);
    std::int64_t step = start + from / per_step;
    flow->runner->run(flow->stream.actions(rank, from, to), step, position_of(start), [&](const Action&) {
      on_update(*flow->runner, step);
      for (int i = 0; i < steps_per_update(); ++i) stop->completed(++step - start);
      stages->set_learning_rate(rates(step));
      if (limit() < last_step()) flow->runner->end_before(position_of(limit() - start));
    });
    from = to;
    done = std::min(start + to / per_step, limit());
    if (done == limit()) break;
  }
  if (done == limit() || done == last_step()) stages->finish_sends();
}

void Trainer::Impl::step_to(std::int64_t end) {
  if (!flushing) {
    flushing = Flushing{.turns = {}, .runner = std::make_unique<RankRunner>(runner_parts())};
    const auto add = [&](const StageLayout& one) {
      flushing->turns.push_back(
          actions_of_step(plan, one, world.communicator, options, stages->agrees_before_updates()));
    };
    if (layout().turns.empty()) add(layout());
    std::ranges::for_each(layout().turns, add);
  }
  while (done < end) {
    if (const std::vector<char> ended = job_steps.ended_at(done); ended != flushing->ended)
      go_on_without(ended);
    if (in_stretches()) {
      go_a_stretch(end);
      if (done == limit()) break;
      continue;
    }
    stages->set_learning_rate(rates(done));
    for (std::size_t turn = 0; turn < flushing->turns.size(); ++turn) {
      stages->set_turn(turn);
      stages->begin(position_of(done));
      flushing->runner->run(flushing->turns[turn], done, position_of(done), [&](const Action&) {
        if (turn + 1 == flushing->turns.size()) on_update(*flushing->runner, done);
      });
    }
    stages->set_turn(std::nullopt);
    ++done;
    stop->completed(done - start);
    if (done == limit()) break;
  }
  stages->finish_sends();
}

/// Tells whether arrays do several steps each before the next array goes on. Arrays on a single rank need not
/// alternate at each step: no other rank waits for them. An array that goes on finds its weights in the
/// caches.
bool Trainer::Impl::in_stretches() const {
  return num_arrays() > 1 && world.communicator.size() == 1 && flushing->turns.size() == 1 &&
         !stages->scales_loss();
}

/// Runs several steps of each array, one array after the other, and then logs the steps.
void Trainer::Impl::go_a_stretch(std::int64_t end) {
  // A traced step is a stretch of its own, because spans are kept for a short time only.
  std::int64_t to = std::min({end, limit(), done + (is_traced(done) ? 1 : flushing->stretch)});
  for (const TraceWindow& window : traced)
    if (window.first > done) to = std::min(to, window.first);
  for (std::size_t job = 0; job < job_steps.size(); ++job)
    if (!job_steps.has_ended(job, done)) to = std::min(to, job_steps.end(job));
  std::vector<Measured> steps(to - done);
  for (std::int64_t step = done; step < to; ++step) steps[step - done].lr = rates(step);
  RankRunner& runner = *flushing->runner;
  auto job = static_cast<std::ptrdiff_t>(0);  // the array's first job
  for (int array = 0; array < num_arrays(); ++array) {
    std::vector<Action> actions = flushing->turns.front();
    std::erase_if(actions, [&](const Action& action) { return array_of(action) != array; });
    const std::ptrdiff_t last_job = job + layouts[array].model.jobs();
    for (std::int64_t step = done; step < to; ++step) {
      Measured& all = steps[step - done];
      if (actions.empty()) {  // its jobs have ended
        all.losses.push_back(stages->take_losses(array));
        continue;
      }
      stages->set_learning_rate(all.lr);
      stages->begin(position_of(step), array);
      runner.run(actions, step, position_of(step), [&](const Action&) {
        const Measured own = measure(runner);
        all.seconds += own.seconds;
        all.cpu_s += own.cpu_s;
        all.times += own.times;
        all.losses.push_back(stages->take_losses(array));
        all.gradient_norms.resize(own.gradient_norms.size(), -1);
        std::copy(own.gradient_norms.begin() + job, own.gradient_norms.begin() + last_job,
                  all.gradient_norms.begin() + job);
      });
    }
    job = last_job;
  }
  double seconds = 0;
  for (const Measured& step : steps) seconds += step.seconds;
  // Steps are logged as if all arrays had done one step after the other. A step ends so many seconds after
  // the step before as it took in all arrays together.
  TimePoint ended = last_update - std::chrono::duration_cast<TimePoint::duration>(Seconds(seconds));
  for (Measured& step : steps) {
    ended += std::chrono::duration_cast<TimePoint::duration>(Seconds(step.seconds));
    step.ended = ended;
    log_step(done++, std::move(step));
  }
  stop->completed(done - start);
  const double of_a_step = seconds / static_cast<double>(steps.size());
  flushing->stretch =
      static_cast<std::int64_t>(std::clamp(options.stretch_s / of_a_step, 1., kMostInStretch));
}

/// Takes the jobs that have ended out of the steps that follow. Where other jobs of an array go on, the ended
/// ones are computed but their weights stay. An array all of whose jobs have ended leaves the pipeline, on
/// all ranks.
void Trainer::Impl::go_on_without(const std::vector<char>& ended) {
  flushing->ended = ended;
  stages->set_ended(ended);
  std::vector<char> left;  // by array
  auto first = ended.begin();
  for (const StageLayout& array : layouts) {
    const auto end = first + array.model.jobs();
    left.push_back(std::find(first, end, 0) == end);
    first = end;
  }
  if (num_arrays() == 1) return;
  for (std::vector<Action>& actions : flushing->turns) {
    std::erase_if(actions, [&](const Action& action) { return left[array_of(action)] != 0; });
  }
}

/// Brings the ranks to rest after `done` steps. An asynchronous pipeline stays full: what is in flight is put
/// aside. Weights and running statistics are then those of `done` minibatches, as if nothing else had begun.
void Trainer::Impl::rest() {
  if (flow) {
    const std::int64_t cut = (done - start) * microbatches_per_step(plan);
    const bool full = done < std::min(limit(), last_step());
    for (const Action& a :
         full ? flow->stream.under_way(world.communicator.rank(), cut) : std::vector<Action>()) {
      if (a.microbatch.value < (std::min(limit(), last_step()) - start) * microbatches_per_step(plan))
        stages->executor(a.stage).post_receive(a);
    }
    stages->pause(cut);
  } else {
    stages->pause(0);
  }
}

/// Returns the measurements since the previous call.
Trainer::Impl::Measured Trainer::Impl::measure(RankRunner& runner) {
  const TimePoint now = world.clock.now();
  const double cpu_now = process_cpu_seconds();
  return {.seconds = Seconds(now - std::exchange(last_update, now)).count(),
          .cpu_s = cpu_now - std::exchange(cpu_at_last_update, cpu_now),
          .ended = now,
          .times = runner.take_times(),
          .gradient_norms = stages->gradient_norms()};
}

void Trainer::Impl::on_update(RankRunner& runner, std::int64_t step) {
  Measured measured = measure(runner);
  measured.lr = rates(step);
  if (stages->last()) measured.losses = take_losses();
  log_step(step, std::move(measured));
}

void Trainer::Impl::log_step(std::int64_t step, Measured measured) {
  const double seconds = measured.seconds;
  const int steps = steps_per_update();  // steps of the run: the other replicas had theirs
  step_seconds.push_back(seconds / steps);
  report.steps += steps;
  std::int64_t samples = 0;  // the samples of a job on all replicas; an epoch's last step may have fewer
  for (std::int64_t p = position_of(step); p < position_of(step + steps); ++p)
    samples += sources.front().train->extent(p).samples;
  samples_per_s.push_back(double(samples) / seconds);
  const std::int64_t newest = step + steps - 1;
  StepRecord record{.step = newest,
                    .times = measured.times,
                    .step_s = seconds,
                    .ended_s = Seconds(measured.ended.time_since_epoch()).count(),
                    .cpu_s = measured.cpu_s,
                    .samples_per_s = samples_per_s.back(),
                    .lr = std::move(measured.lr),
                    .gradient_norms = std::move(measured.gradient_norms),
                    .peak_memory_bytes = world.device.memory().peak,
                    .resident_memory_bytes = peak_resident_bytes(),
                    .weight_versions = stages->peak_versions(),
                    .stashed = stages->peak_stash()};
  if (stages->scales_loss()) {
    record.loss_scales = stages->last_loss_scales();
    record.skipped = stages->skipped_last();
  }
  for (std::size_t job = 0; job_steps.apart() && job < job_steps.size(); ++job)
    record.own_steps.push_back(newest - job_steps.joined(job));
  record.ended = job_steps.ended_at(step);
  if (stages->last()) {
    record.losses = joined(std::move(measured.losses));
    leave_out(record.ended, *record.losses);
    require_a_finite_loss(*record.losses, newest);
    report.losses.push_back(record.losses->mean_loss());
    const std::vector<NamedValues>& losses = record.losses->jobs;
    if (report.jobs.empty() && is_one_of_several()) {
      for (std::size_t job = 0; job < losses.size(); ++job)
        report.jobs.push_back({.first_step = job_steps.own(job, start)});
    }
    for (std::size_t job = 0; job < report.jobs.size(); ++job) {
      report.jobs[job].steps = job_steps.own(job, newest + 1);
      if (losses[job].empty()) continue;  // it has ended
      const std::int64_t own = newest - job_steps.joined(job);
      const double loss = losses[job].front().second;
      report.jobs[job].losses.push_back(loss);
      // A skipped update has left the weights unchanged.
      const bool skipped = !record.skipped.empty() && record.skipped[job];
      if (std::isfinite(loss) || skipped || report.jobs[job].nonfinite_step >= 0) continue;
      report.jobs[job].nonfinite_step = own;
      if (owns_loss())
        log_warning("job " + std::to_string(first_job() + static_cast<int>(job)) + ": the loss of its step " +
                    std::to_string(own) + " is " + std::to_string(loss) + "; the other jobs go on");
    }
  }
  log.write(record);
  if (is_traced(step)) {
    // Only one step's spans are kept, so that the trace does not slow down what it shows.
    for (const Span& span : trace.spans_from(step)) {
      if (span.step == step) window.push_back(span);
    }
  }
  const bool prints = std::ranges::count(record.skipped, 1) > 0 || newest + 1 == last_step() ||
                      (newest + 1) / options.print_every > step / options.print_every;
  if (owns_loss() && prints) log.print(record, last_step());
}

/// Returns the losses of each array. Only the rank that has the last stage may call it.
std::vector<LossSums> Trainer::Impl::take_losses() {
  std::vector<LossSums> losses;
  for (int array = 0; array < num_arrays(); ++array) losses.push_back(stages->take_losses(array));
  return losses;
}

/// Throws NumericError if the run has several arrays and no job has a finite loss any more.
void Trainer::Impl::require_a_finite_loss(const LossSums& losses, std::int64_t step) const {
  const auto finite = [](const NamedValues& job) { return job.empty() || std::isfinite(job.front().second); };
  if (!options.stop_on_nonfinite || stages->scales_loss() || num_arrays() == 1 ||
      std::ranges::any_of(losses.jobs, finite))
    return;
  throw NumericError("step " + std::to_string(step) + ": the loss of every job is NaN or infinite",
                     "lower --lr or add --warmup-steps");
}

/// Adds a span for the work between two traced steps, which neither step's time includes.
void Trainer::Impl::trace_pause(SpanKind kind, TimePoint from) {
  if (!is_traced(done - 1)) return;
  window.push_back({.kind = kind,
                    .step = done - 1,
                    .start = from.time_since_epoch().count(),
                    .end = world.clock.now().time_since_epoch().count()});
}

void Trainer::Impl::write_trace() {
  if (options.output_dir.empty() || window.empty()) return;
  const auto path =
      std::filesystem::path(options.output_dir) / run_files::kTrace.of(world.communicator.rank().value);
  if (Status status = write_file_atomically(path, spans_to_json(window)); !status)
    log_warning(to_string(status.problems()));
}

/// Trains to the next event, or by `most` steps if that is less. Returns false if the run ends here.
bool Trainer::Impl::advance(std::int64_t most) {
  if (done >= last_step() || report.stopped || report.reached_target) return false;
  const TimePoint start_time = world.clock.now();
  if (any_watches(done)) {  // the run that saved this step was asked to stop before the step's evaluation
    rest();
    report.stopped = rested = !evaluate();
    if (report.stopped) return true;
    watch_evaluation();
    stages->go_on();
  }
  run_to(std::min(next_event(), end_of_round(done + most)));
  const bool at_end = done >= last_step();
  report.stopped = report.stopped && !at_end;
  evaluated_last = !report.stopped && evaluation_due(done);
  const bool saves =
      !report.stopped && (is_due(options.checkpoint_every, done) || (at_end && options.checkpoint_at_end));
  const bool scored = !report.stopped && scores() && is_due(options.score_every, done);
  if (evaluated_last || saves || scored) {
    const TimePoint paused = world.clock.now();
    rest();
    report.stopped = evaluated_last && !evaluate();
    if (!report.stopped && evaluated_last) watch_evaluation();
    if (!report.stopped && saves) checkpoint();
    // The score comes last because it takes long: all else is safe by then.
    if (!report.stopped && scored) report.stopped = !score_weights();
    trace_pause(evaluated_last || scored ? SpanKind::Eval : SpanKind::Checkpoint, paused);
    rested = report.stopped || report.reached_target;
    if (!rested) stages->go_on();
  }
  report.seconds += Seconds(world.clock.now() - start_time).count();
  return true;
}

void Trainer::Impl::run_training() {
  while (advance(options.steps)) {
  }
  stop->finish();
  if (!rested) rest();
  if (!report.stopped && !evaluated_last) report.stopped = !evaluate();
  if (report.stopped) {
    if (owns_loss()) log_warning("asked to stop: saving step " + std::to_string(done));
    if (!options.output_dir.empty()) checkpoint();
    return;
  }
  if (report.reached_target && options.checkpoint_at_end && report.saved_step != done) checkpoint();
  save_final_weights();
}

Trainer::Trainer(World world, LayeredModel model, Plan plan, TrainOptions options,
                 const MakeBatches& make_batches, std::unique_ptr<WeightsScore> score)
    : Trainer(world, std::vector<TrainedArray>{{std::move(model), make_batches}}, std::move(plan),
              std::move(options), std::move(score)) {}

Trainer::Trainer(World world, std::vector<TrainedArray> arrays, Plan plan, TrainOptions options,
                 std::unique_ptr<WeightsScore> score) {
  at::NoGradGuard no_grad;
  if (options.jobs.empty())  // a single job, which the run's options describe
    options.jobs.push_back({.seed = options.seed,
                            .rule = options.rule,
                            .clip = options.clip,
                            .learning_rate = options.learning_rate,
                            .settings = options.settings});
  for (JobOptions& job : options.jobs) {
    if (job.learning_rate.total_steps <= 1) job.learning_rate.total_steps = job.steps.value_or(options.steps);
  }
  impl_ = std::make_unique<Impl>(world, arrays, std::move(plan), std::move(options));
  Impl& self = *impl_;
  self.score = std::move(score);
  refuse(training_problems(self.layouts, self.plan, self.options, self.score != nullptr,
                           world.communicator.size()));
  self.agree_on_settings();
  self.claim_outputs();
  self.build(arrays);
  if (self.options.resume.empty()) self.take_initial_weights();
  self.resume();
  self.open_files();
}

Trainer::~Trainer() = default;

/// Logs the last words of a failed rank: which rank failed before it, and where to go on. Under a launcher it
/// logs nothing, as the launcher says both for all ranks.
void Trainer::Impl::log_end() const {
  if (options.launcher != 0 || options.output_dir.empty()) return;
  if (const auto first = failure_of(options.output_dir);
      first && first->rank != world.communicator.rank().value)
    log_error("rank " + std::to_string(first->rank) + " failed before: " + first->error);
  log_error("this rank ends after step " + std::to_string(done) +
            (report.saved_step < 0
                 ? "; no checkpoint was saved (--checkpoint-every N saves them)"
                 : "; the newest checkpoint is of step " + std::to_string(report.saved_step) + ": --resume " +
                       options.output_dir));
}

/// Writes the failure for readers of the output folder. A stop is no failure.
void Trainer::Impl::note_failure(ExitCode code, const std::string& error, const std::string& hint) const {
  if (options.output_dir.empty() || code == ExitCode::Requeue) return;
  write_failure(options.output_dir, {.rank = world.communicator.rank().value,
                                     .step = done,
                                     .exit_code = static_cast<int>(code),
                                     .error = error,
                                     .hint = hint});
}

/// Runs `work`. If it fails, notes the failure in the output folder and logs it, then throws on.
template <class Work>
void Trainer::guarded(Work&& work) {
  at::NoGradGuard no_grad;
  Impl& self = *impl_;
  try {
    work();
  } catch (const Error& error) {
    self.write_trace();
    self.note_failure(error.code(), error.what(), error.hint());
    if (error.code() != ExitCode::Numeric) {
      self.log_end();
      throw;
    }
    const std::int64_t saved = self.report.saved_step;
    throw NumericError(error.what(),
                       error.hint() + (saved < 0 ? "; no checkpoint was saved before it"
                                                 : "; the checkpoint of step " + std::to_string(saved) +
                                                       " is from before it"));
  } catch (...) {
    self.write_trace();
    self.note_failure(ExitCode::RunFailed, text_of_failure(), {});
    self.log_end();
    throw;
  }
}

bool Trainer::step() {
  bool more = false;
  guarded([&] { more = impl_->advance(1); });
  return more;
}

std::int64_t Trainer::steps_done() const {
  return impl_->done;
}

const RunReport& Trainer::report() const {
  return impl_->report;
}

RunReport Trainer::run() {
  Impl& self = *impl_;
  guarded([&] {
    self.run_training();
    self.finish_files();
  });
  self.write_trace();
  RunReport& report = self.report;
  const auto after_first = [](const std::vector<double>& values) {
    return median({values.begin() + (values.size() > 1), values.end()});
  };
  report.median_step_s = after_first(self.step_seconds);
  report.samples_per_s = after_first(self.samples_per_s);
  report.peak_stash = self.stages->peak_stash();
  report.peak_versions = self.stages->peak_versions();
  report.peak_memory_bytes = self.world.device.memory().peak;
  if (self.jobs() == 1) report.loss_scale = self.loss_scale(0);
  for (std::size_t job = 0; job < report.jobs.size(); ++job)
    report.jobs[job].loss_scale = self.loss_scale(job);
  self.status.update(self.done, "done");
  return report;
}

}  // namespace millrace
