#include "runtime/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

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
    content.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

/// rename is atomic but durable only after the folder is synced.
void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

/// Reads to the end and closes `fd`, which open() returned (with errno where it is negative).
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
  std::string content;
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
  return content;
}

}  // namespace

Result<std::string> read_file(const std::filesystem::path& path, Bytes limit) {
  return read_opened(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC), limit, /*any_kind=*/true);
}

Result<std::string> read_regular_file(const std::filesystem::path& path, Bytes limit) {
  // Without O_NONBLOCK the opening of a FIFO would wait for a writer.
  return read_opened(path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), limit,
                     /*any_kind=*/false);
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const std::filesystem::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno_problem(path, "creating it", "does the folder exist and is it writable?");
  const bool written = write_all(fd, content) && ::fsync(fd) == 0;
  if (!written) {
    const Problem problem = errno_problem(path, "writing", "is the disk full?");
    ::close(fd);
    ::unlink(temporary.c_str());
    return problem;
  }
  ::close(fd);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const Problem problem = errno_problem(path, "rename");
    ::unlink(temporary.c_str());
    return problem;
  }
  sync_folder(path.parent_path());
  return Ok{};
}

Status make_writable_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return Problem{path.string(), "cannot be created: " + error.message(),
                   "give a folder that you may write"};
  const std::filesystem::path probe = path / (".millrace-probe." + std::to_string(::getpid()));
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    return Problem{path.string(), std::string("is not writable: ") + std::strerror(errno),
                   "give a folder that you may write"};
  ::close(fd);
  ::unlink(probe.c_str());
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

void LineFile::write_line(std::string_view line) {
  std::string text(line);
  text += '\n';
  if (!write_all(fd_, text))
    throw DataError(path_ + ": write failed: " + std::strerror(errno), "is the disk full?");
}

}  // namespace millrace
