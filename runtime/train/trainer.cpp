#include "runtime/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/median.h"
#include "runtime/base/run_files.h"
#include "runtime/checkpoint/carried.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/checkpoint/stash.h"
#include "runtime/device/host_memory.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/layers/job_array.h"
#include "runtime/rules/averaging_trigger.h"
#include "runtime/schedule/pair_order.h"
#include "runtime/schedule/schedule_stream.h"
#include "runtime/stage/stage_program.h"
#include "runtime/train/job_batches.h"
#include "runtime/train/run_settings.h"
#include "runtime/train/step_log.h"

namespace millrace {

std::string file_of_job(const std::string& path, int job) {
  std::filesystem::path file = path;
  const std::string ending = file.extension().string();
  return file.replace_extension().string() + ".job" + std::to_string(job) + ending;
}

int microbatches_per_step(const Plan& plan) {
  return updates_after_each(plan.schedule) ? 1 : plan.microbatches;
}

namespace {

// Microbatches of one evaluation schedule: bounds what a fast first stage can pile up in sends. Where
// microbatches follow others, as many as lie between them (place_followers).
constexpr int kEvaluationChunk = 16;
// Of those, so many go between two looks at the stop flag.
constexpr int kEvaluationPiece = 4;
// Minibatches of the lists that an asynchronous run makes at a time.
constexpr std::int64_t kFlowWindow = 256;
constexpr double kMostInStretch = 256;  // steps
// Positions of evaluations lie above all training positions, so that message tags never meet.
constexpr std::int64_t kEvaluationPosition = std::int64_t{1} << 36;

void require(const Status& status) {
  if (!status) throw ConfigError(to_string(status.problems()));
}

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

/// The jobs of all arrays as those of one, for their settings.
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

/// What the last stages of all arrays say, as one array's would.
LossSums joined(std::vector<LossSums> arrays) {
  if (arrays.size() == 1) return std::move(arrays.front());
  LossSums all{.weight = arrays.front().weight};
  for (LossSums& array : arrays) {
    if (array.jobs.empty())
      all.jobs.push_back(std::move(array.values));
    else
      std::ranges::move(array.jobs, std::back_inserter(all.jobs));
  }
  all.values = values_of_jobs(all.jobs);
  return all;
}

/// Of jobs that have ended nothing is said.
void leave_out(const std::vector<char>& ended, LossSums& losses) {
  if (ended.empty() || losses.jobs.empty()) return;
  for (std::size_t job = 0; job < ended.size(); ++job)
    if (ended[job]) losses.jobs[job].clear();
  losses.values = values_of_jobs(losses.jobs);
}

/// Without a flush ranks are minibatches apart: as many as are in flight and as receives are posted ahead.
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

/// Stages whose layers have running statistics, hence statistics of the batch.
std::vector<StageId> stages_with_statistics(const StageLayout& layout) {
  std::vector<StageId> stages;
  for (int s = 0; s < layout.num_stages(); ++s) {
    const auto& layers = layout.layers[static_cast<std::size_t>(s)];
    const bool any = std::ranges::any_of(layers, [&](int layer) {
      return std::ranges::any_of(layout.model.layers[static_cast<std::size_t>(layer)].layer->parameters(),
                                 &ParameterSpec::is_buffer);
    });
    if (any) stages.emplace_back(s);
  }
  return stages;
}

/// This rank's actions of one step.
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
  std::vector<Action> actions = std::move(schedule.ranks[static_cast<std::size_t>(world.rank().value)]);
  // After all Reduces and before all Updates gradients of tied parameters go to their owners, and norms are
  // agreed on.
  if (!layout.ties.empty() || agrees_before_updates)
    std::ranges::stable_partition(actions, [](const Action& a) { return a.op != Op::Update; });
  return actions;
}

/// Proved to end at any length, with every action at its place. Throws ConfigError.
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

/// This rank's forwards of microbatches [from, to).
std::vector<Action> evaluation_actions(const Plan& plan, const StageLayout& layout, int from, int to,
                                       const Communicator& world) {
  std::vector<Action> actions = std::move(forward_schedule(shape_of(plan, layout, to), transport_of(world))
                                              .ranks[static_cast<std::size_t>(world.rank().value)]);
  std::erase_if(actions, [from](const Action& a) { return a.microbatch.value < from; });
  return actions;
}

}  // namespace

struct Trainer::Impl {
  World world;
  Plan plan;
  TrainOptions options;
  std::vector<StageLayout> layouts;  // by array
  LayeredModel model;                // of all jobs
  std::int64_t round =
      1;  ///< steps in which every replica has its turn as often: all events come after whole ones
  std::unique_ptr<RankStages> stages;
  std::vector<BatchSources> sources;  // by array
  std::vector<char> reads_own;        // by array: each of its jobs has batches of its own
  std::unique_ptr<WeightsScore> score;
  SpanRing trace;
  StatusBoard status;
  StepLog log;
  RunReport report;
  /// Of a step, before it is logged.
  struct Measured {
    double seconds = 0, cpu_s = 0;
    TimePoint ended{};
    std::vector<double> lr{};  // by job
    StepTimes times{};
    std::vector<double> gradient_norms{};  // by job
    std::vector<LossSums> losses{};        // by array; of the last stage
  };
  std::vector<double> step_seconds, samples_per_s;  // by update
  std::vector<Span> window;
  TimePoint last_update{};
  double cpu_at_last_update = 0;
  std::int64_t done = 0;  // steps, counted over resumes
  std::int64_t evaluated = 0;
  std::unique_ptr<StopVote> stop;
  /// An asynchronous run, filled once and drained once. Its microbatches count from `start`.
  struct Flow {
    ScheduleStream stream;
    std::unique_ptr<RankRunner> runner;
  };
  std::optional<Flow> flow;
  /// Any other run: the same actions for every step, one list for each turn.
  struct Flushing {
    std::vector<std::vector<Action>> turns;
    std::unique_ptr<RankRunner> runner;
    std::vector<char> ended{};  ///< jobs that the actions do without; empty: none
    std::int64_t stretch = 1;   ///< steps, where arrays take their turns in_stretches()
  };
  std::optional<Flushing> flushing;
  std::int64_t start = 0;                               // steps done when this run began
  std::vector<std::int64_t> joined_at;                  // by job: at which step of the run its own begin
  std::vector<std::optional<std::int64_t>> ended_with;  // by job: its own steps, if it ended before this run
  /// Before the current one: the first forwards use them, as they did in the run that saved them.
  std::int64_t older_versions = 0;
  RunLock lock;                    // of rank 0
  std::string run, parent;         // see CheckpointInfo
  bool evaluated_last = false;     // after the steps done
  bool rested = false;             // and will not go on
  bool continues = false;          // in the folder of the run that it resumes
  std::int64_t unsaved_step = -1;  // of the last save, if it failed
  Settings settings;
  /// In the evaluation; its lag also bounds how far a fast first stage runs ahead of the others.
  std::unique_ptr<AnyRank> evaluation_stop;
  int evaluation_chunk = kEvaluationChunk;
  std::vector<std::optional<AveragingTrigger>> averaging;  // by job: of those that wait for evaluations

