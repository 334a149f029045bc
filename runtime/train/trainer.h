// Trains on one rank: the step loop with schedule, data, updates, logs, evaluation and checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/run_folder.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/stage/stage_executor.h"
#include "runtime/train/batch_source.h"
#include "runtime/train/rank_runner.h"
#include "runtime/train/stop.h"
#include "runtime/train/train_options.h"
#include "runtime/train/weights_score.h"

namespace millrace {

class Failpoints;
class FlightRecorder;
class KernelChoices;
struct CounterOptions;

/// The environment of a rank. Its members must outlive the trainer.
struct World {
  Communicator& communicator;
  Clock& clock;
  Device& device;
  Failpoints* failpoints = nullptr;          ///< faults that a test injects; null: none
  FlightRecorder* recorder = nullptr;        ///< opened in the output folder; null: none
  const CounterOptions* counters = nullptr;  ///< sampled into the output folder; null: none
  int counted_ranks = 1;                     ///< ranks of this process, for `counters`
  std::string clock_name{};  ///< equal on ranks that share `clock`; empty: this machine's clock
};

/// The batches of an array that a rank reads. The trainer does not know data sets, so the caller makes the
/// sources.
struct BatchNeeds {
  /// by index in LayeredModel::fields: 1 if the rank reads the field; none set: only extents are needed
  std::vector<char> fields;
  /// returns whether this rank reads the microbatch at `position`
  std::function<bool(std::int64_t position)> mine;
  std::shared_ptr<SpanList> spans{};  ///< receives the spans of the loader's threads; null: not needed

