// The files of checkpoints, without their tensors: the sealed manifest, step folders, `latest`.
//   DIR/step-00000500/{stage0.safetensors, ..., manifest.json}, DIR/latest
// A folder belongs to one run: `latest` names the run and its newest checkpoint. Readers follow it.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/saved/hash.h"

namespace millrace {

/// The value of `format` in a manifest.
inline constexpr const char* kCheckpointFormat = "millrace-checkpoint-2";
inline constexpr const char* kManifest = "manifest.json";

std::string step_name(std::int64_t step);  ///< "step-00000500"
/// Returns "step-00000500.tmp.RUN": the folder in which a run writes or deletes a checkpoint. Leftovers are
/// removed when the run resumes (go_on_from).
std::string unfinished_step_name(std::int64_t step, const std::string& run);
std::string shard_name(int stage);  ///< "stage0.safetensors"

/// A file of a checkpoint, as listed in the manifest.
struct ShardEntry {
  std::string file;  ///< file name without a folder
  FileDigest digest;
};

/// The part of a manifest that does not depend on the trained model.
struct ManifestHead {
  std::string run;
  std::int64_t step = 0;
  std::string sha256;  ///< the seal
  std::vector<ShardEntry> shards;
  Json json;  ///< the whole manifest
};

/// Returns the text of a manifest, whose last member is the hash of the text before it.
std::string sealed_manifest(const Json& manifest);
/// Parses a manifest. Returns an error if its format is unknown, if it is damaged, or if its run, step or a
/// shard would name a path outside its folder. `where` names it in messages.
Result<ManifestHead> parse_manifest(std::string_view text, const std::string& where);
/// Parses FOLDER/manifest.json in the same way.
Result<ManifestHead> read_manifest_head(const std::filesystem::path& folder);
/// Returns an error for each shard in `folder` that is missing or has another size or hash. Reads all shards.
Problems check_shards(const std::filesystem::path& folder, const ManifestHead& manifest);

/// Returns the name of a step folder, even of one that was being replaced.
std::string step_of(const std::filesystem::path& folder);
/// Returns the id of the run that saved the checkpoint; empty if the manifest cannot be read.
std::string run_of(const std::filesystem::path& folder);

/// The content of `latest`.
struct Latest {
  std::string step;  ///< name of the folder
  std::string run;
};
/// Returns an error if the file is damaged (torn, or from another run than the checkpoint that it names).
Result<Latest> read_latest(const std::filesystem::path& folder);
Status write_latest(const std::filesystem::path& folder, const Latest& latest);

/// The checkpoints at a path, newest first.
struct CheckpointChoice {
  std::vector<std::filesystem::path> steps;
  std::string folder;  ///< for messages
  bool named = false;  ///< the user named this checkpoint: no other one may be used
};
/// `path` is a step folder, a folder with `latest`, or an output folder that contains `checkpoints/`.
Result<CheckpointChoice> checkpoints_at(const std::string& path);

/// Which of a run's checkpoints are kept when a newer one is published.
struct Retention {
  int newest = 3;          ///< number of newest checkpoints kept; 0: all
  std::int64_t every = 0;  ///< checkpoints at multiples of this step are also kept; 0: none
};

/// Whether a published folder holds all shards, or only those of one host's ranks.
enum class Shards { All, OfThisHost };

/// Publishes a checkpoint: writes the manifest into `temporary`, then reads it and the shards' headers back
/// as resume does. Then it renames the folder into place, points `latest` to it, and removes this run's
/// oldest checkpoints as `keep` specifies. The shards must exist. Returns an error, before any rename, if
/// resume would reject the checkpoint.
Status publish_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& temporary,
                          const std::string& manifest, const Retention& keep, Shards shards = Shards::All);

/// Deletes a checkpoint of `run`. A reader sees all of it or nothing. If the process is killed meanwhile, the
/// remaining files look like an unfinished save of the run. Files that a save does not write are kept, in
/// `STEP.kept`.
std::error_code remove_checkpoint(const std::filesystem::path& step, const std::string& run);

/// Makes the checkpoint of `step` the newest of `run` in `folder`, or else the last one before it. If there
/// is neither, `folder` has no newest checkpoint. Later checkpoints belong to a branch that the run abandons.
/// They are moved into abandoned-1 (2, ...) in `folder`, with their own `latest`, and a warning is logged.
/// Unfinished saves of this run are removed. The caller must hold the folder's lock. Returns an error if a
/// checkpoint cannot be moved.
Status go_on_from(const std::filesystem::path& folder, const std::string& run, std::int64_t step);

/// Deletes the branches that `run` abandoned in `folder`, except the `newest` ones. Folders that contain
/// anything other than the run's checkpoints are kept, as are files that a save does not write. The caller
/// must hold the folder's lock.
void prune_branches(const std::filesystem::path& folder, const std::string& run, int newest);

}  // namespace millrace
