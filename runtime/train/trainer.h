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
  NamedValues values;             ///< of the model's heads, "loss" first
  std::vector<NamedValues> jobs;  ///< of a job array: each job's
  double samples = 0;             ///< what they are means over: samples, or tokens
};

/// What a WeightsScore has found.
struct ScoreReport {
  std::int64_t step = 0;
  NamedValues values;
  double seconds = 0;  ///< what it took
};

/// Of one job of an array. Steps are its own.
struct JobReport {
  std::int64_t first_step = 0;  ///< done before this run
  std::int64_t steps = 0;       ///< done, of all runs
  std::vector<double> losses;   ///< of this run
  std::int64_t nonfinite_step =
      -1;  ///< the first whose loss is NaN or Inf, from which on it is worth nothing
  std::optional<LossScaleState> loss_scale{};
};

/// What a rank can say of the run. Losses and evaluations on ranks of the last stage only.
struct RunReport {
  std::int64_t steps = 0;           ///< done in this run
  bool stopped = false;             ///< before the last step, because it was asked to
  std::string run;                  ///< id of the run; empty without an output folder
  std::int64_t first_step = 0;      ///< steps done before this run
  std::int64_t saved_step = -1;     ///< of the newest whole checkpoint, or -1
  std::int64_t failed_saves = 0;    ///< checkpoints that could not be written
  std::int64_t lost_log_lines = 0;  ///< of all ranks
  std::vector<std::string> lost;    ///< results that are not on the disk at the end; the same on all ranks
  bool lost_checkpoint = false;     ///< one of them is the newest state
  std::vector<double> losses;
  std::vector<JobReport> jobs;  ///< of a job array; `losses` are the means over those that are finite
  std::vector<EvaluationReport> evaluations;
  std::vector<ScoreReport> scores;  ///< on all ranks
  bool reached_target = false;      ///< it ended because a score did
  double seconds = 0;               ///< of the steps
  double samples_per_s = 0;  ///< whole job, median over steps after the first, each with its own samples
  double median_step_s = 0;
  int peak_stash = 0;
  int peak_versions = 0;
  std::int64_t peak_memory_bytes = 0;  ///< of tensors on this rank's device
  /// Where the loss is scaled: at the end, over all runs of the job.
  std::optional<LossScaleState> loss_scale;
};

/// Where --save-weights `path` puts job `job` of an array: "w.safetensors" -> "w.job3.safetensors".
std::string file_of_job(const std::string& path, int job);

/// Microbatches per Update of the job for a plan: `plan.microbatches`, or 1 if asynchronous.
int microbatches_per_step(const Plan& plan);

/// A model that is trained, single or a job array, and what it reads.
struct TrainedArray {
  LayeredModel model;
  MakeBatches make_batches;
  /// Of an array whose jobs read their own batches (JobData::Own), instead: each job's, with the fields of
  /// its own model and at its own positions. Jobs that are to go on at different steps need it.
  std::vector<MakeBatches> of_jobs{};
  /// What `model` was fused with (stage/fuse.h): checkpoints keep the choices, and a run that goes on takes
  /// them. Null: nothing is chosen by measuring, or nothing of it is kept.
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
  /// When it throws, the other ranks still wait for this one: the caller notes the error and then calls the
  /// communicator's abort(), so that what it causes in them comes later.
  RunReport run();

  /// One step more, and what is due after it (evaluation, checkpoint): for callers with a loop of their own.
  /// Of replicas that take turns (pipedream): one of each. Collective. False, and nothing is done, where all
  /// steps are done or the run was asked to stop. run() after it does the rest, and what comes at the end:
  /// the last evaluation, the weights. Throws as run().
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
