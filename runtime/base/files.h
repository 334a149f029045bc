// Files: whole reads with a size limit, atomic durable writes, folders. State files are never written with
// ofstream.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// Returns the whole file as bytes. Returns an error if the file is absent, unreadable, a folder or larger
/// than `limit`.
Result<std::string> read_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);
/// Reads a regular file. Returns an error for a FIFO, a socket or a device, without waiting for it.
Result<std::string> read_regular_file(const std::filesystem::path& path, Bytes limit = 256 * kMiB);

/// The users who may read a written file. `Private` is for files that may hold secrets.
enum class Readers { Everybody, Private };

/// Writes `path.tmp.<pid>`, syncs it, renames it over `path` and syncs the folder. Errors include errno.
/// After a signal that ends the process, either the old or the new file exists, and no temporary file.
Status write_file_atomically(const std::filesystem::path& path, std::string_view content,
                             Readers readers = Readers::Everybody);

/// Creates the folder (and its parents) if needed, and verifies that a file can be written in it.
Status make_writable_folder(const std::filesystem::path& path);

/// Creates the parent folder of `path` if needed, and verifies that a file can be written there. Returns an
/// error if `path` is a folder itself.
Status make_place_for_file(const std::filesystem::path& path);

/// Replaces the folder `to` by the folder `from`, durably. (rename(2) alone fails if `to` is a folder with
/// files, and is not durable.) The old folder is then at `from`, and the caller removes it. If the file
/// system cannot exchange two names, two renames are used and the old folder is deleted. Between the two
/// renames the old folder is called `to`.replaced.
Status replace_folder(const std::filesystem::path& from, const std::filesystem::path& to);
/// Replaces the folder by two renames, without an exchange.
Status replace_folder_by_renames(const std::filesystem::path& from, const std::filesystem::path& to);

/// Syncs the folder. A rename or unlink in it is durable only afterwards.
void sync_folder(const std::filesystem::path& folder);

/// Appends lines to a file; each call to `write_line` is one write(2). Each line is written completely or not
/// at all, even when the disk is full.
class LineFile {
 public:
  LineFile() = default;
  /// Throws ConfigError if the file cannot be created.
  explicit LineFile(const std::filesystem::path& path, bool append = false);
  ~LineFile();
  LineFile(LineFile&&) noexcept;
  LineFile& operator=(LineFile&&) noexcept;
  /// Returns an error with errno if the write fails; later lines may succeed again.
  Status write_line(std::string_view line);
  /// Appends bytes that are not a line, completely or not at all.
  Status write(std::string_view bytes);
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
  std::string path_;
};

}  // namespace millrace
