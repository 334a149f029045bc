#include "driver/hosts/arriving_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/write_hint.h"

namespace millrace {

Problem ArrivingFile::problem(const char* action) const {
  return {path_.string(), std::string(action) + " failed: " + std::strerror(errno), write_hint(errno)};
}

Result<ArrivingFile> ArrivingFile::create(const std::filesystem::path& path) {
  ::unlink(path.c_str());
  ArrivingFile file(
      path, Descriptor(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)));
  if (!file.file_.is_open()) return file.problem("creating it");
  return file;
}

Status ArrivingFile::add(std::string_view bytes) {
  hash_->add(bytes);
  bytes_ += static_cast<std::int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return problem("writing");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return Ok{};
}

Status ArrivingFile::finish(const FileDigest& expected) {
  if (::fsync(file_.get()) != 0) return problem("fsync");
  file_.close();
  const Hash128 hash = hash_->value();
  if (bytes_ == expected.bytes && hash == expected.hash) return Ok{};
  return Problem{path_.string(),
                 "arrived with " + std::to_string(bytes_) + " bytes and XXH3-128 " + hash.hex() +
                     ", expected " + std::to_string(expected.bytes) + " bytes and " + expected.hash.hex(),
                 "it was changed or damaged on its way; try again"};
}

}  // namespace millrace
