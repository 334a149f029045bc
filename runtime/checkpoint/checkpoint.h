// Checkpoints by parameter name: any plan loads what any other plan saved.
//   DIR/step-00000500/{stage0.safetensors, ..., manifest.json}, DIR/latest
// A folder belongs to one run: `latest` names its newest checkpoint and the run. Readers follow it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/settings.h"
#include "runtime/checkpoint/together.h"
#include "runtime/comm/communicator.h"
#include "runtime/rules/averaging_trigger.h"
#include "runtime/rules/precision.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/update_rule.h"

namespace millrace {

/// How far one job of an array has come.
struct JobProgress {
  std::int64_t step = 0;      ///< of its own
  std::int64_t position = 0;  ///< microbatches that it has consumed
  std::int64_t updates = 0;
  bool is_new = false;  ///< it has not begun, and the checkpoint has none of its tensors
  std::optional<AveragingState> averaging{};   ///< where evaluations decide when averages begin
  std::optional<LossScaleState> loss_scale{};  ///< where the loss is scaled

  bool has_state() const { return averaging || loss_scale; }
  bool operator==(const JobProgress&) const = default;
};

struct CheckpointInfo {
  std::string run;     ///< id of the run that saved it
  std::string parent;  ///< of the run that it went on from, with the step ("3f2a... step 40"); empty: none
  std::string model;
  std::int64_t step = 0;      ///< steps done
  std::int64_t position = 0;  ///< microbatches consumed
  std::int64_t updates = 0;   ///< of the update rule
  std::string plan_fingerprint;
  Settings settings;
  // Of a single job, as JobProgress has them.
  std::optional<LossScaleState> loss_scale;
  std::optional<AveragingState> averaging;
  /// The progress of each job of an array, if some job has not come as far as the run or has_state(); else
  /// empty.
  std::vector<JobProgress> jobs;
};

/// Everything a stage needs to go on: weights, buffers and rule state by full name ("NAME" and
/// "rule/STATE/NAME"). Collective over replicas that share the rule's state: only the first has all of it.
NamedTensors whole_stage_state(const ParameterStore& store, UpdateRule& rule);
/// The names of those tensors, on any replica.
std::vector<std::string> stage_state_names(const ParameterStore& store, const UpdateRule& rule);
/// Weights and buffers in the model's order.
NamedTensors stage_weights(const ParameterStore& store);
/// Returns weights and buffers with tied parameters under all their names (PyTorch's state_dict).
NamedTensors stage_state_dict(const ParameterStore& store);
/// The first tensor that holds NaN or Inf, for a message ("conv1.weight holds nan"); empty: all are finite.
std::string non_finite_in(const NamedTensors& tensors);

/// The tensors that a rank writes for one stage. Only the stage's first replica writes.
struct StageTensors {
  int stage = 0;
  NamedTensors tensors;
};

struct SaveOptions {
  int keep = 3;  ///< of this run's checkpoints; older ones are removed; 0: all stay
  std::chrono::milliseconds deadline{3'600'000};  ///< of the whole save, beside that of messages
};

/// Collective over `world`. Each rank writes a shard for each of `mine`; rank 0 then writes the manifest,
/// renames the folder into place, points `latest` to it, and removes the run's oldest beyond `keep`. A reader
/// sees the old or the new checkpoint, never a mixture, never none. The problem, the same on all ranks, if it
/// could not be saved (disk full); what was saved before is untouched then. Throws PeerError, and
/// CheckpointError at the deadline.
std::optional<RankProblem> save_checkpoint(Communicator& world, const std::string& folder,
                                           const CheckpointInfo& info, int num_stages,
                                           const std::vector<StageTensors>& mine, const SaveOptions& options);

/// An opened checkpoint: the manifest is what was written (SHA-256), shards are there with their sizes and
/// well formed. Their content is checked by `verify`.
struct Checkpoint {
  CheckpointInfo info;
  std::string path;
  std::string manifest_sha256;
  std::vector<SafetensorsFile> shards;
  std::vector<FileDigest> digests;  ///< by shard, of the manifest

  const SafetensorsFile* find(const std::string& name) const;
  /// Hashes the shards that hold any of `names`; all if `names` is empty.
  Problems verify(const std::vector<std::string>& names = {}) const;
};

/// `path`: a step folder, a folder with `latest`, or an output folder that holds `checkpoints/`. From a
/// folder the newest whole checkpoint of the run in `latest` is taken (if that file is damaged, of the only
/// run that is there); what was skipped is logged.
Result<Checkpoint> open_checkpoint(const std::string& path);

/// Collective. Rank 0 chooses as above; every rank verifies the manifest against rank 0's and the shards that
/// hold its `names`. If any rank cannot read one, all go to the one before. Throws CheckpointError on all,
/// which begins with "cannot `purpose`".
Checkpoint open_checkpoint_together(Communicator& world, const std::string& path,
                                    const std::vector<std::string>& names, std::chrono::milliseconds deadline,
                                    const std::string& purpose = "resume");

/// Makes the checkpoint of `step` the newest of `run` in `folder`. Later ones are of a branch that the run
/// leaves: they are moved into abandoned-1 (2, ...) beside it, with a `latest` of their own, and a warning
/// says so. Removes what saves of this run left unfinished. By rank 0, which holds the folder's lock.
/// Problem: one cannot be moved.
Status go_on_from(const std::filesystem::path& folder, const std::string& run, std::int64_t step);

/// Copies the state into a stage; of the rule's what its shard has. Problems: parameters missing or of
/// another shape, another model.
Problems load_stage(const Checkpoint& checkpoint, const std::string& model, ParameterStore& store,
                    UpdateRule& rule);

/// Collective. The whole model's weights and buffers by name in one file, whatever the plan: the same bytes.
/// The problem, the same on all ranks, if it could not be written; an older file of this name is whole then.
std::optional<RankProblem> save_weights(Communicator& world, const std::string& path, int num_stages,
                                        const std::vector<StageTensors>& mine,
                                        std::chrono::milliseconds deadline);

}  // namespace millrace