  Impl(World w, const std::vector<TrainedArray>& arrays, Plan p, TrainOptions o)
      : world(w),
        plan(std::move(p)),
        options(std::move(o)),
        layouts(layouts_or_throw(arrays, plan, options)),
        model(with_all_jobs(arrays)) {
    if (updates_after_each()) round = shape_of(plan).round();
    joined_at.assign(static_cast<std::size_t>(jobs()), 0);
    ended_with.resize(joined_at.size());
  }

  const StageLayout& layout() const { return layouts.front(); }
  int num_arrays() const { return static_cast<int>(layouts.size()); }
  /// Of several.
  int array_of(const Action& action) const {
    return static_cast<int>(action.microbatch.value / plan.microbatches);
  }
  RunnerParts runner_parts() {
    RunnerParts parts{*stages, {}, world.clock, trace, status, world.device, steps_per_update()};
    for (const BatchSources& of_array : sources) parts.batches.push_back(of_array.train.get());
    if (num_arrays() > 1) parts.of_each_array = plan.microbatches;
    return parts;
  }

  std::optional<LossScaleState> loss_scale(std::size_t job) const {
    if (!stages->scales_loss()) return std::nullopt;
    return stages->loss_scalers()[job].state();
  }
  bool asynchronous() const { return is_asynchronous(plan.schedule); }
  /// PipeDream: a step is a minibatch, and replicas average over one each.
  bool updates_after_each() const { return millrace::updates_after_each(plan.schedule); }
  const HeldStage& first() const { return stages->held().front(); }
  /// Steps of the job per Update of this rank's stages.
  int steps_per_update() const { return updates_after_each() ? first().replicas : 1; }
  bool owns_loss() const { return stages->owns_loss(); }
  void use_extents_of(const BatchSource& source, int array) const {
    stages->set_extents([&source](std::int64_t position) { return source.extent(position); }, array);
  }
  int jobs() const { return model.jobs(); }
  /// TrainOptions::rate_per_length: what the rates of an array are multiplied with.
  double length_share(std::int64_t step, int array) const {
    if (options.rate_per_length == 0) return 1;
    const BatchExtent extent = sources[static_cast<std::size_t>(array)].train->extent(position_of(step));
    return double(extent.lengths.at(0)) / double(options.rate_per_length);
  }
  /// Among all jobs that are trained: TrainOptions::first_job.
  int first_job() const { return options.first_job.value_or(0); }
  bool is_one_of_several() const { return jobs() > 1 || options.first_job; }
  /// Of step `step`, by job.
  std::vector<double> rates(std::int64_t step) const {
    if (options.jobs.empty()) return {length_share(step, 0) * learning_rate(options.learning_rate, step)};
    std::vector<double> result;
    for (int array = 0; array < num_arrays(); ++array) {
      const double share = length_share(step, array);
      for (int b = layouts[static_cast<std::size_t>(array)].model.jobs(); b > 0; --b) {
        const std::size_t job = result.size();
        result.push_back(share * learning_rate(options.jobs[job].learning_rate, step - joined_at[job]));
      }
    }
    return result;
  }

  /// Steps of a job's own that it is to do, and that it has done after `step` of the run.
  std::int64_t steps_of(std::size_t job) const {
    return options.jobs.empty() ? options.steps : options.jobs[job].steps.value_or(options.steps);
  }
  std::int64_t own_steps(std::size_t job, std::int64_t step) const {
    if (ended_with[job]) return *ended_with[job];
    if (asynchronous()) return step - joined_at[job];  // all end together, after a whole round
    return std::min(step - joined_at[job], std::max(steps_of(job), start - joined_at[job]));
  }
  bool has_ended(std::size_t job, std::int64_t step) const {
    return ended_with[job] || (!asynchronous() && step - joined_at[job] >= steps_of(job));
  }
  /// Of the run: when its last job has done its own.
  std::int64_t steps_of_all() const {
    std::int64_t last = 0;
    for (std::size_t job = 0; job < joined_at.size(); ++job)
      if (!ended_with[job]) last = std::max(last, joined_at[job] + steps_of(job));
    return last;
  }
  /// By job; empty if no job has ended.
  std::vector<char> ended_at(std::int64_t step) const {
    std::vector<char> ended;
    for (std::size_t job = 0; job < joined_at.size(); ++job) ended.push_back(has_ended(job, step));
    if (std::ranges::find(ended, 1) == ended.end()) ended.clear();
    return ended;
  }
  bool at_different_steps() const {
    return std::ranges::any_of(joined_at, [](std::int64_t at) { return at != 0; });
  }
  /// What a checkpoint of this moment says of the jobs: nothing where all have come as far as the run, and
  /// none waits for evaluations.
  std::vector<JobProgress> progress() const {
    std::vector<JobProgress> all;
    for (std::size_t job = 0; job < joined_at.size(); ++job) {
      const std::int64_t own = own_steps(job, done);
      all.push_back({.step = own,
                     .position = position_of(own),
                     .updates = own,
                     .averaging = waiting(job),
                     .loss_scale = loss_scale(job)});
    }
    const bool alike = std::ranges::all_of(
        all, [&](const JobProgress& job) { return job.step == done && !job.has_state(); });
    return alike || jobs() == 1 ? std::vector<JobProgress>() : all;
  }
  std::optional<AveragingState> waiting(std::size_t job) const {
    if (!averaging[job]) return std::nullopt;
    return averaging[job]->state();
  }
  std::int64_t position_of(std::int64_t step) const { return step * microbatches_per_step(plan); }
  /// `step`, or the first one after it that ends a round.
  std::int64_t end_of_round(std::int64_t step) const {
    return start + (step - start + round - 1) / round * round;
  }
  std::int64_t last_step() const { return end_of_round(steps_of_all()); }
  std::int64_t limit() const {
    return stop->limit() == StopVote::kNever ? StopVote::kNever : start + stop->limit();
  }
  bool scores() const { return score && options.score_every > 0; }
  bool evaluates() const { return sources.front().evaluation.microbatches > 0 && options.evaluate_every > 0; }
  bool is_due(std::int64_t every, std::int64_t step) const {
    return every > 0 && step > start && step / every > (step - round) / every;
  }
  /// Whether averages of the job begin by the evaluation after `step`: by those that its own run has, unless
  /// it has seen this one.
  bool watches(std::size_t job, std::int64_t step) const {
    const std::int64_t own = step - joined_at[job];
    return averaging[job] && !averaging[job]->has_begun() && !ended_with[job] && own <= steps_of(job) &&
           own % options.evaluate_every == 0 && own > averaging[job]->state().evaluated;
  }
  bool any_watches(std::int64_t step) const {
    for (std::size_t job = 0; job < averaging.size(); ++job)
      if (watches(job, step)) return true;
    return false;
  }
  bool evaluation_due(std::int64_t step) const {
    return evaluates() && (is_due(options.evaluate_every, step) || (step > start && any_watches(step)));
  }

