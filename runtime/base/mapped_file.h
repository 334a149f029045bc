// A memory-mapped file, read on access.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

/// A regular file mapped for reading. Its bytes are valid for the lifetime of the object, even after a move,
/// unless the file is truncated. Move-only.
class MappedFile {
 public:
  MappedFile() = default;  ///< no bytes
  /// Returns an error if the file cannot be opened or mapped, is not a regular file, or is a Git LFS pointer.
  static Result<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  std::string_view bytes() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace millrace
