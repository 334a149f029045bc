// Text files line by line, plain or gzip, and several of them in step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/units.h"

namespace millrace {

/// No line is longer: what is has lost its line ends, or is no text.
inline constexpr Bytes kMostLineBytes = 16 * kMiB;

/// A regular file of lines, which end in "\n" and in nothing else; gzip is told by its first bytes. A
/// byte-order mark at the start is left out. Throws DataError: no such file, a FIFO or folder, a damaged or
/// cut-off gzip stream, a line above kMostLineBytes. Holds one line and 256 KiB.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& path);
  LineReader(LineReader&&) noexcept;
  ~LineReader();
  /// The next line without its end, valid until the next call; false at the file's end.
  bool next(std::string_view& line);
  std::uint64_t lines() const { return lines_; }   ///< how many were given out
  bool terminated() const { return terminated_; }  ///< the last one ended in "\n"
  Bytes consumed() const;                          ///< bytes of the file as it lies on the disk
  const std::string& path() const { return path_; }

 private:
  struct Stream;
  bool fill();
  std::string path_;
  std::unique_ptr<Stream> stream_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t lines_ = 0;
  bool terminated_ = true, ended_ = false;
};

/// A block of lines with the same numbers from each of several files.
struct TextBlock {
  struct Side {
    std::string text;
    std::vector<std::size_t> ends;  ///< of the lines in `text`
    bool terminated = true;         ///< the last line ended in "\n"
  };
  std::vector<Side> sides;
  std::uint64_t first_line = 1;  ///< its number in the files
  Bytes consumed = 0;            ///< of all files, since their start

  std::size_t lines() const { return sides.empty() ? 0 : sides[0].ends.size(); }
  std::string_view line(std::size_t side, std::size_t i) const;
  std::uint64_t bytes() const;  ///< of text, with line ends
};

/// Reads files in step. Throws DataError as LineReader does, and with all counts where the files have unequal
/// numbers of lines. Not thread-safe.
class BlockReader {
 public:
  /// A block ends with the line that makes one of its sides `block_bytes` or more.
  explicit BlockReader(const std::vector<std::string>& paths, Bytes block_bytes = kMiB);
  /// False at the end of all files.
  bool next(TextBlock& block);

 private:
  std::vector<LineReader> readers_;
  Bytes block_bytes_;
};

/// Bytes on the disk of all `paths`; what is absent counts as 0.
Bytes size_of_files(const std::vector<std::string>& paths);

/// "train.en:17" for messages.
std::string place_of_line(const std::string& path, std::uint64_t line);

}  // namespace millrace
