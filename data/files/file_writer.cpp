#include "data/files/file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/lfs_pointer.h"
#include "runtime/base/read_time.h"
#include "runtime/base/write_hint.h"

namespace millrace {
namespace {

// Alignment of addresses, offsets and lengths for O_DIRECT: enough for every block device.
constexpr std::int64_t kAlignment = 4096;

[[noreturn]] void fail(const std::string& path, const std::string& action, std::string hint) {
  throw DataError(path + ": " + action + " failed: " + std::strerror(errno), std::move(hint));
}

void write_at(int fd, const std::string& path, const char* data, std::size_t bytes, std::int64_t offset) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, data, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(path, "write", write_hint(errno));
    data += n;
    bytes -= static_cast<std::size_t>(n);
    offset += n;
  }
}

}  // namespace

FileWriter::FileWriter(std::filesystem::path path, std::size_t buffer_bytes)
    : FileWriter(std::move(path), buffer_bytes, 0, Partial::Removed) {}

FileWriter FileWriter::continued(std::filesystem::path path, std::int64_t keep) {
  return {std::move(path), 1 << 20, keep, Partial::Kept};
}

FileWriter::FileWriter(std::filesystem::path path, std::size_t buffer_bytes, std::int64_t keep,
                       Partial partial)
    : path_(std::move(path)),
      partial_(path_.string() + ".partial"),
      when_interrupted_(partial),
      capacity_(buffer_bytes),
      written_(keep) {
  if (partial == Partial::Removed) unfinished_ = UnfinishedFile(partial_);
  fd_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(partial_, "creating it", "give a folder that you may write");
  if (::ftruncate(fd_, keep) != 0) fail(partial_, "truncating it", {});
  buffer_.reset(new char[capacity_]);  // not zeroed
}

FileWriter::FileWriter(FileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      when_interrupted_(other.when_interrupted_),
      unfinished_(std::move(other.unfinished_)),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)),
      capacity_(other.capacity_),
      used_(std::exchange(other.used_, 0)),
      written_(other.written_) {}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  if (when_interrupted_ == Partial::Kept && used_ > 0) {
    // Writes as much as fits: the next writer keeps whole records only.
    if (::pwrite(fd_, buffer_.get(), used_, written_) < 0) used_ = 0;
  }
  ::close(fd_);
  if (when_interrupted_ == Partial::Removed) ::unlink(partial_.c_str());
}

void FileWriter::flush() {
  write_at(fd_, partial_, buffer_.get(), used_, written_);
  written_ += static_cast<std::int64_t>(used_);
  used_ = 0;
}

void FileWriter::write(std::string_view bytes) {
  if (bytes.size() > capacity_ - used_) flush();
  if (bytes.size() > capacity_) {
    write_at(fd_, partial_, bytes.data(), bytes.size(), written_);
    written_ += static_cast<std::int64_t>(bytes.size());
    return;
  }
  if (!bytes.empty()) std::memcpy(buffer_.get() + used_, bytes.data(), bytes.size());
  used_ += bytes.size();
}

char* FileWriter::reserve(std::size_t bytes) {
  MILLRACE_CHECK(bytes <= capacity_);
  if (bytes > capacity_ - used_) flush();
  char* place = buffer_.get() + used_;
  used_ += bytes;
  return place;
}

void FileWriter::patch(std::int64_t offset, std::string_view bytes) {
  flush();
  MILLRACE_CHECK(offset + static_cast<std::int64_t>(bytes.size()) <= written_);
  write_at(fd_, partial_, bytes.data(), bytes.size(), offset);
}

void FileWriter::commit(Durability durability) {
  flush();
  if (durability == Durability::Synced && ::fsync(fd_) != 0) fail(partial_, "fsync", write_hint(errno));
  ::close(fd_);
  fd_ = -1;
  if (::rename(partial_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    errno = error;
    fail(path_.string(), "rename", {});
  }
  unfinished_ = {};
}

void AlignedBuffer::resize(std::size_t bytes) {
  if (bytes > capacity_) {
    capacity_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_.reset();  // frees the old buffer first, so that never both are in memory
    data_.reset(static_cast<char*>(::operator new[](capacity_, std::align_val_t{kAlignment})));
  }
  size_ = bytes;
}

FileReader::FileReader(const std::filesystem::path& path, const ReadOptions& options)
    : path_(path.string()), options_(options) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | (options.direct ? O_DIRECT : 0));
  if (fd_ < 0 && errno == EINVAL && options.direct)
    throw DataError(path_ + ": the file system does not read past its page cache (O_DIRECT)",
                    "put the data on a disk file system, or leave reader.odirect out");
  if (fd_ < 0) fail(path_, "opening it", "generate the data first, or check the path");
  struct stat info {};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw DataError(path_ + ": is not a file");
  }
  size_ = info.st_size;
}

FileReader::~FileReader() {
  ::close(fd_);
}

std::string_view FileReader::read(std::int64_t offset, std::int64_t bytes, AlignedBuffer& buffer) const {
  if (offset < 0 || bytes < 0 || bytes > size_ || offset > size_ - bytes)
    throw DataError(path_ + ": ends at byte " + std::to_string(size_) + ", bytes " + std::to_string(offset) +
                        " to " + std::to_string(offset + bytes) + " were expected",
                    "the file is cut off: generate it again");
  const std::int64_t begin = options_.direct ? offset / kAlignment * kAlignment : offset;
  const std::int64_t end =
      options_.direct ? (offset + bytes + kAlignment - 1) / kAlignment * kAlignment : offset + bytes;
  buffer.resize(end - begin);
  const CountedRead counted;
  std::int64_t transfer = options_.transfer_size > 0 ? options_.transfer_size : end - begin;
  if (options_.direct) transfer = std::max(kAlignment, transfer / kAlignment * kAlignment);
  for (std::int64_t at = begin; at < offset + bytes;) {
    const auto want = static_cast<std::size_t>(std::min(transfer, end - at));
    const ssize_t n = ::pread(fd_, buffer.data() + (at - begin), want, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "read", {});
    if (n == 0) throw DataError(path_ + ": became shorter while it was read");
    at += n;
    // A direct read that stops inside a block has reached the file's end.
    if (options_.direct && at % kAlignment != 0 && at < offset + bytes)
      throw DataError(path_ + ": became shorter while it was read");
  }
  const std::string_view wanted(buffer.data() + (offset - begin), static_cast<std::size_t>(bytes));
  if (const auto pointer = offset == 0 ? lfs_pointer(path_, wanted) : std::nullopt)
    throw DataError(pointer->where + ": " + pointer->what, pointer->hint);
  return wanted;
}

}  // namespace millrace
