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

/// The most bytes of a line. A longer one means that the file lost its line ends or is no text.
inline constexpr Bytes kMostLineBytes = 16 * kMiB;

/// Reads a regular file of lines, which end only in "\n". Files that begin like gzip are unpacked. A
/// byte-order mark at the start is left out. Throws DataError: no such file, a FIFO or folder, a damaged or
/// cut-off gzip stream, a line above kMostLineBytes. Memory holds one line and 256 KiB.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& path);
  LineReader(LineReader&&) noexcept;
  ~LineReader();
  /// Sets `line` to the next line without its end, valid until the next call. Returns false at the file's
  /// end.
  bool next(std::string_view& line);
  std::uint64_t lines() const { return lines_; }   ///< returns the number of lines read so far
  bool terminated() const { return terminated_; }  ///< returns whether the last line ended in "\n"
  Bytes consumed() const;  ///< returns the bytes read of the file, packed if the file is
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
    std::vector<std::size_t> ends;  ///< the end of each line in `text`
    bool terminated = true;         ///< the last line ended in "\n"
  };
  std::vector<Side> sides;
  std::uint64_t first_line = 1;  ///< number of the first line in the files
  Bytes consumed = 0;            ///< bytes read of all files since their start

  std::size_t lines() const { return sides.empty() ? 0 : sides[0].ends.size(); }
  std::string_view line(std::size_t side, std::size_t i) const;
  std::uint64_t bytes() const;  ///< returns the bytes of text with line ends
};

/// Reads the lines of several files in step. Throws DataError as LineReader does. If the files have unequal
/// numbers of lines, it throws a DataError with all numbers. Not thread-safe.
class BlockReader {
 public:
  /// A block ends with the line that makes one of its sides `block_bytes` or more.
  explicit BlockReader(const std::vector<std::string>& paths, Bytes block_bytes = kMiB);
  /// Reads the next block. Returns false at the end of all files.
  bool next(TextBlock& block);

 private:
  std::vector<LineReader> readers_;
  Bytes block_bytes_;
};

/// Returns the bytes of all `paths` on the disk. An absent file counts as 0.
Bytes size_of_files(const std::vector<std::string>& paths);

/// Returns a place for messages, such as "train.en:17".
std::string place_of_line(const std::string& path, std::uint64_t line);

}  // namespace millrace
