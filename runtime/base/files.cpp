#include "runtime/base/files.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/lfs_pointer.h"
#include "runtime/base/read_time.h"
#include "runtime/base/unfinished_file.h"
#include "runtime/base/write_hint.h"

namespace millrace {
namespace {

Problem errno_problem(const std::filesystem::path& path, const std::string& action, std::string hint = {}) {
  return {path.string(), action + " failed: " + std::strerror(errno), std::move(hint)};
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = ::write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    content.remove_prefix(n);
  }
  return true;
}

/// Reads to the end and closes `fd`, the result of open() (if negative, errno is set).
Result<std::string> read_opened(const std::filesystem::path& path, int fd, Bytes limit, bool any_kind) {
  if (fd < 0)
    return Problem{path.string(), std::string("cannot be opened: ") + std::strerror(errno), "check the path"};
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    ::close(fd);
    return Problem{path.string(), "is a folder, expected a file", {}};
  }
  if (!any_kind && !S_ISREG(info.st_mode)) {
    ::close(fd);
    return Problem{path.string(), "is no regular file (a FIFO, socket or device)", {}};
  }
  const CountedRead counted;
  std::string content;
  constexpr Bytes kMostAtOnce = 16 * kMiB;  // a sparse file may report any size
  content.reserve(static_cast<std::size_t>(std::min({Bytes{info.st_size}, limit, kMostAtOnce})));
  char buffer[1 << 16];
  ssize_t n;
  while ((n = ::read(fd, buffer, sizeof buffer)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Problem problem = errno_problem(path, "read");
      ::close(fd);
      return problem;
    }
    content.append(buffer, static_cast<std::size_t>(n));
    if (static_cast<Bytes>(content.size()) > limit) {
      ::close(fd);
      return Problem{path.string(), "is larger than the limit of " + std::to_string(limit) + " bytes", {}};
    }
  }
  ::close(fd);
  if (std::optional<Problem> pointer = lfs_pointer(path, content)) return *std::move(pointer);
  return content;
}

}  // namespace

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  if (reach_file_call()) ::fsync(fd);
  ::close(fd);
}

Result<std::string> read_file(const std::filesystem::path& path, Bytes limit) {
  return read_opened(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC), limit, /*any_kind=*/true);
}

Result<std::string> read_regular_file(const std::filesystem::path& path, Bytes limit) {
  // Without O_NONBLOCK, opening a FIFO would block until a writer opens it.
  return read_opened(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), limit,
                     /*any_kind=*/false);
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content, Readers readers) {
  const std::filesystem::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  const UnfinishedFile unfinished(temporary.string());
  // A dead process with this pid may have left a file of this name, readable by everybody.
  ::unlink(temporary.c_str());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        readers == Readers::Private ? 0600 : 0644);
  if (fd < 0) return errno_problem(path, "creating it", "does the folder exist and is it writable?");
  bool written = reach_file_call() && write_all(fd, content) && reach_file_call() && ::fsync(fd) == 0;
  const int error = errno;
  // A network file system may report a full disk only on close.
  const bool closed = ::close(fd) == 0;
  if (!written) errno = error;
  if (!written || !closed) {
    const Problem problem = errno_problem(path, "writing", write_hint(errno));
    ::unlink(temporary.c_str());
    return problem;
  }
  if (!reach_file_call() || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const Problem problem = errno_problem(path, "rename");
    ::unlink(temporary.c_str());
    return problem;
  }
  sync_folder(path.parent_path());
  return Ok{};
}

Status make_writable_folder(const std::filesystem::path& path) {
  const std::string hint = "give a folder that you may write";
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return Problem{path.string(), "cannot be created: " + error.message(), hint};
  const std::filesystem::path probe = path / (".millrace-probe." + std::to_string(::getpid()));
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return Problem{path.string(), std::string("is not writable: ") + std::strerror(errno), hint};
  const bool written = write_all(fd, "x");  // a full disk still makes files
  const int code = errno;
  ::close(fd);
  ::unlink(probe.c_str());
  if (!written)
    return Problem{path.string(), std::string("takes no data: ") + std::strerror(code), write_hint(code)};
  return Ok{};
}

Status make_place_for_file(const std::filesystem::path& path) {
  std::error_code error;
  if (path.filename().empty() || std::filesystem::is_directory(path, error))
    return Problem{path.string(), "is a folder, expected the name of a file", {}};
  const std::filesystem::path folder = path.parent_path();
  return make_writable_folder(folder.empty() ? "." : folder);
}

Status replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  if (!reach_file_call()) return errno_problem(to, "rename");
  if (std::filesystem::exists(to, error)) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0)
      return replace_folder_by_renames(from, to);
  } else if (::rename(from.c_str(), to.c_str()) != 0) {
    return errno_problem(to, "rename");
  }
  sync_folder(to.parent_path());
  return Ok{};
}

Status replace_folder_by_renames(const std::filesystem::path& from, const std::filesystem::path& to) {
  const std::filesystem::path aside = to.string() + ".replaced";
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  const bool taken = std::filesystem::exists(to, error);
  if (taken && ::rename(to.c_str(), aside.c_str()) != 0) return errno_problem(to, "rename");
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const Problem problem = errno_problem(to, "rename");
    if (taken) ::rename(aside.c_str(), to.c_str());
    return problem;
  }
  sync_folder(to.parent_path());
  std::filesystem::remove_all(aside, error);
  return Ok{};
}

LineFile::LineFile(const std::filesystem::path& path, bool append) : path_(path.string()) {
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND | (append ? 0 : O_TRUNC), 0644);
  if (fd_ < 0)
    throw ConfigError(path_ + ": cannot be created: " + std::strerror(errno),
                      "give a folder that you may write");
}

LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}

LineFile::LineFile(LineFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

Status LineFile::write_line(std::string_view line) {
  return write(std::string(line) + '\n');
}

Status LineFile::write(std::string_view bytes) {
  struct stat before {};
  const bool known = ::fstat(fd_, &before) == 0 && S_ISREG(before.st_mode);
  if (write_all(fd_, bytes)) return Ok{};
  Problem problem = errno_problem(path_, "writing", write_hint(errno));
  // A partial line would be joined with the next one.
  if (known && ::ftruncate(fd_, before.st_size) != 0) problem.what += " (and cutting off the rest of it)";
  return problem;
}

}  // namespace millrace