  bool any() const { return std::ranges::find(fields, 1) != fields.end(); }
};
/// The source of an evaluation. Its microbatches are at positions 0 to `microbatches` - 1.
struct Evaluation {
  std::unique_ptr<BatchSource> batches;  ///< present on every rank if there is an evaluation
  std::int64_t microbatches = 0;         ///< their number, the same on all ranks; 0: no evaluation
};
struct BatchSources {
  std::unique_ptr<BatchSource> train;  ///< present on every rank; positions wrap around in epochs
  Evaluation evaluation;
};
using MakeBatches = std::function<BatchSources(const BatchNeeds& train, const BatchNeeds& evaluation)>;

struct EvaluationReport {
  std::int64_t step = 0;
  /// means of the heads' metrics, "loss" first; several jobs: as values_of_jobs() names them
  NamedValues values;
  std::vector<NamedValues> jobs;  ///< the metrics of each job
  double samples = 0;             ///< the number of samples, or tokens, in the means
};

/// A score of the weights (WeightsScore).
struct ScoreReport {
  std::int64_t step = 0;
  NamedValues values;
  double seconds = 0;  ///< duration of scoring
};

/// The report of one job of an array. It counts the job's own steps.
struct JobReport {
  std::int64_t first_step = 0;       ///< own steps done before this run
  std::int64_t steps = 0;            ///< own steps done in all runs together
  std::vector<double> losses;        ///< by step of this run
  std::int64_t nonfinite_step = -1;  ///< the first step whose loss is NaN or Inf; -1: none
  std::optional<LossScaleState> loss_scale{};
};

/// A rank's report of the run. Only ranks of the last stage have losses and evaluations.
struct RunReport {
  std::int64_t steps = 0;           ///< steps done in this run
  bool stopped = false;             ///< the run ended before its last step because of a stop request
  std::string run;                  ///< id of the run; empty without an output folder
  std::int64_t first_step = 0;      ///< steps done before this run
  std::int64_t saved_step = -1;     ///< number of steps in the newest complete checkpoint; -1: there is none
  std::int64_t snapshot_bytes = 0;  ///< this rank's copies of tensors for background saves; 0: none
  std::int64_t failed_saves = 0;    ///< checkpoints that could not be written
  std::int64_t lost_log_lines = 0;  ///< log lines that could not be written, on all ranks together
  std::vector<std::string> lost;    ///< results that are not on disk at the end; the same on all ranks
  bool lost_checkpoint = false;     ///< the checkpoint of the newest state is among `lost`
  std::vector<double> losses;       ///< by step; in an array the mean over the jobs whose loss is finite
  std::vector<JobReport> jobs;      ///< the jobs of an array; empty for a single job
  std::vector<EvaluationReport> evaluations;
  std::vector<ScoreReport> scores;  ///< the same on all ranks
  bool reached_target = false;      ///< the run ended because a score reached the target
  bool stopped_improving = false;   ///< the run ended because of TrainOptions::early_stop
  bool ended_by_metric() const { return reached_target || stopped_improving; }
  std::vector<BestSoFar> best;  ///< of the configured metrics, the same on all ranks
  double seconds = 0;           ///< duration of the steps
  /// over all ranks: the median over the steps after the first, each with its own number of samples
  double samples_per_s = 0;
  double median_step_s = 0;
  double drawn_s = 0,
         waited_s = 0;  ///< with TrainOptions::waits: this rank's planned and actual waits
  int peak_stash = 0;
  int peak_versions = 0;
  std::int64_t peak_memory_bytes = 0;  ///< peak bytes of tensors on this rank's device
  std::string device;                  ///< Device::name() of this rank's device
  /// The loss scaler at the end, if the loss is scaled. It counts over all runs of the job.
  std::optional<LossScaleState> loss_scale;
  /// steps of this run whose loss or gradient was not finite, and which OnNonfinite::Skip skipped
  std::optional<std::int64_t> skipped_steps;
};

/// All ranks agreed that a step went wrong, and have ended it in order. They can resume from the checkpoint
/// of `step` in new trainers, over the same communicator.
class RollbackError : public NumericError {
 public:
  RollbackError(const std::string& what, const std::string& hint, std::int64_t failed_step,
                std::int64_t saved_step)
      : NumericError(what, hint), failed(failed_step), saved(saved_step) {}
  std::int64_t failed;  ///< the step that went wrong
  std::int64_t saved;   ///< steps done in the newest checkpoint
};

/// Returns the weights file of job `job` of an array: "w.safetensors" -> "w.job3.safetensors".
std::string file_of_job(const std::string& path, int job);

/// Returns the number of microbatches that one Update sums: `plan.microbatches`, or 1 if asynchronous.
int microbatches_per_step(const Plan& plan);

/// A model to train, of one job or a job array, with its batches.
struct TrainedArray {
  LayeredModel model;
  MakeBatches make_batches;
  /// Makes the batches of an array whose jobs read their own (JobData::Own), instead of make_batches: one
  /// function per job, with the fields of the job's own model. Required if jobs resume at different steps.
  std::vector<MakeBatches> of_jobs{};
  /// The kernel choices with which `model` was fused (model/fuse.h). Checkpoints keep them, and a resumed run
  /// uses them. Null: checkpoints keep no choices.
  std::shared_ptr<KernelChoices> choices{};
};

/// Trains a model on one rank. Collective: every rank of the plan constructs one trainer and runs it. Throws
/// ConfigError (plan, model and ranks do not fit), CheckpointError (resume), PeerError, DataError,
/// NumericError. With OnNonfinite::Rollback run() throws RollbackError.
class Trainer {
 public:
  /// Makes a trainer of one model. `score` scores the weights every TrainOptions::score_every steps. It must
  /// be null on all ranks or on none.
  Trainer(World world, LayeredModel model, Plan plan, TrainOptions options, const MakeBatches& make_batches,
          std::unique_ptr<WeightsScore> score = nullptr);
  /// Makes a trainer of several arrays that alternate in one pipeline (Plan::arrays). Each array has its own
  /// weights, rules, batches and losses. Jobs are numbered over all arrays, in this order. Files are written
  /// as for one array of all jobs.
  Trainer(World world, std::vector<TrainedArray> arrays, Plan plan, TrainOptions options,
          std::unique_ptr<WeightsScore> score = nullptr);
  ~Trainer();
  /// Trains to the last step. When it throws, the other ranks still wait for this one. The caller must record
  /// the error and then call the communicator's abort(), so that the errors of other ranks are later.
  RunReport run();

  /// Does one step and then the evaluation or checkpoint that is due, for callers with their own loop.
  /// Collective. With replicas that share the steps (pipedream), each replica does one. Returns false and
  /// does nothing if all steps are done or a stop was requested. run() does the remaining steps, the last
  /// evaluation and the final weights. Throws as run() does.
  bool step();
  std::int64_t steps_done() const;  ///< steps done, counted over resumes
  /// Returns the weights and buffers of the whole model by name, on every rank: copies on the CPU, with the
  /// values that an evaluation uses. Call it between steps or after run(). A Predictor accepts them.
  /// Collective. Only for a single job: throws ConfigError for an array.
  NamedTensors weights();
  const RunReport& report() const;  ///< the report so far: losses, evaluations, saved_step

 private:
  template <class Work>
  void guarded(Work&& work);
  [[noreturn]] void fail(const Error& error);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
