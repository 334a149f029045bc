// The files that hosts with output folders of their own send, in the launcher's folder. LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "driver/hosts/descriptor.h"
#include "driver/hosts/result_files.h"

namespace millrace {

/// Writes what hosts may send (result_files.h), and warns once of a host that sends anything else. A log in
/// the folder is always a beginning of the whole one: pieces are appended in order, and what an earlier
/// attempt logged stays before them. Not thread-safe.
class HostResults {
 public:
  struct Options {
    std::filesystem::path folder;         ///< the output folder
    std::vector<std::vector<int>> ranks;  ///< of each host
    int loss_rank = -1;                   ///< that writes the summary; -1: not known
    /// The step from which the run goes on here: logs are cut there when their first piece comes. Nothing:
    /// they begin anew.
    std::optional<std::int64_t> from_step{};
    bool keeps_all = false;  ///< the pieces belong behind all that the logs have
  };
  explicit HostResults(Options options) : options_(std::move(options)) {}

  void whole(int host, const std::string& path, std::string_view content);
  /// Takes a piece of a log, or of a file that is too large for one message and takes the place of an earlier
  /// one. `offset`: bytes of this log that came before. A piece that is out of order ends the log with a
  /// warning.
  void grown(int host, const std::string& path, std::int64_t offset, std::string_view bytes);

 private:
  struct Log {
    Descriptor file;
    std::int64_t bytes = 0;  ///< that came
    bool is_log = true;
  };
  /// Returns how the file comes; None: the host may not send it.
  ResultForm accepted(int host, const std::string& path);
  void begin(Log& log, const std::string& path, std::string_view& bytes) const;

  Options options_;
  std::map<std::string, Log> logs_;
  std::map<std::string, int> senders_;  ///< by path: another host may not send the same file
  std::set<int> warned_;                ///< hosts
};

/// Returns the last whole line of a log; empty: it has none.
std::string last_whole_line(const std::filesystem::path& log);

}  // namespace millrace
