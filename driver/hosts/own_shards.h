// The checkpoints of a host's own ranks, on their way to the launcher.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/hosts/descriptor.h"
#include "runtime/saved/checkpoint_folder.h"

namespace millrace {

/// The paths of the best checkpoints (--keep-best) begin with this, those of all others with the step.
inline constexpr const char* kBestPrefix = "best/";

/// A checkpoint of which a host has some shards.
struct HeldCheckpoint {
  std::string manifest;            ///< its text
  std::vector<std::string> files;  ///< the names of its shards that the host has
  std::string prefix{};            ///< kBestPrefix, or empty
};

/// Looks for new checkpoints in the folder of one host's shards, and reads them in pieces. The newest few
/// stay open, so that ranks may remove them meanwhile. Not thread-safe.
class OwnShards {
 public:
  /// Makes the folder if needed.
  explicit OwnShards(std::filesystem::path folder);

  /// Becomes readable when there is something to look at. Checkpoints may follow each other so fast that
  /// hosts which look now and then would see different ones.
  int descriptor() const { return events_.get(); }
  /// Returns the manifest of a checkpoint that was published since the previous call.
  std::optional<std::string> look();
  /// Returns the checkpoints that an earlier run has left, oldest first. They can be collected, too.
  std::vector<HeldCheckpoint> earlier();
  /// The launcher wants this checkpoint ("step-00000500").
  void collect(const std::string& step);
  bool is_sending() const { return sending_.has_value(); }

  struct Piece {
    std::string path;   ///< "STEP/FILE"; "STEP/" behind the last file
    std::string bytes;  ///< empty: the end of the file
  };
  /// Returns the next piece of the wanted checkpoint; call it while is_sending(). A file that cannot be read
  /// ends early, and the launcher sees that by its hash.
  Piece next();

 private:
  struct Held {
    std::string step, seal;
    std::vector<std::pair<std::string, Descriptor>> files;
  };
  void hold(const std::filesystem::path& step, const ManifestHead& head);
  struct Sending {
    std::string step;
    std::vector<std::pair<std::string, Descriptor>> files;  ///< the last one goes first
  };

  std::filesystem::path folder_;
  Descriptor events_;
  bool has_news_ = true;
  std::string seal_;  ///< of the newest one
  std::deque<Held> held_;
  std::optional<Sending> sending_;
};

}  // namespace millrace
