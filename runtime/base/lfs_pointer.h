// Git LFS: a clone without its objects has small text files in place of large files.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

/// The first bytes of every pointer.
inline constexpr std::string_view kLfsBegin = "version https://git-lfs.github.com/spec/v1";

/// Returns an error for the file at `path` if `begin`, its first bytes, are those of a Git LFS pointer. All
/// code that opens files for reading calls this: read_file, MappedFile and readers with their own open().
inline std::optional<Problem> lfs_pointer(const std::filesystem::path& path, std::string_view begin) {
  if (!begin.starts_with(kLfsBegin)) return std::nullopt;
  return Problem{path.string(), "is a pointer of Git LFS, not the file itself",
                 "`git lfs pull` in its repository fetches the file"};
}

}  // namespace millrace
