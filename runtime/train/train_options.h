// The options of a run. LibTorch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/masks_from.h"
#include "runtime/checkpoint/settings.h"
#include "runtime/rules/precision.h"
#include "runtime/rules/update_options.h"
#include "runtime/schedule/schedule.h"
#include "runtime/train/stop_flag.h"

namespace millrace {

/// The options in which the jobs of an array may differ.
struct JobOptions {
  std::uint64_t seed = 0;
  RuleOptions rule;
  ClipOptions clip;  ///< of one scope
  LearningRateOptions learning_rate;
  Settings settings{};                  ///< TrainOptions::settings of this job
  std::optional<std::int64_t> steps{};  ///< instead of TrainOptions::steps
};

struct TrainOptions {
  /// Updates; pipedream and pipedream-vsync: minibatches, rounded up to a multiple of all replicas. Of an
  /// array, of each job: who has done them stays as it is while others go on.
  std::int64_t steps = 1;
  int microbatch = 1;  ///< samples
  std::uint64_t seed = 0;
  RuleOptions rule;
  ClipOptions clip;
  Precision precision = Precision::Float32;
  LossScaleOptions loss_scale;
  LearningRateOptions learning_rate;  ///< total_steps is set to `steps` if it is 1
  /// Of job arrays (stage/fuse.h): the jobs, of all arrays in turn, instead of seed, rule, clip,
  /// learning_rate and settings here.
  std::vector<JobOptions> jobs;
  /// Of a run that trains a part of several jobs: the number of its first one among all, in what is written
  /// by job. A single job is then written as one of several too. Unset: these are all.
  std::optional<int> first_job;
  bool rate_by_replicas = false;  ///< PipeDream: a stage's rate times its replicas / those of stage 0
  /// Above 0: each step's rate is times its first microbatch's length (of the model's first dimension) /
  /// this.
  std::int64_t rate_per_length = 0;
  std::string output_dir;  ///< empty: no files. It belongs to one run (base/run_folder.h)
  bool overwrite = false;  ///< delete an earlier run there instead of refusing
  std::string resume;      ///< folder, or empty
  /// Keys of run_settings that may differ from the checkpoint's; "all": every one.
  std::vector<std::string> resume_changes;
  std::string init_from;  ///< safetensors file or checkpoint folder to take the first weights from; or empty
  std::vector<std::string> init_from_ignore;  ///< patterns of names: see check_weights
  Settings settings;       ///< what decides the run and is not known here (data, dropout): run_settings
  Settings rank_settings;  ///< what else must be the same on all ranks
  int launcher = 0;        ///< process that may hold the output folder's lock for this job; 0: none
  std::chrono::milliseconds checkpoint_deadline{3'600'000};  ///< of saving or verifying one
  std::int64_t checkpoint_every = 0;                         ///< steps; 0: only as `checkpoint_at_end`
  bool checkpoint_at_end = false;
  int keep_checkpoints = 3;            ///< of this run, the newest; 0: all
  std::int64_t evaluate_every = 0;     ///< steps; 0: at the end only, if there is an evaluation source
  std::int64_t score_every = 0;        ///< steps between the scores of a WeightsScore
  std::optional<double> target_score;  ///< the run ends with the first score of at least so much
  std::int64_t print_every = 10;
  std::optional<ScheduleFile> schedule;  ///< of a plan whose schedule is Custom
  std::int64_t trace_first = 0;          ///< the first step in trace.rank<k>.json
  std::int64_t trace_count = 15;         ///< steps that it has: trace_windows() of what this run does
  std::string save_weights;              ///< file, or empty
  bool stop_on_nonfinite = true;
  bool sync_batch_norm = false;  ///< ExecutorOptions
  MasksFrom masks = MasksFrom::Device;
  std::int64_t bucket_bytes = 4 << 20;
  /// Arrays that share one rank go on for some steps each before the next one does: all have had their turn
  /// after about so many seconds. Those that share a pipeline take turns at each step.
  double stretch_s = 2;
  /// Set from outside: stop after a step, the same one on all ranks, and save a checkpoint if there is a
  /// place for one. Null: never (on all ranks alike).
  const StopFlag* stop = nullptr;
};

}  // namespace millrace
