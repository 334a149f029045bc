// Checkpoints store tensors by parameter name, so any plan loads what any other plan saved.
//   DIR/step-00000500/{stage0.safetensors, ..., manifest.json}, DIR/latest
// A folder belongs to one run: `latest` names the run and its newest checkpoint. Readers follow it.
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
#include "runtime/checkpoint/together.h"
#include "runtime/comm/communicator.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/saved/manifest.h"
#include "runtime/stage/parameter_store.h"
#include "runtime/stage/update_rule.h"

namespace millrace {

/// Returns all tensors that a stage needs to go on: weights, buffers and rule state by full name ("NAME" and
/// "rule/STATE/NAME"). Collective over replicas that share the rule's state; only the first of them gets all
/// of it.
NamedTensors whole_stage_state(const ParameterStore& store, UpdateRule& rule);
/// Returns the names of the tensors of whole_stage_state(). Any replica may call it.
std::vector<std::string> stage_state_names(const ParameterStore& store, const UpdateRule& rule);
/// Returns weights and buffers in the model's order.
NamedTensors stage_weights(const ParameterStore& store);
/// Returns weights and buffers with tied parameters under all their names (PyTorch's state_dict).
NamedTensors stage_state_dict(const ParameterStore& store);
/// Returns the name of the first tensor that holds NaN or Inf, for a message ("conv1.weight holds NaN");
/// empty: all are finite.
std::string non_finite_in(const NamedTensors& tensors);

/// The tensors that a rank writes for one stage. Only the stage's first replica writes.
struct StageTensors {
  int stage = 0;
  NamedTensors tensors;
};

/// This rank's place on its host, where hosts have folders of their own.
struct HostPlace {
  bool first_rank = false;  ///< of the host's ranks: it writes the manifest there
};

struct SaveOptions {
  Retention keep{};
  /// limit of the whole save; messages have a deadline of their own
  std::chrono::milliseconds deadline{3'600'000};
  /// Set if the ranks of other hosts do not see `folder`. Then the folder of each host gets the shards of its
  /// ranks, and a manifest of all. The launcher joins them.
  std::optional<HostPlace> host{};
};

/// Saves a checkpoint. Collective over `world`. Each rank writes a shard for each of `mine`. Rank 0 then
/// writes the manifest, renames the folder into place, points `latest` to it, and removes this run's oldest
/// checkpoints as `keep` says. A reader sees the old or the new checkpoint, never a mixture and never none.
/// Returns the problem, the same on all ranks, if it could not be saved (disk full). Earlier checkpoints are
/// then untouched. Throws PeerError, and CheckpointError at the deadline.
std::optional<RankProblem> save_checkpoint(Communicator& world, const std::string& folder,
                                           const CheckpointInfo& info, int num_stages,
                                           const std::vector<StageTensors>& mine, const SaveOptions& options);

/// Writes the part of one rank of a run that has failed (runtime/saved/rescued.h). Not collective. Throws
/// CheckpointError.
void save_rescued(const std::string& folder, const CheckpointInfo& info, int rank, int num_stages,
                  const std::vector<StageTensors>& mine);

/// An opened checkpoint. The manifest is the one that was written (SHA-256). The shards exist, have their
/// sizes and are well formed. verify() checks their content.
struct Checkpoint {
  CheckpointInfo info;
  std::string path;
  std::string manifest_sha256;
  std::vector<SafetensorsFile> shards;
  std::vector<FileDigest> digests;  ///< by shard, from the manifest

  const SafetensorsFile* find(const std::string& name) const;
  /// Hashes the shards that hold any of `names`, or all shards if `names` is empty. Problems: shards whose
  /// hash differs.
  Problems verify(const std::vector<std::string>& names = {}) const;
};

/// Opens the checkpoint at `path`: a step folder, a folder with `latest`, or an output folder that holds
/// `checkpoints/`. From a folder it takes the newest whole checkpoint of the run in `latest`. If `latest` is
/// damaged, it takes the newest of the only run that is there. Skipped checkpoints are logged.
Result<Checkpoint> open_checkpoint(const std::string& path);

/// Opens the same checkpoint on all ranks. Collective. Rank 0 chooses as open_checkpoint() does. Every rank
/// compares the manifest with rank 0's and verifies the shards that hold its `names`. If any rank cannot read
/// a checkpoint, all go to the one before. Throws CheckpointError on all ranks; its text begins with "cannot
/// `purpose`".
Checkpoint open_checkpoint_together(Communicator& world, const std::string& path,
                                    const std::vector<std::string>& names, std::chrono::milliseconds deadline,
                                    const std::string& purpose = "resume");

/// Copies a checkpoint's tensors into a stage, and of the rule state the part of the rule's shard. Problems:
/// parameters are missing or have another shape; the checkpoint is of another model.
Problems load_stage(const Checkpoint& checkpoint, const std::string& model, ParameterStore& store,
                    UpdateRule& rule);

/// Writes the whole model's weights and buffers by name into one file, with the same bytes whatever the plan.
/// Collective. Returns the problem, the same on all ranks, if it could not be written. An older file of this
/// name then stays whole.
std::optional<RankProblem> save_weights(Communicator& world, const std::string& path, int num_stages,
                                        const std::vector<StageTensors>& mine,
                                        std::chrono::milliseconds deadline);

}  // namespace millrace
