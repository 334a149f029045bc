// Joins the shards that hosts with disks of their own have saved into checkpoints in the launcher's folder.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "driver/hosts/arriving_file.h"
#include "runtime/saved/checkpoint_folder.h"

namespace millrace {

/// The checkpoint that a run goes on from.
struct ResumedCheckpoint {
  std::filesystem::path source;  ///< its step folder
  std::string folder;            ///< the folder of step folders that every host has or gets
  std::string manifest;          ///< its text
  std::string run;
  std::int64_t step = 0;
  bool is_own = false;  ///< it lies in the output folder: the run goes on there
};

/// Gathers one checkpoint at a time. A reader of the folder sees the old one or the new one, also when the
/// launcher is killed. A checkpoint that does not come whole is left out with a warning. Not thread-safe.
class CheckpointCollector {
 public:
  struct Options {
    std::filesystem::path folder;  ///< OUT/checkpoints, OUT/best
    int num_hosts = 1;
    Retention keep{};
    bool overwrite = false;  ///< an earlier run's checkpoints go when the first one comes
    std::optional<ResumedCheckpoint> resumed{};
  };
  explicit CheckpointCollector(Options options) : options_(std::move(options)) {}

  /// The ranks have accepted the job: the folder becomes the run's. Later checkpoints than the one that it
  /// goes on from are moved aside, those of a run that is overwritten are removed. More calls do nothing.
  Status take_folder();
  /// A host has its shards of the checkpoint of this manifest.
  void saved(int host, std::string_view manifest);
  /// Makes a checkpoint of which hosts hold all shards the next one.
  void want(const std::string& manifest);
  /// Returns the name of the step folder that all hosts have saved and that is to be gathered next; nothing:
  /// there is none, or one is being gathered. The caller asks all hosts for it.
  std::optional<std::string> next();
  /// Takes a piece of "STEP/FILE"; an empty one ends the file, and "STEP/" ends what the host has. Returns
  /// whether that made the checkpoint whole.
  bool take(int host, const std::string& path, std::string_view piece);
  /// Tells that a host is lost: its shards that are missing will not come.
  void lost(int host);
  /// Returns whether a checkpoint is being gathered, or waits for that.
  bool is_busy() const { return current_ || ready_; }
  /// Gives up the checkpoint that is being gathered; the next one may be.
  void give_up(const std::string& why);

 private:
  struct Announced {
    std::string manifest;
    ManifestHead head;
    std::set<int> hosts;
  };
  struct Current {
    Announced what;
    std::filesystem::path temporary;
    std::map<std::string, ArrivingFile> arriving;  ///< by file
    std::map<std::string, int> hosts;              ///< by file: who sends it
    std::set<std::string> whole;
    std::set<int> ended;  ///< hosts that have sent all that they have
  };

  void begin(Announced&& what);
  bool take_piece(int host, const ShardEntry& shard, std::string_view piece);
  bool publish();

  Options options_;
  std::map<std::string, Announced> announced_;  ///< by seal
  std::optional<Announced> ready_;
  std::optional<Current> current_;
  std::set<int> lost_;
  bool has_folder_ = false;
};

}  // namespace millrace
