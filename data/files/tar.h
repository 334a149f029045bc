// Archives of tar: where each file's bytes are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

struct TarMember {
  std::string name;
  std::int64_t offset = 0;  ///< of the content, in the archive
  std::int64_t size = 0;    ///< bytes
  bool is_file = true;      ///< false: a link, a device or another that has no content of its own
  int part = 0;             ///< the number of the archive, where several were joined
};

/// Lists what an archive holds, in its order and without folders. It reads headers alone: ustar, GNU's long
/// names, and the path and size of pax. It reads on behind an archive's end, where another one may follow
/// (`cat a.tar b.tar`). Problem: unreadable, a header whose checksum is wrong, a cut-off end, other bytes
/// behind the end, a packed archive (which cannot be read from the middle).
Result<std::vector<TarMember>> list_tar(const std::filesystem::path& path);

/// Reads a member's content. A Problem names the archive and the member: it changed, or is a pointer of Git
/// LFS.
Result<std::string> read_tar_member(const std::filesystem::path& path, const TarMember& member);

}  // namespace millrace
