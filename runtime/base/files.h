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
/// Reads a regular file. A FIFO, a socket or a device is a Problem and is never waited for.
Result<std::string> read_regular_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);

/// The users who may read a file that is written. `Private` is for files that may hold secrets.
enum class Readers { Everybody, Private };

/// Writes `path.tmp.<pid>`, fsyncs, renames over `path`, fsyncs the folder. Problem names errno. A signal
/// that ends the process leaves the old file or the new one, and no other.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content,
                             Readers readers = Readers::Everybody);

/// Creates the folder (and parents) if needed and proves that a file can be written in it.
Status make_writable_folder(const std::filesystem::path& path);

/// The place of a file to come: makes its folder if needed and proves that a file can be written there. A
/// Problem too if `path` is a folder itself.
Status make_place_for_file(const std::filesystem::path& path);

/// A folder under another name, durable; rename(2) alone is neither if the name is taken by a full folder.
/// Puts the folder `from` in the place of `to`. The old folder is at `from` afterwards, and a caller removes
/// it. Where the file system cannot exchange two names, the old folder is gone; between the two renames it
/// stands as `to`.replaced.
Status replace_folder(const std::filesystem::path& from, const std::filesystem::path& to);
/// Replaces the folder by two renames, without an exchange.
Status replace_folder_by_renames(const std::filesystem::path& from, const std::filesystem::path& to);

/// rename and unlink are durable only after the folder is synced.
void sync_folder(const std::filesystem::path& folder);

/// Appends lines to a file; each call to `write_line` is one write(2). A line is in the file whole or not at
/// all, also when the disk is full.
class LineFile {
 public:
  LineFile() = default;
  /// Throws ConfigError if the file cannot be made.
  explicit LineFile(const std::filesystem::path& path, bool append = false);
  ~LineFile();
  LineFile(LineFile&&) noexcept;
  LineFile& operator=(LineFile&&) noexcept;
  /// A Problem with errno when the disk fails; later lines may succeed again.
  Status write_line(std::string_view line);
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  std::string path_;
};

}  // namespace millrace
