// Git LFS: a clone without its objects has small texts in the place of large files.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

/// The first bytes of each pointer.
inline constexpr std::string_view kLfsBegin = "version https://git-lfs.github.com/spec/v1";

/// Returns a Problem of the file at `path` if `begin`, its first bytes, are those of a pointer of Git LFS.
/// Whatever opens files for reading asks: read_file, MappedFile and the readers that open files themselves.
inline std::optional<Problem> lfs_pointer(const std::filesystem::path& path, std::string_view begin) {
  if (!begin.starts_with(kLfsBegin)) return std::nullopt;
  return Problem{path.string(), "is a pointer of Git LFS, not the file itself",
                 "`git lfs pull` in its repository fetches the file"};
}

}  // namespace millrace