  /// What this rank writes: of the stages whose first replica it is, array after array.
  std::vector<StageTensors> mine(const std::function<NamedTensors(const HeldStage&)>& tensors) const {
    std::vector<StageTensors> result;
    for (const HeldStage& h : stages->held()) {
      if (h.replica != 0) continue;
      auto of_stage = std::ranges::find(result, h.stage.value, &StageTensors::stage);
      if (of_stage == result.end())
        of_stage = result.insert(result.end(), StageTensors{.stage = h.stage.value, .tensors = {}});
      // The threads that write know nothing of devices.
      for (auto& [name, tensor] : tensors(h)) of_stage->tensors.emplace_back(name, tensor.cpu());
    }
    return result;
  }
  /// Collective over the replicas of each stage, which may share the rule's state.
  std::vector<StageTensors> my_state() const {
    std::map<const HeldStage*, NamedTensors> states;
    for (const HeldStage& h : stages->held()) {
      for (const HeldStage::Rule& of : h.rules) {
        const ParameterStore own = h.store_of(of);
        UpdateRule& rule = *of.rule;
        NamedTensors state = whole_stage_state(own, rule);
        add_update_counts(state, own, rule, own_steps(static_cast<std::size_t>(h.first_job + of.job), done));
        add_last_rate(state, own, rule);
        std::ranges::move(state, std::back_inserter(states[&h]));
      }
      add_carried(states[&h], *h.executor, *h.store, followed(), h.group.get());
    }
    return mine([&](const HeldStage& h) {
      NamedTensors state = std::move(states.at(&h));
      if (flow) add_stash(state, *h.store);
      return state;
    });
  }
  std::filesystem::path checkpoints() const {
    return std::filesystem::path(options.output_dir) / run_files::kCheckpoints;
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
  void save_final_weights();
  bool is_finite(const std::vector<StageTensors>& tensors, int job);
  void finish_files();
  bool carries() const { return first_carrying(layout().model.layers) != nullptr; }
  /// The microbatches before this step that those of this step follow.
  std::vector<CarriedRows> followed() const {
    const std::int64_t next = position_of(done);
    std::vector<CarriedRows> result;
    for (std::int64_t p = next - sources.front().train->extent(next).follows; p < next; ++p)
      result.push_back({p, sources.front().train->extent(p).samples});
    return result;
  }
  void prepare_averaging();
  void place_followers();
  void watch_evaluation();
  void check_sizes();
  void check_ends() const;
  void set_aside_ended();
  void check_steps(const std::string& checkpoint) const;
  void check_turns();
  void build(const std::vector<TrainedArray>& arrays);
  void resume();
  void take_initial_weights();
  BatchSources batches_of(const TrainedArray& array, int index, const BatchNeeds& train,
                          const BatchNeeds& evaluation) const;
  bool advance(std::int64_t most);
  void run_training();
  void run_to(std::int64_t step);
  void step_to(std::int64_t end);
  void go_on_without(const std::vector<char>& ended);
  void open_flow();
  void flow_to(std::int64_t end);
  void rest();
  bool in_stretches() const;
  void go_a_stretch(std::int64_t end);
  Measured measure(RankRunner& runner);
  std::vector<LossSums> take_losses();
  void on_update(RankRunner& runner, std::int64_t step);
  void log_step(std::int64_t step, Measured measured);
  void require_a_finite_loss(const LossSums& losses, std::int64_t step) const;
  bool evaluate();
  bool evaluate_array(int array);
  NamedTensors whole_weights();
  bool score_weights();
  bool checkpoint();
  void write_trace();
  /// The step after which the ranks rest next: to evaluate, to save, at the end.
  std::int64_t next_event() const;
};

void Trainer::Impl::check_sizes() {
  if (!layout().ties.empty() && asynchronous()) {
    throw ConfigError("the model ties " + layout().ties.front().owner + " across stages, and schedule " +
                          to_string(plan.schedule) + " never flushes",
                      "use a schedule that flushes, or a plan with both uses in one stage");
  }
  if (options.sync_batch_norm && asynchronous()) {
    throw ConfigError("--sync-batch-norm: the replicas of " + to_string(plan.schedule) +
                          " take turns, so that no two of them run at the same time",
                      "use a schedule that flushes, for example --schedule 1f1b");
  }
  if (score && jobs() > 1)
    throw ConfigError("the weights of a job array have no score of their own", "train the jobs apart");
  if (options.target_score && asynchronous()) {
    throw ConfigError("a target score ends a run whose schedule flushes: " + to_string(plan.schedule) +
                          " has later minibatches under way when the score is known",
                      "use for example --schedule 1f1b, or leave the target out");
  }
  check_turns();
  check_ends();
  if (carries() && num_arrays() > 1) {
    throw ConfigError(
        plan.model + " carries states from window to window, and several arrays go through the pipeline",
        "give --arrays 1");
  }
  if (plan.arrays != num_arrays()) {
    throw ConfigError("the plan is for " + std::to_string(plan.arrays) + " arrays, this job has " +
                          std::to_string(num_arrays()),
                      "give --arrays " + std::to_string(plan.arrays));
  }
  if (plan.num_ranks() != world.communicator.size()) {
    throw ConfigError("the plan has " + std::to_string(plan.num_ranks()) + " ranks, this job has " +
                          std::to_string(world.communicator.size()),
                      "start exactly the plan's ranks");
  }
}

/// What a model is not trained with whose parts take turns.
void Trainer::Impl::check_turns() {
  if (layout().turns.empty()) return;
  const std::string model_in_turns =
      plan.model + " is trained in turns, each of which needs the weights of the one before";
  if (asynchronous())
    throw ConfigError(model_in_turns + ", and schedule " + to_string(plan.schedule) + " never flushes",
                      "use a schedule that flushes, for example --schedule 1f1b");
  if (LossScaler(options.precision, options.loss_scale).active())
    throw ConfigError(plan.model + " is trained in turns, and a scaled loss may skip one of them",
                      "give --precision bfloat16 or float32");
  const auto averages = [](const RuleOptions& rule) { return rule.kind == UpdateRuleKind::Asgd; };
  if (averages(options.rule) ||
      std::ranges::any_of(options.jobs, [&](const JobOptions& job) { return averages(job.rule); }))
    throw ConfigError(plan.model + " is trained in turns, and ASGD's averages are of one update a step",
                      "use another --rule, for example adam");
}

void Trainer::Impl::build(const std::vector<TrainedArray>& arrays) {
  check_sizes();
  RankStagesOptions stage_options;
  stage_options.rule = options.rule;
  stage_options.clip = options.clip;
  stage_options.jobs = options.jobs;
  stage_options.precision = options.precision;
  stage_options.loss_scale = options.loss_scale;
  stage_options.average_replicas = updates_after_each();
  stage_options.rate_by_replicas = options.rate_by_replicas;
  ExecutorOptions& executor = stage_options.executor;
  executor.seed = options.seed;
  executor.microbatches_per_update = microbatches_per_step(plan);
  executor.bucket_bytes = options.bucket_bytes;
  // Of several arrays the others go on: require_a_finite_loss.
  executor.stop_on_nonfinite = options.stop_on_nonfinite && num_arrays() == 1;
  executor.sync_batch_norm = options.sync_batch_norm;
  executor.masks = options.masks;
  stages = std::make_unique<RankStages>(world.communicator, world.device, layouts, plan, stage_options);
  std::vector<std::pair<int, int>> readers;  // replica, replicas; of every array alike
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
    reads_own.push_back(!arrays[static_cast<std::size_t>(array)].of_jobs.empty());
    // Replicas take turns from where the run begins, which resume() says before the first batch is read.
    train.mine = [=, this](std::int64_t position) {
      return mine(whole_run ? position - position_of(start) : position % per_step);
    };
    BatchNeeds evaluation = train;
    evaluation.mine = [=, this](std::int64_t position) { return mine(position % evaluation_chunk); };
    sources.push_back(batches_of(arrays[static_cast<std::size_t>(array)], array, train, evaluation));
    use_extents_of(*sources.back().train, array);
  }
  prepare_averaging();
  place_followers();
  stop = std::make_unique<StopVote>(world.communicator, options.stop, stop_reach(plan, round));
  evaluation_stop =
      std::make_unique<AnyRank>(world.communicator, "evaluation", 2 + plan.num_ranks() / kEvaluationPiece);
}

