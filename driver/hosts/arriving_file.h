// A file that comes over a connection piece by piece: the memory that it takes does not depend on its size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "driver/hosts/descriptor.h"
#include "runtime/base/result.h"
#include "runtime/saved/hash.h"

namespace millrace {

/// Writes one file and hashes what it writes. Not thread-safe. The file is for its owner only.
class ArrivingFile {
 public:
  /// Creates `path` in place of an older file of that name. A link of that name is not followed. Problem:
  /// errno.
  static Result<ArrivingFile> create(const std::filesystem::path& path);

  /// Problem: errno, for example of a full disk.
  Status add(std::string_view bytes);
  /// Syncs and closes the file. Problem: errno, or a file with another digest than `expected`.
  Status finish(const FileDigest& expected);
  std::int64_t bytes() const { return bytes_; }

 private:
  ArrivingFile(std::filesystem::path path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)), hash_(std::make_unique<Xxh3>()) {}
  Problem problem(const char* action) const;

  std::filesystem::path path_;
  Descriptor file_;
  std::unique_ptr<Xxh3> hash_;
  std::int64_t bytes_ = 0;
};

}  // namespace millrace
