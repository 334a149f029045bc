// Hashes of files: XXH3-128 (libxxhash) for large data, SHA-256 (OpenSSL) for the manifest that holds the
// other hashes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const;  ///< 32 digits, as xxh128sum prints them
};

/// Parses the result of hex(); nothing if it is not a hash.
std::optional<Hash128> hash_from(const std::string& hex);

/// The size and hash that identify a file's content.
struct FileDigest {
  std::int64_t bytes = 0;
  Hash128 hash;  ///< XXH3-128 of the whole file
};

/// Computes XXH3 with 128 bits over pieces of any size. Not thread-safe.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  Hash128 value() const;

 private:
  void* state_;
};

Hash128 xxh3(const void* data, std::size_t bytes);

/// Returns the SHA-256 of `text` as 64 hexadecimal digits, as sha256sum prints them.
std::string sha256(std::string_view text);

/// Returns the digest of a file of any size, read in pieces. Returns an error if the file cannot be read.
Result<FileDigest> digest_of_file(const std::filesystem::path& path);

}  // namespace millrace
