#include "runtime/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/lfs_pointer.h"

namespace millrace {

Result<MappedFile> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return Problem{path, std::string("cannot be opened: ") + std::strerror(errno),
                   errno == ENOENT ? "the path is relative to the current folder" : ""};
  struct stat info {};
  ::fstat(fd, &info);
  MappedFile file;
  void* mapped = nullptr;
  if (S_ISREG(info.st_mode) && info.st_size > 0)
    mapped = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (!S_ISREG(info.st_mode)) return Problem{path, "is no regular file", {}};
  if (mapped == MAP_FAILED)
    return Problem{path, std::string("cannot be mapped: ") + std::strerror(errno), {}};
  file.data_ = static_cast<const char*>(mapped);
  file.size_ = static_cast<std::size_t>(info.st_size);
  if (std::optional<Problem> pointer = lfs_pointer(path, file.bytes())) return *std::move(pointer);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace millrace
