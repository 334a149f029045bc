// The step loop of one rank: schedule, data, updates, logs, evaluation, checkpoints.
#pragma once

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

namespace millrace {

/// What a rank lives in. Outlives the trainer.
struct World {
  Communicator& communicator;
  Clock& clock;
  Device& device;
};

struct TrainOptions {
  std::int64_t steps = 1;  ///< updates with a flushing schedule; minibatches with an asynchronous one
  int microbatch = 1;      ///< samples
  std::uint64_t seed = 0;
  RuleOptions rule;
  LearningRateOptions learning_rate;  ///< total_steps is set to `steps` if it is 1
  std::string output_dir;             ///< empty: no files. It belongs to one run (base/run_folder.h)
  bool overwrite = false;             ///< delete an earlier run there instead of refusing
  std::string resume;                 ///< folder, or empty
  /// Keys of run_settings that may differ from the checkpoint's; "all": every one.
  std::vector<std::string> resume_changes;
  Settings settings;       ///< what decides the run and is not known here (data, dropout): run_settings
  Settings rank_settings;  ///< what else must be the same on all ranks
  int launcher = 0;        ///< process that may hold the output folder's lock for this job; 0: none
  std::chrono::milliseconds checkpoint_deadline{3'600'000};  ///< of saving or verifying one
  std::int64_t checkpoint_every = 0;                         ///< steps; 0: only as `checkpoint_at_end`
  bool checkpoint_at_end = false;
  std::int64_t evaluate_every = 0;  ///< steps; 0: at the end only, if there is an evaluation source
  std::int64_t print_every = 10;
  std::optional<ScheduleFile> schedule;  ///< of a plan whose schedule is Custom
  std::int64_t trace_first = 0;          ///< window of steps in trace.rank<k>.json
  std::int64_t trace_count = 5;
  std::string save_weights;  ///< file, or empty
  bool stop_on_nonfinite = true;
  std::int64_t bucket_bytes = 4 << 20;
  /// Set from outside: stop after a step, the same one on all ranks, and save a checkpoint if there is a
  /// place for one. Null: never (on all ranks alike).
  const StopFlag* stop = nullptr;
};

/// Which batches a rank reads; made by the caller, because data is not known here.
struct BatchNeeds {
  bool input = false;
  bool target = false;
  std::function<bool(std::int64_t position)> mine;
};
/// Positions wrap around in epochs of the source; evaluation has `microbatches` of them.
struct Evaluation {
  std::unique_ptr<BatchSource> batches;  ///< null on ranks that read nothing
  std::int64_t microbatches = 0;         ///< the same on all ranks; 0: no evaluation
  std::int64_t last_samples = 0;         ///< in the last microbatch; 0: as in the others
};
struct BatchSources {
  std::unique_ptr<BatchSource> train;  ///< null on ranks that read nothing
  Evaluation evaluation;
};
using MakeBatches = std::function<BatchSources(const BatchNeeds& train, const BatchNeeds& evaluation)>;

struct EvaluationReport {
  std::int64_t step = 0;
  double loss = 0;
  double top1 = 0;  ///< fraction
  double top5 = 0;
  std::int64_t samples = 0;
};

/// What a rank can say of the run. Losses, top-1 and evaluations on ranks of the last stage only.
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
  std::vector<EvaluationReport> evaluations;
  double seconds = 0;        ///< of the steps
  double samples_per_s = 0;  ///< whole job, median over steps after the first
  double median_step_s = 0;
  int peak_stash = 0;
  int peak_versions = 0;
  std::int64_t peak_memory_bytes = 0;  ///< of tensors on this rank's device
};

/// Microbatches per Update of the job for a plan: `plan.microbatches`, or 1 if asynchronous.
int microbatches_per_step(const Plan& plan);

/// Collective: every rank of the plan constructs and runs one. Throws ConfigError (plan, model, ranks do not
/// fit), CheckpointError (resume), PeerError, DataError, NumericError.
class Trainer {
 public:
  Trainer(World world, LayeredModel model, Plan plan, TrainOptions options, const MakeBatches& make_batches);
  ~Trainer();
  RunReport run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
