// A file in memory, read as it is touched.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

/// A regular file that is mapped for reading. Its bytes are valid as long as the object lives, also after a
/// move, and while nobody shortens the file. Move-only.
class MappedFile {
 public:
  MappedFile() = default;  ///< no bytes
  /// Problem: the file cannot be opened or mapped, is no regular file, or is a pointer of Git LFS.
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
