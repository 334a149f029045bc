// Files: whole reads with a size limit, atomic durable writes, folders. Never ofstream for state.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// The whole file as bytes; a Problem if absent, unreadable, a folder, or larger than `limit`.
Result<std::string> read_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);
/// The same for a regular file only: a FIFO, a socket or a device is a Problem and never waited for.
Result<std::string> read_regular_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);

/// Writes `path.tmp.<pid>`, fsyncs, renames over `path`, fsyncs the folder. Problem names errno.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Creates the folder (and parents) if needed and proves that a file can be made in it.
Status make_writable_folder(const std::filesystem::path& path);

/// Appends lines to a file; each call to `write_line` is one write(2). Throws DataError when the disk fails.
class LineFile {
 public:
  LineFile() = default;
  explicit LineFile(const std::filesystem::path& path, bool append = false);
  ~LineFile();
  LineFile(LineFile&&) noexcept;
  LineFile& operator=(LineFile&&) noexcept;
  void write_line(std::string_view line);
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  std::string path_;
};

}  // namespace millrace
