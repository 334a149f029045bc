// Files that may be packed by gzip.
#pragma once

#include <filesystem>
#include <string>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// Reads a regular file as a whole. A file that begins as gzip does is unpacked. Problem: it cannot be read,
/// is cut off or damaged, or has more than `limit` bytes, packed or unpacked.
Result<std::string> read_unpacked_file(const std::filesystem::path& path, Bytes limit);

}  // namespace millrace
