// The step loop of one rank: schedule, data, updates, logs, evaluation, checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
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

class KernelChoices;

/// What a rank lives in. Outlives the trainer.
struct World {
  Communicator& communicator;
  Clock& clock;
  Device& device;
};

/// Which batches a rank reads of an array; made by the caller, because data is not known here.
struct BatchNeeds {
  std::vector<char> fields;  ///< by index in LayeredModel::fields; none set: only extents are asked for
  std::function<bool(std::int64_t position)> mine;

  bool any() const { return std::ranges::find(fields, 1) != fields.end(); }
};
/// Positions wrap around in epochs of the source; evaluation has `microbatches` of them.
struct Evaluation {
  std::unique_ptr<BatchSource> batches;  ///< on every rank, if there is an evaluation
  std::int64_t microbatches = 0;         ///< the same on all ranks; 0: no evaluation
};
struct BatchSources {
  std::unique_ptr<BatchSource> train;  ///< on every rank
  Evaluation evaluation;
};
using MakeBatches = std::function<BatchSources(const BatchNeeds& train, const BatchNeeds& evaluation)>;

struct EvaluationReport {
  std::int64_t step = 0;
  NamedValues values;  ///< means of the heads' metrics, "loss" first; of several jobs: values_of_jobs
  std::vector<NamedValues> jobs;  ///< the metrics of each job
  double samples = 0;             ///< the number of samples, or tokens, that the means are over
};

/// A score of the weights (WeightsScore).
struct ScoreReport {
  std::int64_t step = 0;
  NamedValues values;
  double seconds = 0;  ///< the time that scoring took
};

/// The report of one job of an array. It counts the job's own steps.
struct JobReport {
  std::int64_t first_step = 0;       ///< done before this run
  std::int64_t steps = 0;            ///< done, of all runs
  std::vector<double> losses;        ///< of this run
  std::int64_t nonfinite_step = -1;  ///< the first step whose loss is NaN or Inf; -1: none
  std::optional<LossScaleState> loss_scale{};
};

/// A rank's report of the run. Only ranks of the last stage have losses and evaluations.
struct RunReport {
  std::int64_t steps = 0;           ///< done in this run
  bool stopped = false;             ///< before the last step, because it was asked to
  std::string run;                  ///< id of the run; empty without an output folder
  std::int64_t first_step = 0;      ///< steps done before this run
  std::int64_t saved_step = -1;     ///< steps in the newest whole checkpoint; -1: there is none
  std::int64_t failed_saves = 0;    ///< checkpoints that could not be written
  std::int64_t lost_log_lines = 0;  ///< of all ranks
  std::vector<std::string> lost;    ///< results that are not on the disk at the end; the same on all ranks
  bool lost_checkpoint = false;     ///< one of them is the newest state
  std::vector<double> losses;       ///< by step; of an array the mean over the jobs whose loss is finite
  std::vector<JobReport> jobs;      ///< the jobs of an array; empty for a single job
  std::vector<EvaluationReport> evaluations;
  std::vector<ScoreReport> scores;  ///< on all ranks
  bool reached_target = false;      ///< it ended because a score did
  double seconds = 0;               ///< of the steps
  double samples_per_s = 0;  ///< whole job, median over steps after the first, each with its own samples
  double median_step_s = 0;
  int peak_stash = 0;
  int peak_versions = 0;
  std::int64_t peak_memory_bytes = 0;  ///< of tensors on this rank's device
  /// The loss scaler at the end, if the loss is scaled. It counts over all runs of the job.
  std::optional<LossScaleState> loss_scale;
};

/// Returns the file for the weights of job `job` of an array: "w.safetensors" -> "w.job3.safetensors".
std::string file_of_job(const std::string& path, int job);

/// Returns the number of microbatches that one Update sums up: `plan.microbatches`, or 1 if asynchronous.
int microbatches_per_step(const Plan& plan);

/// A model to train, of one job or a job array, with the batches that it reads.
struct TrainedArray {
  LayeredModel model;
  MakeBatches make_batches;
  /// For an array whose jobs read their own batches (JobData::Own), instead of make_batches: one function for
  /// each job, with the fields of the job's own model. Jobs that go on at different steps need it.
  std::vector<MakeBatches> of_jobs{};
  /// The kernel choices that `model` was fused with (stage/fuse.h). Checkpoints keep them, and a run that
  /// resumes takes them. Null: checkpoints keep no choices.
  std::shared_ptr<KernelChoices> choices{};
};

/// Collective: every rank of the plan constructs and runs one. Throws ConfigError (plan, model, ranks do not
/// fit), CheckpointError (resume), PeerError, DataError, NumericError.
class Trainer {
 public:
  /// `score`: judges the weights every TrainOptions::score_every steps; null on all ranks, or on none.
  Trainer(World world, LayeredModel model, Plan plan, TrainOptions options, const MakeBatches& make_batches,
          std::unique_ptr<WeightsScore> score = nullptr);
  /// Several arrays that go through one pipeline in turn (Plan::arrays), each with its own weights, rules,
  /// batches and losses; jobs count over all of them, in this order. What is written is that of one array of
  /// all jobs.
  Trainer(World world, std::vector<TrainedArray> arrays, Plan plan, TrainOptions options,
          std::unique_ptr<WeightsScore> score = nullptr);
  ~Trainer();
  /// Trains to the last step. When it throws, the other ranks still wait for this one. The caller notes the
  /// error and then calls the communicator's abort(), so that the errors of other ranks come later.
  RunReport run();

  /// Does one step and then the evaluation or checkpoint that is due: for callers with a loop of their own.
  /// Where replicas take turns (pipedream), each of them does one. Collective. Returns false, and does
  /// nothing, if all steps are done or the run was asked to stop. run() does the remaining steps, the last
  /// evaluation and the final weights. Throws as run() does.
  bool step();
  std::int64_t steps_done() const;  ///< over resumes
  const RunReport& report() const;  ///< as far as it has come: losses, evaluations, saved_step

 private:
  template <class Work>
  void guarded(Work&& work);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