/// At the positions of the run: a job's own begin where it joined.
BatchSources Trainer::Impl::batches_of(const TrainedArray& array, int index, const BatchNeeds& train,
                                       const BatchNeeds& evaluation) const {
  std::size_t first = 0;
  for (int before = 0; before < index; ++before)
    first += static_cast<std::size_t>(layouts[static_cast<std::size_t>(before)].model.jobs());
  const auto begins_at = [this, first](std::size_t job) { return position_of(joined_at[first + job]); };
  if (!array.of_jobs.empty())
    return batches_of_jobs(array.of_jobs, array.model.of_jobs.front().fields.size(), train, evaluation,
                           begins_at);
  BatchSources of_all = array.make_batches(train, evaluation);
  of_all.train = std::make_unique<ShiftedBatches>(std::move(of_all.train), [=] { return begins_at(0); });
  return of_all;
}

/// Jobs whose steps end apart. Throws ConfigError.
void Trainer::Impl::check_ends() const {
  bool apart = false;
  for (std::size_t job = 0; job < joined_at.size(); ++job) apart = apart || steps_of(job) != steps_of(0);
  if (!apart) return;
  if (asynchronous())
    throw ConfigError("--steps ends jobs apart, and schedule " + to_string(plan.schedule) + " never flushes",
                      "give one number of steps, or a schedule that flushes");
  if (carries())
    throw ConfigError("--steps ends jobs apart, and " + plan.model +
                          " carries states from window to window, which go on for all jobs of an array",
                      "give one number of steps");
}

/// Who has ended reads what a job of its array reads that goes on, whatever it is: nothing comes of it.
void Trainer::Impl::set_aside_ended() {
  std::size_t first = 0;
  for (const StageLayout& array : layouts) {
    const std::size_t end = first + static_cast<std::size_t>(array.model.jobs());
    std::int64_t of_others = 0;
    for (std::size_t job = end; job-- > first;)
      if (!ended_with[job]) of_others = joined_at[job];
    for (std::size_t job = first; job < end; ++job)
      if (ended_with[job]) joined_at[job] = of_others;
    first = end;
  }
}

/// Jobs that go on at different steps. Throws CheckpointError.
void Trainer::Impl::check_steps(const std::string& checkpoint) const {
  if (!at_different_steps()) return;
  const std::string apart = "cannot resume: the jobs of " + checkpoint + " are at different steps, and ";
  const std::string alone = "`millrace split` makes a checkpoint of each job";
  if (asynchronous())
    throw CheckpointError(apart + "schedule " + to_string(plan.schedule) + " never flushes",
                          "use a schedule that flushes, for example --schedule 1f1b; " + alone);
  if (carries())
    throw CheckpointError(apart + plan.model + " carries states from window to window, which all jobs read",
                          alone);
  std::size_t first = 0;
  for (std::size_t array = 0; array < layouts.size(); ++array) {
    const std::size_t end = first + static_cast<std::size_t>(layouts[array].model.jobs());
    for (std::size_t job = first; job < end; ++job) {
      if (joined_at[job] != joined_at[first] && !reads_own[array])
        throw CheckpointError(apart + "jobs " + std::to_string(first) + " and " + std::to_string(job) +
                                  " read the same batches",
                              "make the array with batches of each job's own (JobData::Own); " + alone);
    }
    first = end;
  }
}

void Trainer::Impl::prepare_averaging() {
  for (std::size_t job = 0; job < joined_at.size(); ++job) {
    const RuleOptions& rule = options.jobs.empty() ? options.rule : options.jobs[job].rule;
    const double patience = value_of(rule, &RuleOptions::nonmonotone);
    averaging.emplace_back();
    if (patience == 0) continue;
    if (!evaluates()) {
      throw ConfigError("--nonmonotone waits for evaluations, and there are none during training",
                        "give --evaluate-every N, and data with a test split");
    }
    averaging.back().emplace(static_cast<std::size_t>(patience));
  }
}

/// A microbatch goes on where the one that it follows ended: on every stage both are of one replica.
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

/// Fills nothing yet: the first actions of the flow do.
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

