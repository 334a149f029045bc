// The manifest of a checkpoint: the state that a run needs to resume, except tensors. One reader serves
// resume, the read-back after a save, and `millrace checkpoint`. LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/rules/averaging_trigger.h"
#include "runtime/rules/best_so_far.h"
#include "runtime/rules/precision.h"
#include "runtime/saved/checkpoint_folder.h"
#include "runtime/saved/settings.h"
#include "runtime/saved/tensor_file.h"

namespace millrace {

/// The progress of one job of an array.
struct JobProgress {
  std::int64_t step = 0;      ///< the job's own completed steps
  std::int64_t position = 0;  ///< microbatches consumed
  std::int64_t updates = 0;
  bool is_new = false;  ///< the job has not started, and the checkpoint has none of its tensors
  std::optional<AveragingState> averaging{};   ///< set if evaluations decide when averaging starts
  std::optional<LossScaleState> loss_scale{};  ///< set if the loss is scaled

  bool has_state() const { return averaging || loss_scale; }
  bool operator==(const JobProgress&) const = default;
};

struct CheckpointInfo {
  std::string run;     ///< id of the run that saved it
  std::string parent;  ///< id and step of the run that it resumed from ("3f2a... step 40"); empty: none
  std::string model;
  std::int64_t step = 0;      ///< steps done
  std::int64_t position = 0;  ///< microbatches consumed
  std::int64_t updates = 0;   ///< updates by the update rule
  std::string plan_fingerprint;
  Settings settings;
  // The state of a single job, as in JobProgress.
  std::optional<LossScaleState> loss_scale;
  std::optional<AveragingState> averaging;
  /// Further names of tied parameters in PyTorch's state_dict, each with the name of the saved tensor.
  std::vector<std::pair<std::string, std::string>> tied;
  std::vector<BestSoFar> best;    ///< one for each metric that the run watches
  bool lacks_evaluation = false;  ///< the run stopped before it finished the evaluation after `step`
  /// The progress of each job of an array, if some job is behind the run or has_state(); else empty.
  std::vector<JobProgress> jobs;
};

/// Returns the unsealed manifest with these shards. Numbers that are not finite are strings, as Json::dump()
/// writes them.
Json manifest_of(const CheckpointInfo& info, const std::vector<ShardEntry>& shards);
/// Reads the result of manifest_of(). Returns an error for members that are unknown, missing or of another
/// type, and for negative counts.
Result<CheckpointInfo> read_info(const ManifestHead& manifest);

/// A checkpoint whose manifest and shard headers have been read.
struct OpenedStep {
  ManifestHead head;
  CheckpointInfo info;
  std::vector<TensorFile> shards;  ///< in manifest order
};

/// Opens the checkpoint in a step folder as resume does. Checks that the manifest is unchanged (SHA-256) and
/// complete. Checks that the shards exist, have the recorded sizes and are well formed; check_shards() reads
/// their content. With Shards::OfThisHost, shards may be absent. Errors name the file.
Result<OpenedStep> open_saved_step(const std::filesystem::path& folder, Shards shards = Shards::All);

}  // namespace millrace
