#include "runtime/saved/hash.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>
// XXH3 is compiled in, because LibTorch may export symbols of another version.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

XXH3_state_t* state_of(void* state) {
  return static_cast<XXH3_state_t*>(state);
}

Hash128 from(const XXH128_hash_t& hash) {
  return {.high = hash.high64, .low = hash.low64};
}

}  // namespace

std::string Hash128::hex() const {
  return printed("%016llx%016llx", static_cast<unsigned long long>(high),
                 static_cast<unsigned long long>(low));
}

std::optional<Hash128> hash_from(const std::string& hex) {
  if (hex.size() != 32 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) return std::nullopt;
  return Hash128{.high = std::strtoull(hex.substr(0, 16).c_str(), nullptr, 16),
                 .low = std::strtoull(hex.substr(16).c_str(), nullptr, 16)};
}

Xxh3::Xxh3() : state_(XXH3_createState()) {
  MILLRACE_CHECK(state_ && XXH3_128bits_reset(state_of(state_)) == XXH_OK);
}

Xxh3::~Xxh3() {
  XXH3_freeState(state_of(state_));
}

void Xxh3::add(const void* data, std::size_t bytes) {
  MILLRACE_CHECK(XXH3_128bits_update(state_of(state_), data, bytes) == XXH_OK);
}

Hash128 Xxh3::value() const {
  return from(XXH3_128bits_digest(state_of(state_)));
}

Hash128 xxh3(const void* data, std::size_t bytes) {
  return from(XXH3_128bits(data, bytes));
}

std::string sha256(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  MILLRACE_CHECK(EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += printed("%02x", digest[i]);
  return hex;
}

Result<FileDigest> digest_of_file(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return Problem{path.string(), std::string("cannot be opened: ") + std::strerror(errno), {}};
  Xxh3 hash;
  FileDigest digest;
  std::vector<char> buffer(1 << 20);
  for (ssize_t n; (n = ::read(fd, buffer.data(), buffer.size())) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const Problem problem{path.string(), std::string("cannot be read: ") + std::strerror(errno), {}};
      ::close(fd);
      return problem;
    }
    hash.add(buffer.data(), static_cast<std::size_t>(n));
    digest.bytes += n;
  }
  ::close(fd);
  digest.hash = hash.value();
  return digest;
}

}  // namespace millrace