/// Ranks that were started with different flags, or see different data, would mix two runs.
void Trainer::Impl::agree_on_settings() {
  settings = run_settings(model, plan, options);
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
  if (const std::size_t there = jobs_in(found); there != static_cast<std::size_t>(jobs())) {
    const auto text = [](std::size_t count) {
      return count == 1 ? std::string("a single job") : "an array of " + std::to_string(count) + " jobs";
    };
    throw CheckpointError("cannot resume: " + found.path + " is a checkpoint of " + text(there) +
                              ", this run is " + text(static_cast<std::size_t>(jobs())),
                          "`millrace fuse` makes one of the jobs that go on");
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
  Settings then = found.info.settings;
  const std::vector<JobProgress> progress = progress_of(found);
  if (std::ranges::any_of(progress, &JobProgress::is_new)) {  // which are what this run says
    const std::size_t count = progress.size();
    std::vector<Settings> of_jobs = split_settings(then, count), now = split_settings(settings, count);
    for (std::size_t job = 0; job < count; ++job)
      if (progress[job].is_new) of_jobs[job] = now[job];
    then = joined_settings(of_jobs);
    then.emplace_back("jobs", std::to_string(count));
  }
  const std::vector<SettingChange> changes = changes_between(then, settings);
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

/// Of --init-from. Jobs that go on have their own.
void Trainer::Impl::take_initial_weights() {
  if (options.init_from.empty()) return;
  const std::string& path = options.init_from;
  const std::string purpose = "start from " + path;
  std::vector<std::string> names;
  for (const HeldStage& h : stages->held()) {
    for (const auto& [name, tensor] : stage_weights(*h.store))
      names.push_back(name.substr(name.find('/') + 1));  // every job of an array starts from the same
  }
  std::error_code ignored;
  const bool is_folder =
      broadcast_text(world.communicator, std::filesystem::is_directory(path, ignored) ? "folder" : "file") ==
      "folder";
  std::optional<Checkpoint> checkpoint;
  if (is_folder) {
    checkpoint =
        open_checkpoint_together(world.communicator, path, names, options.checkpoint_deadline, purpose);
  }
  const auto problem = together("reading " + path, [&] {
    std::optional<SafetensorsFile> file;
    WeightFiles files;
    if (checkpoint) {
      for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    } else {
      Result<SafetensorsFile> opened = SafetensorsFile::open(path);
      if (!opened) throw CheckpointError(to_string(opened.problems()));
      files.push_back(&file.emplace(*std::move(opened)));
    }
    const LayeredModel& one = jobs() > 1 ? model.of_jobs.front() : model;
    if (const Problems problems = check_weights(files, one, options.init_from_ignore); !problems.empty())
      throw CheckpointError(to_string(problems));
    for (const HeldStage& h : stages->held()) load_weights(files, options.init_from_ignore, *h.store);
  });
  if (problem) throw CheckpointError("cannot " + purpose + ":\n" + problem->what);
  if (owns_loss()) log_info("initial weights from=" + (checkpoint ? checkpoint->path : path));
}

void Trainer::Impl::resume() {
  if (options.resume.empty()) return;
  std::vector<std::string> names;
  for (const HeldStage& h : stages->held()) {
    for (const HeldStage::Rule& of : h.rules) {
      for (std::string& name : stage_state_names(h.store_of(of), *of.rule)) names.push_back(std::move(name));
    }
  }
  const Checkpoint opened =
      open_checkpoint_together(world.communicator, options.resume, names, options.checkpoint_deadline);
  check_changes(opened);
  const std::vector<JobProgress> progress = progress_of(opened);
  if (std::ranges::any_of(progress, &JobProgress::is_new)) take_initial_weights();
  const auto problem = together("loading " + opened.path, [&] {
    for (const HeldStage& h : stages->held()) {
      for (const HeldStage::Rule& of : h.rules) {
        const JobProgress& job = progress[static_cast<std::size_t>(h.first_job + of.job)];
        if (job.is_new) continue;
        ParameterStore own = h.store_of(of);
        UpdateRule& rule = *of.rule;
        if (Problems problems = load_stage(opened, plan.model, own, rule); !problems.empty())
          throw CheckpointError(to_string(problems));
        load_update_counts(opened, own, rule, job.updates);
        load_last_rate(opened, own, rule);
        if (job.averaging && job.averaging->from >= 0) rule.begin_averaging(job.averaging->from);
      }
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
  const auto steps_in = [&](std::int64_t position) {  // another schedule counts other steps
    const std::int64_t per_step = microbatches_per_step(plan);
    if (position % per_step == 0) return position / per_step;
    throw CheckpointError("cannot resume: the checkpoint is after microbatch " + std::to_string(position) +
                              ", which does not end a step of " + std::to_string(per_step),
                          "give a number of microbatches per step that divides it");
  };
  done = start = steps_in(opened.info.position);
  for (std::size_t job = 0; job < joined_at.size(); ++job) {
    const std::int64_t own = steps_in(progress[job].position);
    joined_at[job] = done - own;
    if (jobs() > 1 && !asynchronous() && own >= steps_of(job)) ended_with[job] = own;
  }
  set_aside_ended();
  check_steps(opened.path);
  std::vector<std::int64_t> begins;
  for (const std::int64_t step : joined_at) begins.push_back(position_of(step));
  stages->set_begins(begins);
  for (const HeldStage& h : stages->held()) {
    h.store->set_current(VersionId(done));
    // Other cuts of the model have other delays: their pipeline begins anew with the newest weights.
    if (asynchronous() && opened.info.plan_fingerprint == plan.fingerprint())
      older_versions = load_stash(opened, *h.store);
  }
  for (std::size_t job = 0; job < averaging.size(); ++job)
    if (progress[job].averaging && averaging[job]) averaging[job]->set_state(*progress[job].averaging);
  for (std::size_t job = 0; job < progress.size(); ++job)
    if (progress[job].loss_scale) stages->loss_scalers()[job].set_state(*progress[job].loss_scale);
  report.first_step = done;
  if (continues) report.saved_step = done;
  if (owns_loss()) {
    std::string of_jobs;
    for (std::size_t job = 0; at_different_steps() && job < joined_at.size(); ++job)
      of_jobs += (job == 0 ? " own_steps=" : ",") + std::to_string(own_steps(job, done));
    log_info("resumed step=" + std::to_string(done) + of_jobs + " from=" + opened.path);
  }
  for (const BatchSources& of_array : sources) of_array.train->seek(position_of(done));
  const auto carried = together("loading " + opened.path, [&] {
    for (const HeldStage& h : stages->held()) load_carried(opened, *h.executor, *h.store, followed());
  });
  if (carried) throw CheckpointError(carried->what);
}

std::int64_t Trainer::Impl::next_event() const {
  std::int64_t next = steps_of_all();
  for (std::int64_t every : {options.checkpoint_every, evaluates() ? options.evaluate_every : 0,
                             scores() ? options.score_every : 0}) {
    if (every > 0) next = std::min(next, (done / every + 1) * every);
  }
  for (std::size_t job = 0; job < averaging.size(); ++job) {
    // Evaluations of a job that waits for them are at its own steps.
    if (!averaging[job] || averaging[job]->has_begun()) continue;
    const std::int64_t every = options.evaluate_every, own = done - joined_at[job];
    if (const std::int64_t step = joined_at[job] + (own / every + 1) * every; watches(job, step))
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

/// Windows of the flow, one after the other without a pause, so that its lists stay short.
void Trainer::Impl::flow_to(std::int64_t end) {
  if (!flow) open_flow();
  const std::int64_t period = flow->stream.period(), per_step = microbatches_per_step(plan);
  const std::int64_t window = std::max<std::int64_t>(1, kFlowWindow / period) * period;
  const RankId rank = world.communicator.rank();
  stages->begin(position_of(start), rates(done));
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
    if (const std::vector<char> ended = ended_at(done); ended != flushing->ended) go_on_without(ended);
    if (in_stretches()) {
      go_a_stretch(end);
      if (done == limit()) break;
      continue;
    }
    for (std::size_t turn = 0; turn < flushing->turns.size(); ++turn) {
      stages->set_turn(turn);
      stages->begin(position_of(done), rates(done));
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

/// Arrays of one rank need not take turns at each step: nobody waits for them, and an array that goes on
/// finds its weights where it left them, in the caches.
bool Trainer::Impl::in_stretches() const {
  return num_arrays() > 1 && world.communicator.size() == 1 && flushing->turns.size() == 1 &&
         !stages->scales_loss();
}

/// Several steps of each array, one array after the other; then they are logged.
void Trainer::Impl::go_a_stretch(std::int64_t end) {
  // Spans are kept for a short time only.
  const bool traces = done < options.trace_first + options.trace_count;
  std::int64_t to = std::min({end, limit(), done + (traces ? 1 : flushing->stretch)});
  for (std::size_t job = 0; job < joined_at.size(); ++job)
    if (!has_ended(job, done)) to = std::min(to, joined_at[job] + steps_of(job));
  std::vector<Measured> steps(static_cast<std::size_t>(to - done));
  for (std::int64_t step = done; step < to; ++step)
    steps[static_cast<std::size_t>(step - done)].lr = rates(step);
  RankRunner& runner = *flushing->runner;
  auto job = static_cast<std::ptrdiff_t>(0);  // the array's first
  for (int array = 0; array < num_arrays(); ++array) {
    std::vector<Action> actions = flushing->turns.front();
    std::erase_if(actions, [&](const Action& action) { return array_of(action) != array; });
    const std::ptrdiff_t last_job = job + layouts[static_cast<std::size_t>(array)].model.jobs();
    for (std::int64_t step = done; step < to; ++step) {
      Measured& all = steps[static_cast<std::size_t>(step - done)];
      if (actions.empty()) {  // its jobs have ended
        all.losses.push_back(stages->take_losses(array));
        continue;
      }
      stages->begin(position_of(step), all.lr, array);
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
  // As if they had been done in turn, one step of all after the other: what lies between two steps then took
  // the time between them.
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

/// Jobs end between two steps. Of an array that others are in they are computed, and stay as they are; an
/// array that they are all of leaves the pipeline, on every rank alike.
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
    std::erase_if(
        actions, [&](const Action& action) { return left[static_cast<std::size_t>(array_of(action))] != 0; });
  }
}

/// The ranks rest after `done` steps. An asynchronous pipeline stays full: what is under way is put aside,
/// and weights and running statistics are those of `done` minibatches, as if nothing else had begun.
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

/// Since the time before.
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
  const int steps = steps_per_update();  // of the job: the other replicas had theirs
  step_seconds.push_back(seconds / steps);
  report.steps += steps;
  std::int64_t samples = 0;  // of a job, all replicas; an epoch's last step may have fewer
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
  if (at_different_steps()) {
    for (const std::int64_t at : joined_at) record.own_steps.push_back(newest - at);
  }
  record.ended = ended_at(step);
  if (stages->last()) {
    record.losses = joined(std::move(measured.losses));
    leave_out(record.ended, *record.losses);
    require_a_finite_loss(*record.losses, newest);
    report.losses.push_back(record.losses->mean_loss());
    std::span<const NamedValues> losses = record.losses->jobs;
    if (losses.empty() && is_one_of_several()) losses = std::span(&record.losses->values, 1);
    if (report.jobs.empty()) {
      for (std::size_t job = 0; job < losses.size(); ++job)
        report.jobs.push_back({.first_step = own_steps(job, start)});
    }
    for (std::size_t job = 0; job < report.jobs.size(); ++job) {
      report.jobs[job].steps = own_steps(job, newest + 1);
      if (losses[job].empty()) continue;  // it has ended
      const std::int64_t own = newest - joined_at[job];
      const double loss = losses[job].front().second;
      report.jobs[job].losses.push_back(loss);
      const bool skipped = !record.skipped.empty() && record.skipped[job];  // its weights are as they were
      if (std::isfinite(loss) || skipped || report.jobs[job].nonfinite_step >= 0) continue;
      report.jobs[job].nonfinite_step = own;
      if (owns_loss())
        log_warning("job " + std::to_string(first_job() + static_cast<int>(job)) + ": the loss of its step " +
                    std::to_string(own) + " is " + std::to_string(loss) + "; the other jobs go on");
    }
  }
  log.write(record);
  if (step >= options.trace_first && step < options.trace_first + options.trace_count) {
    for (const Span& span : trace.spans()) {
      if (span.step == step) window.push_back(span);
    }
  }
  const bool prints = std::ranges::count(record.skipped, 1) > 0 || newest + 1 == last_step() ||
                      (newest + 1) / options.print_every > step / options.print_every;
  if (owns_loss() && prints) log.print(record, last_step());
}

/// By array, of the last stage, which is here.
std::vector<LossSums> Trainer::Impl::take_losses() {
  std::vector<LossSums> losses;
  for (int array = 0; array < num_arrays(); ++array) losses.push_back(stages->take_losses(array));
  return losses;
}

/// Several arrays end where no job has a finite loss any more.
void Trainer::Impl::require_a_finite_loss(const LossSums& losses, std::int64_t step) const {
  const auto finite = [](const NamedValues& job) { return job.empty() || std::isfinite(job.front().second); };
  if (!options.stop_on_nonfinite || stages->scales_loss() || num_arrays() == 1 ||
      std::ranges::any_of(losses.jobs, finite))
    return;
  throw NumericError("step " + std::to_string(step) + ": the loss of every job is NaN or infinite",
                     "lower --lr or add --warmup-steps");
}

/// False if it was asked to stop and left the rest out.
bool Trainer::Impl::evaluate() {
  if (sources.front().evaluation.microbatches == 0) return true;
  bool asked = false;
  stages->set_training(false);
  if (stages->last()) take_losses();
  for (int array = 0; array < num_arrays() && !asked; ++array) asked = evaluate_array(array);
  evaluation_stop->finish();
  stages->set_training(true);
  if (asked) {
    if (stages->last()) take_losses();
    if (owns_loss()) log_warning("the evaluation of step " + std::to_string(done) + " was interrupted");
    return false;
  }
  if (!stages->last()) return true;
  for (int array = 0; array < num_arrays(); ++array) stages->last(array)->reduce_sums();
  LossSums sums = joined(take_losses());
  report.evaluations.push_back(
      {.step = done, .values = std::move(sums.values), .jobs = std::move(sums.jobs), .samples = sums.weight});
  if (owns_loss()) {
    log.write(report.evaluations.back());
    log.print(report.evaluations.back());
  }
  return true;
}

/// True if it was asked to stop.
bool Trainer::Impl::evaluate_array(int array) {
  const Evaluation& evaluation = sources[static_cast<std::size_t>(array)].evaluation;
  const std::int64_t total = evaluation.microbatches;
  bool asked = false;
  evaluation.batches->seek(0);
  // Positions of the tags go up from evaluation to evaluation; those of the data start at 0 each time.
  const std::int64_t by = kEvaluationPosition + evaluated;
  ShiftedBatches shifted(*evaluation.batches, [by] { return by; });
  stages->set_evaluation_shift(evaluated);
  use_extents_of(shifted, array);
  RunnerParts parts = runner_parts();
  parts.batches[static_cast<std::size_t>(array)] = &shifted;
  parts.steps_per_update = 1;
  parts.of_each_array = 0;
  parts.array = array;
  RankRunner shifted_runner(std::move(parts));
  for (std::int64_t next = 0; next < total && !asked;) {
    const std::int64_t chunk = next / evaluation_chunk * evaluation_chunk;
    const std::int64_t end = std::min({total, chunk + evaluation_chunk, next + kEvaluationPiece});
    stages->begin(by + chunk, std::vector<double>(static_cast<std::size_t>(jobs()), 0.0));
    shifted_runner.run(evaluation_actions(plan, layout(), static_cast<int>(next - chunk),
                                          static_cast<int>(end - chunk), world.communicator),
                       done, by + chunk, [](const Action&) {});
    next = end;
    asked = evaluation_stop->next(options.stop && options.stop->load()) &&
            (next < total || array + 1 < num_arrays());
  }
  stages->finish_sends();
  use_extents_of(*sources[static_cast<std::size_t>(array)].train, array);
  evaluated += total + evaluation_chunk;
  return asked;
}

/// All parameters of the model, on every rank, whose own are not copied. Collective.
NamedTensors Trainer::Impl::whole_weights() {
  NamedTensors all;
  for (int s = 0; s < plan.num_stages(); ++s) {
    const RankId root = plan.stages[static_cast<std::size_t>(s)].ranks.front();
    std::map<std::string, at::Tensor> own;
    for (const HeldStage& h : stages->held()) {
      if (h.stage.value != s || h.replica != 0) continue;
      for (auto& [name, tensor] : stage_weights(*h.store)) own[name] = tensor.cpu();
    }
    for (int layer : layout().layers[static_cast<std::size_t>(s)]) {
      const NamedLayer& named = layout().model.layers[static_cast<std::size_t>(layer)];
      for (const ParameterSpec& spec : named.layer->parameters()) {
        if (spec.is_buffer || named.is_tied(spec)) continue;
        const std::string name = named.parameter_name(spec);
        const at::Tensor tensor =
            world.communicator.rank() == root ? own.at(name) : at::empty(spec.shape, at::kFloat);
        world.communicator.broadcast(tensor, root);
        all.emplace_back(name, tensor);
      }
    }
  }
  return all;
}

/// False if it was asked to stop and left the rest out.
bool Trainer::Impl::score_weights() {
  const TimePoint begin = world.clock.now();
  score->begin(whole_weights());
  const std::int64_t total = score->rounds();
  bool asked = false;
  for (std::int64_t next = 0; next < total && !asked; ++next) {
    status.update(done,
                  score->what() + ", round " + std::to_string(next + 1) + " of " + std::to_string(total));
    if (const auto problem = together(score->what(), [&] { score->work(next); }))
      throw Error(ExitCode::RunFailed, to_string(*problem));
    asked = evaluation_stop->next(options.stop && options.stop->load()) && next + 1 < total;
  }
  evaluation_stop->finish();
  if (asked) {
    score->end();
    if (owns_loss()) log_warning(score->what() + " after step " + std::to_string(done) + " was interrupted");
    return false;
  }
  ScoreReport found{.step = done, .values = score->finish(done)};
  score->end();
  found.seconds = Seconds(world.clock.now() - begin).count();
  if (owns_loss()) {
    log.write(found);
    log.print(found);
  }
  report.reached_target = options.target_score && found.values.front().second >= *options.target_score;
  report.scores.push_back(std::move(found));
  return true;
}

/// Of which jobs the evaluation that was due lets averages begin: of the same on all ranks.
void Trainer::Impl::watch_evaluation() {
  if (std::ranges::none_of(averaging, [](const auto& job) { return job.has_value(); })) return;
  const at::Tensor losses = at::zeros({std::ssize(averaging)}, at::kDouble);
  if (owns_loss()) {
    const EvaluationReport& newest = report.evaluations.back();
    for (std::size_t job = 0; job < averaging.size(); ++job)
      losses.mutable_data_ptr<double>()[job] =
          (newest.jobs.empty() ? newest.values : newest.jobs[job]).front().second;
  }
  if (world.communicator.size() > 1) world.communicator.broadcast(losses, plan.stages.back().ranks.front());
  for (std::size_t job = 0; job < averaging.size(); ++job) {
    if (!watches(job, done)) continue;
    const std::int64_t own = own_steps(job, done),
                       updates = own - (loss_scale(job) ? loss_scale(job)->skipped : 0);
    if (!averaging[job]->evaluated(losses.const_data_ptr<double>()[job], own, updates)) continue;
    for (const HeldStage& h : stages->held()) {
      for (const HeldStage::Rule& of : h.rules)
        if (h.first_job + of.job == static_cast<int>(job)) of.rule->begin_averaging(updates);
    }
    if (!owns_loss()) continue;
    const std::string of_job =
        is_one_of_several() ? "job " + std::to_string(first_job() + static_cast<int>(job)) + ": " : "";
    log_info(of_job + "averaging begins after step=" + std::to_string(own));
  }
}

/// By rank 0, before the others open their files: the folder becomes this run's.
void Trainer::Impl::take_folder() {
  const std::filesystem::path folder = options.output_dir;
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
  std::filesystem::remove(folder / run_files::kSummary, ignored);  // this run has none yet
  require(plan.save((folder / run_files::kPlan).string()));
  if (options.schedule) {
    require(write_file_atomically(folder / run_files::kSchedule, options.schedule->text));
  } else {
    std::filesystem::remove(folder / run_files::kSchedule, ignored);
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
    status = StatusBoard(folder / run_files::kStatus.of(rank), rank, first().stage.value);
    log = StepLog(folder,
                  {.run = run,
                   .rank = rank,
                   .stage = first().stage.value,
                   .ranks = world.communicator.size(),
                   .writes_jobs = is_one_of_several() && owns_loss(),
                   .first_job = first_job(),
                   .own_steps = at_different_steps()},
                  continues ? done : 0);
  });
  if (problem) throw ConfigError(problem->what);
  report.run = run;
}

/// On all ranks, or on none: nothing that holds NaN or Inf is written.
void Trainer::Impl::require_finite(const std::vector<StageTensors>& tensors) {
  if (!options.stop_on_nonfinite || jobs() > 1) return;  // of an array the others are worth keeping
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
  const auto problem = save_checkpoint(
      world.communicator, checkpoints().string(),
      {.run = run,
       .parent = parent,
       .model = plan.model,
       .step = done,
       .position = position_of(done),
       .updates = done,
       .plan_fingerprint = plan.fingerprint(),
       .settings = settings,
       .loss_scale = jobs() == 1 ? loss_scale(0) : std::nullopt,
       .averaging = jobs() == 1 ? waiting(0) : std::nullopt,
       .jobs = progress()},
      plan.num_stages(), state, {.keep = options.keep_checkpoints, .deadline = options.checkpoint_deadline});
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
  const auto path =
      std::filesystem::path(options.output_dir) / run_files::kTrace.of(world.communicator.rank().value);
  if (Status status = write_file_atomically(path, spans_to_json(window)); !status)
    log_warning(to_string(status.problems()));
}

/// To the next event, or by `most` steps if that is less. False: the run ends here.
bool Trainer::Impl::advance(std::int64_t most) {
  if (done >= last_step() || report.stopped || report.reached_target) return false;
  const TimePoint start_time = world.clock.now();
  if (any_watches(done)) {  // who saved this step was asked to stop before its evaluation
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
    rest();
    report.stopped = evaluated_last && !evaluate();
    if (!report.stopped && evaluated_last) watch_evaluation();
    if (!report.stopped && saves) checkpoint();
    // Last, for what it takes: all else is safe by then.
    if (!report.stopped && scored) report.stopped = !score_weights();
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

void Trainer::Impl::save_final_weights() {
  if (options.save_weights.empty()) return;
  stages->set_training(false);  // what was evaluated, if it is not the newest
  std::optional<RankProblem> problem;
  for (int job = 0; job < jobs() && !problem; ++job) {
    const auto weights = mine([&](const HeldStage& h) {
      if (!h.has_job(job)) return NamedTensors();
      NamedTensors own = stage_state_dict(h.of_job(job - h.first_job));
      for (auto& [name, tensor] : own) name.erase(0, jobs() > 1 ? job_prefix(job).size() : 0);
      return own;
    });
    require_finite(weights);
    if (is_one_of_several() && !is_finite(weights, job)) continue;
    const std::string file =
        is_one_of_several() ? file_of_job(options.save_weights, first_job() + job) : options.save_weights;
    problem = save_weights(world.communicator, file, plan.num_stages(), weights, options.checkpoint_deadline);
  }
  stages->set_training(true);
  if (!problem) return;
  report.lost.push_back("the weights (" + to_string(*problem) + ")");
  // What was trained is not thrown away while there is another place for it.
  if (!options.output_dir.empty() && report.saved_step != done) checkpoint();
}

/// On all ranks alike.
bool Trainer::Impl::is_finite(const std::vector<StageTensors>& tensors, int job) {
  const auto problem = together("looking for NaN", [&] {
    for (const StageTensors& part : tensors) {
      if (const std::string found = non_finite_in(part.tensors); !found.empty()) throw NumericError(found);
    }
  });
  if (problem && owns_loss())
    log_warning("the weights of job " + std::to_string(first_job() + job) +
                " are not saved: " + problem->what);
  return !problem;
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
                 const MakeBatches& make_batches, std::unique_ptr<WeightsScore> score)
    : Trainer(world, std::vector<TrainedArray>{{std::move(model), make_batches}}, std::move(plan),
              std::move(options), std::move(score)) {}

Trainer::Trainer(World world, std::vector<TrainedArray> arrays, Plan plan, TrainOptions options,
                 std::unique_ptr<WeightsScore> score) {
  at::NoGradGuard no_grad;
  Problems problems = validate(options.precision, options.loss_scale, is_asynchronous(plan.schedule));
  const auto check = [&](const RuleOptions& rule, const ClipOptions& clip, LearningRateOptions& rate,
                         std::int64_t steps) {
    if (rate.total_steps <= 1) rate.total_steps = steps;
    append(problems, validate(rate));
    append(problems, validate(rule));
    append(problems, validate(rule, clip, is_asynchronous(plan.schedule)));
  };
  for (JobOptions& job : options.jobs)
    check(job.rule, job.clip, job.learning_rate, job.steps.value_or(options.steps));
  if (options.jobs.empty()) check(options.rule, options.clip, options.learning_rate, options.steps);
  int jobs = 0;
  for (const TrainedArray& array : arrays) jobs += array.model.jobs();
  if ((!options.jobs.empty() || arrays.size() > 1) && static_cast<int>(options.jobs.size()) != jobs)
    problems.push_back({"job array",
                        "the model has " + std::to_string(jobs) + " jobs, their settings are " +
                            std::to_string(options.jobs.size()),
                        {}});
  if (!problems.empty()) throw ConfigError(to_string(problems));
  impl_ = std::make_unique<Impl>(world, arrays, std::move(plan), std::move(options));
  Impl& self = *impl_;
  self.score = std::move(score);
  self.agree_on_settings();
  self.claim_outputs();
  self.build(arrays);
  if (self.options.resume.empty()) self.take_initial_weights();
  self.resume();
  self.open_files();
}

Trainer::~Trainer() = default;

/// What a failure leaves behind, and what is said of it.
template <class Work>
void Trainer::guarded(Work&& work) {
  at::NoGradGuard no_grad;
  Impl& self = *impl_;
  try {
    work();
  } catch (const Error& error) {
    self.write_trace();
    if (error.code() != ExitCode::Numeric) throw;
    const std::int64_t saved = self.report.saved_step;
    throw NumericError(error.what(),
                       error.hint() + (saved < 0 ? "; no checkpoint was saved before it"
                                                 : "; the checkpoint of step " + std::to_string(saved) +
                                                       " is from before it"));
  } catch (const std::exception&) {
    self.write_trace();
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
