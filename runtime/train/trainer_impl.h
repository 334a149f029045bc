// The inside of a Trainer, for its own files: trainer.cpp runs steps, trainer_state.cpp begins and ends runs
// and keeps checkpoints, trainer_evaluation.cpp evaluates.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/run_files.h"
#include "runtime/checkpoint/carried.h"
#include "runtime/checkpoint/stash.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/rules/averaging_trigger.h"
#include "runtime/schedule/schedule_stream.h"
#include "runtime/trace/trace_windows.h"
#include "runtime/train/job_batches.h"
#include "runtime/train/job_steps.h"
#include "runtime/train/run_settings.h"
#include "runtime/train/step_log.h"
#include "runtime/train/trainer.h"

namespace millrace {

// The number of microbatches of one evaluation schedule. It bounds the sends that a fast first stage can pile
// up. If microbatches carry states, it is the distance between a microbatch and the one that follows it
// (place_followers).
inline constexpr int kEvaluationChunk = 16;
// The number of an evaluation's microbatches between two looks at the stop flag.
inline constexpr int kEvaluationPiece = 4;

/// Joins the losses of all arrays into what one array of all jobs would report.
LossSums joined(std::vector<LossSums> arrays);

inline Transport transport_of(const Communicator& world) {
  return world.buffers_sends() ? Transport::Buffered : Transport::Rendezvous;
}

struct Trainer::Impl {
  World world;
  Plan plan;
  TrainOptions options;
  std::vector<StageLayout> layouts;  // by array
  LayeredModel model;                // the jobs of all arrays
  /// steps in which every replica has done one; evaluations and checkpoints come after a whole number of
  /// these
  std::int64_t round = 1;
  std::unique_ptr<RankStages> stages;
  std::vector<BatchSources> sources;                    // by array
  std::vector<char> reads_own;                          // by array: its jobs read batches of their own
  std::vector<std::shared_ptr<KernelChoices>> choices;  // by array; arrays of one size share one object
  std::unique_ptr<WeightsScore> score;
  SpanRing trace;
  std::vector<TraceWindow> traced;  // the steps whose spans are kept
  StatusBoard status;
  StepLog log;
  RunReport report;
  /// The measurements of a step, before it is logged.
  struct Measured {
    double seconds = 0, cpu_s = 0;
    TimePoint ended{};
    std::vector<double> lr{};  // by job
    StepTimes times{};
    std::vector<double> gradient_norms{};  // by job
    std::vector<LossSums> losses{};        // by array; only on the rank of the last stage
  };
  std::vector<double> step_seconds, samples_per_s;  // by update
  std::vector<Span> window;
  TimePoint last_update{};
  double cpu_at_last_update = 0;
  std::int64_t done = 0;  // steps done, counted over resumes
  std::int64_t evaluated = 0;
  std::unique_ptr<StopVote> stop;
  /// The state of an asynchronous run, whose pipeline is filled once and drained once. Its microbatches count
  /// from `start`.
  struct Flow {
    ScheduleStream stream;
    std::unique_ptr<RankRunner> runner;
  };
  std::optional<Flow> flow;
  /// The state of any other run. It has the same actions for every step, one list for each turn.
  struct Flushing {
    std::vector<std::vector<Action>> turns;
    std::unique_ptr<RankRunner> runner;
    std::vector<char> ended{};  ///< by job: 1 if the actions leave the job out; empty: none
    std::int64_t stretch = 1;   ///< steps of an array before the next array goes on, if in_stretches()
  };
  std::optional<Flushing> flushing;
  std::int64_t start = 0;  // steps done when this run began
  JobSteps job_steps;
  /// The number of weight versions before the current one that a checkpoint had. The first forwards use them,
  /// as they did in the run that saved them.
  std::int64_t older_versions = 0;
  RunLock lock;                    // held by rank 0
  std::string run, parent;         // see CheckpointInfo
  bool evaluated_last = false;     // the weights of `done` steps have been evaluated
  bool rested = false;             // the pipeline rests and will not go on
  bool continues = false;          // the run goes on in the folder of the run that it resumes
  std::int64_t unsaved_step = -1;  // step of the last save if that failed; -1: it did not
  Settings settings;
  /// Asks in evaluations whether a rank was told to stop. Its lag also bounds how far a fast first stage runs
  /// ahead of the others.
  std::unique_ptr<AnyRank> evaluation_stop;
  int evaluation_chunk = kEvaluationChunk;  ///< microbatches of one evaluation schedule
  // by job; set if the job waits for evaluations before it averages
  std::vector<std::optional<AveragingTrigger>> averaging;

  Impl(World world, const std::vector<TrainedArray>& arrays, Plan plan, TrainOptions options);

  const StageLayout& layout() const { return layouts.front(); }
  int num_arrays() const { return static_cast<int>(layouts.size()); }
  /// Returns the array of an action, where several arrays share the schedule.
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
  /// Tells whether an update follows each minibatch (PipeDream): a step is a minibatch, and replicas average
  /// over one minibatch each.
  bool updates_after_each() const { return millrace::updates_after_each(plan.schedule); }
  const HeldStage& first() const { return stages->held().front(); }
  /// Returns the number of steps of the run for each Update of this rank's stages.
  int steps_per_update() const { return updates_after_each() ? first().replicas : 1; }
  bool owns_loss() const { return stages->owns_loss(); }
  static ExtentOf extents_of(const BatchSource& source) {
    return [&source](std::int64_t position) { return source.extent(position); };
  }
  int jobs() const { return model.jobs(); }
  /// Returns the factor on an array's rates (TrainOptions::rate_per_length).
  double length_share(std::int64_t step, int array) const {
    if (options.rate_per_length == 0) return 1;
    const BatchExtent extent = sources[array].train->extent(position_of(step));
    return double(extent.lengths.at(0)) / double(options.rate_per_length);
  }
  /// Returns the number of this run's first job among all jobs (TrainOptions::first_job).
  int first_job() const { return options.first_job.value_or(0); }
  bool is_one_of_several() const { return jobs() > 1 || options.first_job; }
  /// Returns the learning rates of step `step`, by job.
  std::vector<double> rates(std::int64_t step) const {
    std::vector<double> result;
    for (int array = 0; array < num_arrays(); ++array) {
      const double share = length_share(step, array);
      for (int b = layouts[array].model.jobs(); b > 0; --b) {
        const std::size_t job = result.size();
        result.push_back(share *
                         learning_rate(options.jobs[job].learning_rate, step - job_steps.joined(job)));
      }
    }
    return result;
  }

