// The checkpoints in the folders of a run, good and bad. LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

enum class CheckpointState { Complete, Damaged, Unfinished };
constexpr auto names_of(CheckpointState) {
  return std::to_array<std::string_view>({"complete", "damaged", "unfinished"});
}

struct ListedCheckpoint {
  std::filesystem::path folder;  ///< its step folder
  std::filesystem::path within;  ///< the folder with `latest` that contains it
  std::string branch;            ///< "": the run's own; "best"; "abandoned-1": of a branch that the run left
  CheckpointState state = CheckpointState::Complete;
  Problems damage;  ///< why it cannot be read
  // From the manifest; of one that cannot be read the step is by the folder's name, -1 if that has none.
  std::string run;
  std::int64_t step = -1;
  std::filesystem::file_time_type saved{};
  Bytes bytes = 0;                ///< of all shards, by the disk
  bool is_latest = false;         ///< `latest` of its folder names it
  std::vector<std::string> best;  ///< metrics of which the newest checkpoint records it as the best
};

/// Whether only the manifest, sizes and headers are read, as resume reads them, or all bytes are hashed, too.
enum class Check { Sizes, Hashes };

/// Lists what `path` holds: a step folder, a folder of step folders, or an output folder with `checkpoints`
/// and `best`. Branches that the run left are part of it, and saves that did not end. Newest first within a
/// branch. Problem: it is no such folder, or has none.
Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& path, Check check);

/// Returns the output folder of the run that the checkpoints in `within` are of. It holds the run's lock.
std::filesystem::path run_folder_of(const std::filesystem::path& within);

}  // namespace millrace
