// A checkpoint that a host gets from the launcher, because it does not see the launcher's folder.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "driver/hosts/agent_job.h"
#include "driver/hosts/arriving_file.h"
#include "runtime/base/result.h"
#include "runtime/saved/checkpoint_folder.h"

namespace millrace {

/// Puts the checkpoint of a job into the host's own folder. Shards that the host has already are taken from
/// there, if their hashes are right; only the others have to be sent. Not thread-safe.
class DeliveredCheckpoint {
 public:
  /// Looks for shards in the checkpoint's folder and in `own`, the folder of this host's shards. Problem: the
  /// manifest is damaged, or the folder cannot be written.
  static Result<DeliveredCheckpoint> begin(const AgentCheckpoint& checkpoint,
                                           const std::filesystem::path& own, int host);
  /// Returns the paths of the shards that have to be sent.
  std::vector<std::string> missing() const { return {missing_.begin(), missing_.end()}; }
  bool wants(const std::string& path) const { return missing_.contains(path); }
  /// Takes a piece of a shard; the last piece is empty. Problem: the disk is full, or the shard is another
  /// one.
  Status take(const std::string& path, std::string_view piece);
  /// Publishes the checkpoint when nothing is missing.
  Status finish();

 private:
  DeliveredCheckpoint(std::filesystem::path folder, ManifestHead head, std::string manifest);

  std::filesystem::path folder_, temporary_;
  ManifestHead head_;
  std::string manifest_;
  std::set<std::string> missing_;
  std::optional<ArrivingFile> arriving_;
};

}  // namespace millrace
