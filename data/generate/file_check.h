// A file compared with the bytes that were generated into it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/files/file_writer.h"

namespace millrace {

/// "byte 17 is 0x4f, 0x5f was generated" of the first byte that differs, counted from `offset`; nothing if
/// none does. Both have the same length.
std::optional<std::string> first_difference(std::string_view found, std::string_view generated,
                                            std::int64_t offset = 0);

/// Takes what a FileWriter takes, and compares instead of writing. The first byte that differs, or the end of
/// a file that is too short or too long, is a DataError with the path and the byte's place. So is a missing
/// file.
class FileCheck {
 public:
  explicit FileCheck(const std::filesystem::path& path);
  void write(std::string_view bytes);
  /// Room for the next part, to be filled by the caller at once.
  char* reserve(std::size_t bytes);
  /// After the last part.
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
