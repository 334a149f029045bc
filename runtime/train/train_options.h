// The options of a run. LibTorch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/failpoint.h"
#include "runtime/base/flag.h"
#include "runtime/base/masks_from.h"
#include "runtime/base/scalar_sink.h"
#include "runtime/rules/best_so_far.h"
#include "runtime/rules/nonfinite.h"
#include "runtime/rules/precision.h"
#include "runtime/rules/update_options.h"
#include "runtime/saved/settings.h"
#include "runtime/schedule/schedule.h"
#include "runtime/train/stop_flag.h"

namespace millrace {

class MeasuredTimes;
class SharedSchedules;

/// The options that may differ between the jobs of an array.
struct JobOptions {
  std::uint64_t seed = 0;
  RuleOptions rule;
  ClipOptions clip;  ///< all jobs have the same `scope`
  LearningRateOptions learning_rate;
  Settings settings{};                  ///< TrainOptions::settings for this job
  std::optional<std::int64_t> steps{};  ///< instead of TrainOptions::steps
};

/// The output folder of one host, if every host has its own.
struct HostFolder {
  int host = 0;             ///< index among the job's hosts
  bool first_rank = false;  ///< this rank is the host's first one
};

struct TrainOptions {
  /// The number of updates. With pipedream and pipedream-vsync, it is the number of minibatches, rounded up
  /// to a multiple of all replicas. In an array each job does this many steps: a completed job is unchanged
  /// while others continue.
  std::int64_t steps = 1;
  int microbatch = 1;  ///< samples
  std::uint64_t seed = 0;
  RuleOptions rule;
  ClipOptions clip;
  Precision precision = Precision::Float32;
  LossScaleOptions loss_scale;
  LearningRateOptions learning_rate;  ///< a total_steps of 1 is replaced by `steps`
  /// The jobs of job arrays (model/fuse.h), array by array. They replace seed, rule, clip, learning_rate and
  /// settings of this struct. Empty: a single job, which those members describe.
  std::vector<JobOptions> jobs;
  /// Set if the run trains a part of several jobs: the index of its first job among all, for names in logs
  /// and files. A single job is then also written as one of several. Unset: the run has all jobs.
  std::optional<int> first_job;
  bool rate_by_replicas = false;  ///< PipeDream: multiply a stage's rate by its replicas / those of stage 0
  /// Above 0: each step's rate is multiplied by the length of the step's first microbatch (in the model's
  /// first dimension) / this number.
  std::int64_t rate_per_length = 0;
  std::string output_dir;  ///< folder used only by this run (base/run_folder.h); empty: no files
  /// Set if hosts have their own output folders, whose files the launcher gathers.
  std::optional<HostFolder> host_folder{};
  bool has_weights = true;  ///< false: on emulated devices, whose tensors have no values
  /// Set: nothing is computed, and waits of these lengths replace computation. Weights keep their initial
  /// values.
  std::shared_ptr<const MeasuredTimes> waits{};
  bool has_losses() const { return has_weights && !waits; }
  bool phases = false;  ///< all phases of all steps are traced, including those of the loader's threads
  /// Returns whether the run saves checkpoints. Rounds save none if hosts have their own folders.
  bool saves() const { return has_weights && !output_dir.empty() && !(host_folder && first_job); }
  bool overwrite = false;  ///< delete an earlier run in the folder instead of rejecting it
  std::string resume;      ///< checkpoint folder to resume from; empty: a new run
  /// Keys of run_settings that may differ from the checkpoint's; "all": every one.
  std::vector<std::string> resume_changes;
  std::string init_from;  ///< safetensors file or checkpoint folder with the initial weights; or empty
  std::vector<std::string> init_from_ignore;  ///< patterns of names: see check_weights
  /// settings that determine the run and that the trainer does not know (data, dropout): run_settings
  Settings settings;
  Settings rank_settings;  ///< further settings that must be equal on all ranks
  /// The run for which a launcher holds the output folder's lock; empty: there is no launcher.
  std::string launched_run{};
  /// A rank that has lost a peer writes its state, for the launcher to join (runtime/saved/rescued.h).
  bool rescues = false;
  std::chrono::milliseconds checkpoint_deadline{3'600'000};  ///< limit of saving or verifying a checkpoint
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: only `checkpoint_at_end` saves one
  bool checkpoint_at_end = false;
  int keep_checkpoints = 3;     ///< how many of this run's newest checkpoints are kept; 0: all
  std::int64_t keep_every = 0;  ///< checkpoints at multiples of this step are also kept; 0: none
  /// Checkpoints are written during training, from copies in host memory.
  bool background_saves = false;
  bool checkpoint_required = false;  ///< the run ends with the first checkpoint that cannot be saved
  /// steps between evaluations; 0: only at the end. An evaluation source is needed in any case
  std::int64_t evaluate_every = 0;
  /// Metric whose best checkpoint is kept in OUTPUT/best; empty: none. A single job only.
  std::string keep_best;
  std::optional<EarlyStop> early_stop;  ///< a single job, and a schedule that flushes
  std::int64_t score_every = 0;         ///< steps between the scores of a WeightsScore
  std::optional<double> target_score;   ///< the run ends with the first score of at least this value
  /// Opened by the rank that owns the loss: further sinks for the numbers of its step log.
  std::vector<OpenScalarSink> scalars;
  std::string command;            ///< command line of the run, for the step log; empty: unknown
  std::int64_t print_every = 10;  ///< steps between console lines
  std::chrono::milliseconds print_interval{10'000};  ///< a line is printed at least this often
  std::optional<ScheduleFile> schedule;              ///< the schedule, if the plan's is Custom
  /// shared by ranks that are threads of this process; null: the rank makes its own schedule
  std::shared_ptr<SharedSchedules> shared_schedules;
  std::int64_t trace_first = 0;  ///< the first step in trace.rank<k>.json
  /// number of steps in the trace; trace_windows() distributes them over the steps of this run
  std::int64_t trace_count = 15;
  std::string save_weights;       ///< safetensors file for the final weights; empty: none
  bool stop_on_nonfinite = true;  ///< otherwise every step is done unconditionally
  NonfiniteOptions nonfinite;
  /// The step for which the previous trainer threw RollbackError; -1: there was none. A trainer fails if no
  /// later step goes wrong first.
  std::int64_t rolled_back_at = -1;
  bool sync_batch_norm = false;  ///< ExecutorOptions
  bool check_writes = false;     ///< hash all weights before and after each action (WriteCheck)
  MasksFrom masks = MasksFrom::Device;
  std::int64_t bucket_bytes = 4 << 20;
  /// Arrays on a single rank are trained in stretches: each does several steps before the next array starts.
  /// After about this many seconds every array has done its stretch. Arrays that share a pipeline of several
  /// ranks alternate at each step.
  double stretch_s = 2;
  /// A flag that the caller sets to stop the run. All ranks stop after the same step and save a checkpoint if
  /// there is an output folder. Null on all ranks or on none; null: the run never stops early.
  const StopFlag* stop = nullptr;
  /// faults that a test injects; World::failpoints has those of one rank
  std::vector<Failpoint> failpoints{};
};

/// The members that users set, with the effect of each, except rules, rates and precision
/// (runtime/rules/rule_flags.h).
std::vector<Flag> train_flags(TrainOptions& options);

}  // namespace millrace
