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

/// Returns the whole file as bytes. A file that is absent, unreadable, a folder or larger than `limit` is a
/// Problem.
Result<std::string> read_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);
/// Reads a regular file. A FIFO, a socket or a device is a Problem and is never waited for.
Result<std::string> read_regular_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);

/// The users who may read a file that is written. `Private` is for files that may hold secrets.
enum class Readers { Everybody, Private };

/// Writes `path.tmp.<pid>`, syncs it, renames it over `path` and syncs the folder. A Problem names errno. A
/// signal that ends the process leaves the old file or the new one, and no temporary file.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content,
                             Readers readers = Readers::Everybody);

/// Creates the folder (and parents) if needed and proves that a file can be written in it.
Status make_writable_folder(const std::filesystem::path& path);

/// Prepares the place of a file that will be written at `path`: makes its folder if needed, and proves that a
/// file can be written there. It is a Problem if `path` is a folder itself.
Status make_place_for_file(const std::filesystem::path& path);

/// Puts the folder `from` in the place of `to`, durably. (rename(2) alone fails if `to` is a folder with
/// files, and is not durable.) The old folder is at `from` afterwards, and the caller removes it. If the file
/// system cannot exchange two names, two renames do it, and the old folder is deleted. Between the two
/// renames the old folder is called `to`.replaced.
Status replace_folder(const std::filesystem::path& from, const std::filesystem::path& to);
/// Replaces the folder by two renames, without an exchange.
Status replace_folder_by_renames(const std::filesystem::path& from, const std::filesystem::path& to);

/// Syncs the folder. A rename or unlink in it is durable only after that.
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
  /// Appends bytes that are no line, whole or not at all.
  Status write(std::string_view bytes);
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  std::string path_;
};

}  // namespace millrace
