// The files of checkpoints, without the tensors in them: the sealed manifest, step folders, `latest`.
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
/// "step-00000500.tmp.RUN": the folder in which a run writes a checkpoint, or deletes one. What is left of it
/// goes when the run goes on (go_on_from).
std::string unfinished_step_name(std::int64_t step, const std::string& run);
std::string shard_name(int stage);  ///< "stage0.safetensors"

/// A file of a checkpoint, as the manifest lists it.
struct ShardEntry {
  std::string file;  ///< a name without a folder
  FileDigest digest;
};

/// The part of a manifest that does not depend on what is trained.
struct ManifestHead {
  std::string run;
  std::int64_t step = 0;
  std::string sha256;  ///< the seal
  std::vector<ShardEntry> shards;
  Json json;  ///< the whole manifest
};

/// Returns the text of a manifest, with the hash of the text before it as the last member.
std::string sealed_manifest(const Json& manifest);
/// Reads a manifest's text. Problem: it is of another format, damaged, or its run, its step or a shard would
/// name something outside of its folder. `where` names it in messages.
Result<ManifestHead> parse_manifest(std::string_view text, const std::string& where);
/// The same of FOLDER/manifest.json.
Result<ManifestHead> read_manifest_head(const std::filesystem::path& folder);
/// Returns what is wrong with the shards in `folder`: missing, of another size, with another hash. Reads all
/// of them.
Problems check_shards(const std::filesystem::path& folder, const ManifestHead& manifest);

/// Returns the name of a step folder, also of one that was being replaced.
std::string step_of(const std::filesystem::path& folder);
/// Returns the id of the run that saved the checkpoint; empty: the manifest cannot be read.
std::string run_of(const std::filesystem::path& folder);

/// The content of `latest`.
struct Latest {
  std::string step;  ///< name of the folder
  std::string run;
};
/// Problem: the file is damaged (torn, or of another run than the checkpoint that it names).
Result<Latest> read_latest(const std::filesystem::path& folder);
Status write_latest(const std::filesystem::path& folder, const Latest& latest);

/// The checkpoints that a path offers, newest first.
struct CheckpointChoice {
  std::vector<std::filesystem::path> steps;
  std::string folder;  ///< for messages
  bool named = false;  ///< the user named this one: no other will do
};
/// `path` is a step folder, a folder with `latest`, or an output folder that holds `checkpoints/`.
Result<CheckpointChoice> checkpoints_at(const std::string& path);

/// Says which of a run's checkpoints stay when a newer one is published.
struct Retention {
  int newest = 3;          ///< so many of the newest; 0: all
  std::int64_t every = 0;  ///< those of steps that are multiples of this stay, too; 0: none
};

/// Whether a published folder holds all shards, or only those of one host's ranks.
enum class Shards { All, OfThisHost };

/// Publishes a checkpoint: writes the manifest into `temporary` and reads it and the shards' headers back as
/// resume does. Then it renames the folder into place, points `latest` to it, and removes this run's oldest
/// checkpoints as `keep` says. The shards must be there. Problem, before anything is renamed: resume would
/// refuse it.
Status publish_checkpoint(const std::filesystem::path& folder, const std::filesystem::path& temporary,
                          const std::string& manifest, const Retention& keep, Shards shards = Shards::All);

/// Deletes a checkpoint of `run`. A reader finds all of it or nothing; what a process that is killed
/// meanwhile leaves looks like a save of the run that did not end. Files that no save writes stay, in
/// `STEP.kept`.
std::error_code remove_checkpoint(const std::filesystem::path& step, const std::string& run);

/// Makes the checkpoint of `step` the newest of `run` in `folder`, or else the last one before it; without
/// either `folder` has no newest. Later checkpoints belong to a branch that
/// the run leaves. They are moved into abandoned-1 (2, ...) in `folder`, with a `latest` of their own, and a
/// warning says so. Unfinished saves of this run are removed. The caller holds the folder's
/// lock. Problem: a checkpoint cannot be moved.
Status go_on_from(const std::filesystem::path& folder, const std::string& run, std::int64_t step);

/// Deletes the branches that `run` left in `folder`, but for the `newest` ones. Folders with anything else
/// than checkpoints of the run stay, and so do files that no save writes. The caller holds the folder's lock.
void prune_branches(const std::filesystem::path& folder, const std::string& run, int newest);

}  // namespace millrace
