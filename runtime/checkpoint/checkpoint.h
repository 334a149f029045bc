// Checkpoints store tensors by parameter name, so any plan can load any other plan's checkpoint.
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

/// Returns all tensors that a stage needs to resume: weights, buffers and rule state by full name ("NAME" and
/// "rule/STATE/NAME"). Collective over replicas that shard the rule's state; only the first of them gets all
/// of it.
NamedTensors whole_stage_state(const ParameterStore& store, UpdateRule& rule);
/// Returns the names of the tensors of whole_stage_state(). Any replica may call it.
std::vector<std::string> stage_state_names(const ParameterStore& store, const UpdateRule& rule);
/// Returns weights and buffers in model order.
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

/// This rank's position on its host, if hosts have their own folders.
struct HostPlace {
  bool first_rank = false;  ///< first rank of the host: it writes the manifest there
};

struct SaveOptions {
  Retention keep{};
  /// limit of the whole save; messages have their own deadline
  std::chrono::milliseconds deadline{3'600'000};
  /// Set if the ranks of other hosts do not see `folder`. Then each host's folder gets the shards of its
  /// ranks, and a manifest of all shards. The launcher joins them.
  std::optional<HostPlace> host{};
};

/// Saves a checkpoint. Collective over `world`. Each rank writes a shard for each of `mine`. Rank 0 then
/// writes the manifest, renames the folder into place, points `latest` to it, and removes this run's oldest
/// checkpoints as `keep` specifies. A reader sees the old or the new checkpoint, never a mixture and never
/// none. Returns the error, the same on all ranks, if it could not be saved (disk full). Earlier checkpoints
/// are then unchanged. Throws PeerError, and CheckpointError at the deadline.
std::optional<RankProblem> save_checkpoint(Communicator& world, const std::string& folder,
                                           const CheckpointInfo& info, int num_stages,
                                           const std::vector<StageTensors>& mine, const SaveOptions& options);

/// Writes one rank's part of the state of a failed run (runtime/saved/rescued.h). Not collective. Throws
/// CheckpointError.
void save_rescued(const std::string& folder, const CheckpointInfo& info, int rank, int num_stages,
                  const std::vector<StageTensors>& mine);

/// An opened checkpoint. The manifest is unchanged (SHA-256). The shards exist, have their recorded sizes and
/// are well formed. verify() checks their content.
struct Checkpoint {
  CheckpointInfo info;
  std::string path;
  std::string manifest_sha256;
  std::vector<SafetensorsFile> shards;
  std::vector<FileDigest> digests;  ///< by shard, from the manifest

  const SafetensorsFile* find(const std::string& name) const;
  /// Hashes the shards that hold any of `names`, or all shards if `names` is empty. Returns an error for each
  /// shard whose hash differs.
  Problems verify(const std::vector<std::string>& names = {}) const;
};

/// Opens the checkpoint at `path`: a step folder, a folder with `latest`, or an output folder that contains
/// `checkpoints/`. From a folder it opens the newest complete checkpoint of the run in `latest`. If `latest`
/// is damaged, it opens the newest one, provided that all are of one run. Skipped checkpoints are logged.
Result<Checkpoint> open_checkpoint(const std::string& path);

/// Opens the same checkpoint on all ranks. Collective. Rank 0 chooses as open_checkpoint() does. Every rank
/// compares the manifest with rank 0's and verifies the shards that hold its `names`. If any rank cannot read
/// a checkpoint, all try the previous one. Throws CheckpointError on all ranks; its text starts with "cannot
/// `purpose`".
Checkpoint open_checkpoint_together(Communicator& world, const std::string& path,
                                    const std::vector<std::string>& names, std::chrono::milliseconds deadline,
                                    const std::string& purpose = "resume");

/// Copies a checkpoint's tensors into a stage, including the rule's shard of the rule state. Returns an error
/// if parameters are missing or have another shape, or if the checkpoint is of another model.
Problems load_stage(const Checkpoint& checkpoint, const std::string& model, ParameterStore& store,
                    UpdateRule& rule);

/// Writes the whole model's weights and buffers by name into one file, with the same bytes for every plan.
/// Collective. Returns the error, the same on all ranks, if it could not be written. An older file of this
/// name is then unchanged.
std::optional<RankProblem> save_weights(Communicator& world, const std::string& path, int num_stages,
                                        const std::vector<StageTensors>& mine,
                                        std::chrono::milliseconds deadline);

}  // namespace millrace
