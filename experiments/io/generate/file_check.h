// Compares a file with the bytes that were generated into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/files/file_writer.h"

namespace millrace {

/// Returns a text about the first byte that differs, such as "byte 17 is 0x4f, 0x5f was generated". Bytes are
/// counted from `offset`. Returns nothing if no byte differs. Both texts must have the same length.
std::optional<std::string> first_difference(std::string_view found, std::string_view generated,
                                            std::int64_t offset = 0);

/// Has the functions of a FileWriter, but compares instead of writing. Throws DataError with the path for a
/// missing file, for the first byte that differs, and for a file that is too short or too long.
class FileCheck {
 public:
  explicit FileCheck(const std::filesystem::path& path);
  void write(std::string_view bytes);
  /// Returns room for the next part. The caller must fill it before the next call.
  char* reserve(std::size_t bytes);
  /// Ends the comparison. Call it after the last part.
  void finish();

 private:
  void compare(std::string_view generated);
  [[noreturn]] void fail(const std::string& what) const;
  FileReader reader_;
  AlignedBuffer buffer_;
  std::string reserved_;
  std::int64_t at_ = 0;
};

}  // namespace millrace
