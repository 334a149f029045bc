// The state that all parts of a Trainer share: the plan, the stages, the data, and the progress of the run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/checkpoint/together.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/train/job_steps.h"
#include "runtime/train/measured_times.h"
#include "runtime/train/rank_runner.h"
#include "runtime/train/step_log.h"
#include "runtime/train/stop.h"
#include "runtime/train/trainer.h"

namespace millrace {

/// Step numbers continue across resumes. Not thread-safe.
struct Training {
  World world;
  Plan plan;
  TrainOptions options;
  std::vector<StageLayout> layouts;  ///< by array
  LayeredModel model;                ///< the model of all jobs
  /// Steps in which every replica gets equally many minibatches. All events occur after whole cycles.
  std::int64_t cycle = 1;
  std::int64_t start = 0;  ///< steps done when this run started
  std::int64_t done = 0;
  JobSteps job_steps;
  std::unique_ptr<RankStages> stages{};
  std::vector<BatchSources> sources{};  ///< by array
  std::unique_ptr<StopVote> stop{};
  SpanRing trace{};
  std::shared_ptr<SpanList> loader_spans{};  ///< spans of the loader's threads; null: they are not traced
  std::unique_ptr<ComputeWaits> waits{};     ///< null: the stages compute
  StatusBoard status{};
  StepLog log{};
  RunReport report{};

  /// Throws ConfigError if a model does not fit the plan.
  Training(World world, const std::vector<TrainedArray>& arrays, Plan plan, TrainOptions options);

  const StageLayout& layout() const { return layouts.front(); }
  int num_arrays() const { return static_cast<int>(layouts.size()); }
  int jobs() const { return model.jobs(); }
  int first_job() const { return options.first_job.value_or(0); }  ///< among all jobs that are trained
  bool is_one_of_several() const { return jobs() > 1 || options.first_job; }
  /// Returns "job 3: " for a run of several jobs, else "".
  std::string name_of_job(std::size_t job) const;
  bool asynchronous() const { return is_asynchronous(plan.schedule); }
  /// PipeDream: a step is a minibatch, and gradients are averaged over one minibatch per replica.
  bool updates_after_each() const { return millrace::updates_after_each(plan.schedule); }
  const HeldStage& first() const { return stages->lanes().front().held().front(); }
  /// Steps of the job per Update of this rank's stages.
  int steps_per_update() const { return updates_after_each() ? first().replicas : 1; }
  bool owns_loss() const { return stages->owns_loss(); }
  bool has_last_stage() const { return stages->lanes().front().last() != nullptr; }
  bool carries() const { return first_carrying(layout().model.layers) != nullptr; }
  RunnerParts runner_parts();

  std::int64_t position_of(std::int64_t step) const { return step * microbatches_per_step(plan); }
  /// Returns `step`, or the first one after it that ends a cycle.
  std::int64_t end_of_cycle(std::int64_t step) const {
    return start + (step - start + cycle - 1) / cycle * cycle;
  }
  std::int64_t last_step() const { return end_of_cycle(job_steps.last()); }
  /// Returns the step after which a stop was requested, or StopVote::kNever.
  std::int64_t limit() const;
  /// Returns whether an event with period `every` occurs after `step`.
  bool is_due(std::int64_t every, std::int64_t step) const {
    return every > 0 && step > start && step / every > (step - cycle) / every;
  }
  /// Returns the learning rates of step `step`, by job, and sets them for the following updates.
  std::vector<double> set_rates(std::int64_t step);
  std::optional<LossScaleState> loss_scale(std::size_t job) const;
  /// Returns the losses since the previous call, by array. Only ranks of the last stage may call it.
  std::vector<LossSums> take_losses();
  /// Runs `work` on all ranks; a failure of one is reported on all. Collective.
  std::optional<RankProblem> together(const std::string& what, const std::function<void()>& work) const {
    return run_together(world.communicator, options.checkpoint_deadline, what, work);
  }
};

/// Joins the losses of all arrays into the report of one array of all jobs.
LossSums joined(std::vector<LossSums> arrays);

inline ExtentOf extents_of(const BatchSource& source) {
  return [&source](std::int64_t position) { return source.extent(position); };
}

inline Transport transport_of(const Communicator& world) {
  return world.buffers_sends() ? Transport::Buffered : Transport::Rendezvous;
}

}  // namespace millrace
