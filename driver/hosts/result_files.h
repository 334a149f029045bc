// The files of a run that a host sends to a launcher which does not see its folder. Both sides ask here: a
// host sends no other file, and the launcher writes no other one, whatever a host sends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

enum class ResultForm {
  None,    ///< the host may not send it
  Whole,   ///< each time that it has changed; in pieces at the end if it is large
  Growing  ///< a log: what was appended since the last time
};

/// Returns how the file `path` of a host with `ranks` comes to the launcher. `path` is below the output
/// folder: a name, or a round's folder and a name. A rank's files are its host's to send. Those that rank 0
/// writes for the run are of its host, and the summary is of the host of `loss_rank`; -1: of any host.
ResultForm result_form(std::string_view path, const std::vector<int>& ranks, int loss_rank);

/// Returns the names of all logs that a host with `ranks` may send.
std::vector<std::string> log_names(const std::vector<int>& ranks);

/// Reads a file from `offset` to its end, kPiece (frames.h) bytes at most. A link or a FIFO counts as empty.
std::string piece_of_file(const std::filesystem::path& path, std::int64_t offset);

/// Returns the whole lines of `log` behind its last line that equals `line`. An empty `line` is before all of
/// them. Returns nothing where no line equals it: the log is another one.
std::string_view lines_behind(std::string_view log, std::string_view line);

/// The logs of one host's ranks as they grow. Not thread-safe.
class GrowingLogs {
 public:
  /// Removes the logs that an earlier job left in `folder`: the launcher has them.
  GrowingLogs(std::filesystem::path folder, const std::vector<int>& ranks);

  struct Piece {
    std::string path;         ///< below the folder
    std::int64_t offset = 0;  ///< bytes of the log that were returned before
    std::string bytes;        ///< whole lines, but for a line longer than kPiece (frames.h)
  };
  /// Returns what each log has grown by since the last call, kPiece of each at most. Empty: nothing is left.
  std::vector<Piece> next();

 private:
  std::vector<std::string> paths() const;

  std::filesystem::path folder_;
  std::vector<std::string> names_;
  std::map<std::string, std::int64_t> sent_;  ///< bytes, by path
};

}  // namespace millrace
