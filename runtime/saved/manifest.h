// The manifest of a checkpoint: what a run needs to go on besides tensors. One reader serves resume, the save
// that reads itself back, and `millrace checkpoint`. LibTorch-free.
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
  std::int64_t step = 0;      ///< own steps done
  std::int64_t position = 0;  ///< microbatches that it has consumed
  std::int64_t updates = 0;
  bool is_new = false;  ///< it has not begun, and the checkpoint has none of its tensors
  std::optional<AveragingState> averaging{};   ///< set if evaluations decide when averages begin
  std::optional<LossScaleState> loss_scale{};  ///< set if the loss is scaled

  bool has_state() const { return averaging || loss_scale; }
  bool operator==(const JobProgress&) const = default;
};

struct CheckpointInfo {
  std::string run;     ///< id of the run that saved it
  std::string parent;  ///< id of the run that it went on from, with the step ("3f2a... step 40"); empty: none
  std::string model;
  std::int64_t step = 0;      ///< steps done
  std::int64_t position = 0;  ///< microbatches consumed
  std::int64_t updates = 0;   ///< updates of the update rule
  std::string plan_fingerprint;
  Settings settings;
  // The state of a single job, as in JobProgress.
  std::optional<LossScaleState> loss_scale;
  std::optional<AveragingState> averaging;
  /// Further names of tied parameters in PyTorch's state_dict, each with the name of the tensor that is
  /// saved.
  std::vector<std::pair<std::string, std::string>> tied;
  std::vector<BestSoFar> best;    ///< of the metrics that the run watches
  bool lacks_evaluation = false;  ///< the run was stopped before the evaluation that follows `step` was done
  /// The progress of each job of an array, if some job has not come as far as the run or has_state(); else
  /// empty.
  std::vector<JobProgress> jobs;
};

/// Returns the manifest with these shards, not sealed. Numbers that are not finite are strings, as
/// Json::dump() writes them.
Json manifest_of(const CheckpointInfo& info, const std::vector<ShardEntry>& shards);
/// Reads what manifest_of() wrote. Problems: members that are unknown, missing or of another type, counts
/// below 0.
Result<CheckpointInfo> read_info(const ManifestHead& manifest);

/// A checkpoint whose manifest and headers are read.
struct OpenedStep {
  ManifestHead head;
  CheckpointInfo info;
  std::vector<TensorFile> shards;  ///< in the manifest's order
};

/// Opens the checkpoint in a step folder as resume does: the manifest is the one that was written (SHA-256)
/// and has all that a run needs. The shards exist, have their sizes and are well formed; check_shards() reads
/// their content. With Shards::OfThisHost shards may be absent. Problems name the file.
Result<OpenedStep> open_saved_step(const std::filesystem::path& folder, Shards shards = Shards::All);

}  // namespace millrace