  /// Returns the progress of each job for a checkpoint of this moment. It is empty if every job has come as
  /// far as the run and none waits for evaluations.
  std::vector<JobProgress> progress() const {
    std::vector<JobProgress> all;
    for (std::size_t job = 0; job < job_steps.size(); ++job) {
      const std::int64_t own = job_steps.own(job, done);
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
  /// Returns `step`, or the first step after it that ends a round.
  std::int64_t end_of_round(std::int64_t step) const {
    return start + (step - start + round - 1) / round * round;
  }
  std::int64_t last_step() const { return end_of_round(job_steps.last()); }
  std::int64_t limit() const {
    return stop->limit() == StopVote::kNever ? StopVote::kNever : start + stop->limit();
  }
  bool scores() const { return score && options.score_every > 0; }
  bool evaluates() const { return sources.front().evaluation.microbatches > 0 && options.evaluate_every > 0; }
  bool is_due(std::int64_t every, std::int64_t step) const {
    return every > 0 && step > start && step / every > (step - round) / every;
  }
  /// Tells whether the evaluation after `step` can begin the job's averages. It can if the job waits for
  /// evaluations, its own run has one at this step, and it has not seen this one.
  bool watches(std::size_t job, std::int64_t step) const {
    const std::int64_t own = step - job_steps.joined(job);
    return averaging[job] && !averaging[job]->has_begun() && !job_steps.ended_before_run(job) &&
           own <= job_steps.wanted(job) && own % options.evaluate_every == 0 &&
           own > averaging[job]->state().evaluated;
  }
  bool any_watches(std::int64_t step) const {
    for (std::size_t job = 0; job < averaging.size(); ++job)
      if (watches(job, step)) return true;
    return false;
  }
  bool evaluation_due(std::int64_t step) const {
    return evaluates() && (is_due(options.evaluate_every, step) || (step > start && any_watches(step)));
  }

  /// Returns the tensors that this rank writes: those of the stages whose first replica it is, array by
  /// array.
  std::vector<StageTensors> mine(const std::function<NamedTensors(const HeldStage&)>& tensors) const {
    std::vector<StageTensors> result;
    for (const HeldStage& h : stages->held()) {
      if (h.replica != 0) continue;
      auto of_stage = std::ranges::find(result, h.stage.value, &StageTensors::stage);
      if (of_stage == result.end())
        of_stage = result.insert(result.end(), StageTensors{.stage = h.stage.value, .tensors = {}});
      // The threads that write files know nothing of devices.
      for (auto& [name, tensor] : tensors(h)) of_stage->tensors.emplace_back(name, tensor.cpu());
    }
    return result;
  }
  /// Returns the tensors of rule state that this rank writes. Collective over the replicas of each stage,
  /// which may share the state.
  std::vector<StageTensors> my_state() const {
    std::map<const HeldStage*, NamedTensors> states;
    for (const HeldStage& h : stages->held()) {
      for (const HeldStage::Rule& of : h.rules) {
        const ParameterStore own = h.store_of(of);
        UpdateRule& rule = *of.rule;
        NamedTensors state = whole_stage_state(own, rule);
        add_update_counts(state, own, rule,
                          job_steps.own(static_cast<std::size_t>(h.first_job + of.job), done));
        add_last_rate(state, own, rule);
        std::ranges::move(state, std::back_inserter(states[&h]));
      }
      add_carried(states[&h], *h.executor, *h.store, followed(), h.group.get());
      add_choices(states[&h], h);
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

  void add_choices(NamedTensors& state, const HeldStage& held) const;
  void agree_on_settings();
  void require_shared(const std::filesystem::path& folder);
  void claim_outputs();
  void log_end() const;
  void check_changes(const Checkpoint& found);
  void take_folder();
  void open_files();
  void require_finite(const std::vector<StageTensors>& tensors);
  void save_final_weights();
  bool is_finite(const std::vector<StageTensors>& tensors, int job);
  void finish_files();
  bool carries() const { return first_carrying(layout().model.layers) != nullptr; }
  /// Returns the microbatches before this step that the microbatches of this step follow.
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
  void check_steps(const std::string& checkpoint) const;
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
  void require_finite(const EvaluationReport& found) const;
  bool evaluate_array(int array);
  NamedTensors whole_weights();
  bool score_weights();
  bool checkpoint();
  bool is_traced(std::int64_t step) const {
    return std::ranges::any_of(traced, [&](const TraceWindow& one) { return one.holds(step); });
  }
  void trace_pause(SpanKind kind, TimePoint from);
  void write_trace();
  void note_failure(ExitCode code, const std::string& error, const std::string& hint) const;
  /// Returns the step after which the ranks rest next: to evaluate, to save or to end.
  std::int64_t next_event() const;
};

}  // namespace millrace
