// The kernel's cache of files: what of them it holds, and how to fill it or drop them from it. Linux.
// LibTorch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// The regular files among `paths` and below those that are folders, sorted. What cannot be read is left out.
std::vector<std::string> files_below(const std::vector<std::string>& paths);

/// Reads all files once.
void warm_cache(const std::vector<std::string>& files);
/// Asks the kernel to drop their pages, which needs no root. Pages that a process maps, or that are not on
/// the disk yet, stay: what is not written is written first.
void drop_cache(const std::vector<std::string>& files);

/// Share of these files' pages that the kernel has in memory (mincore): of up to 64 files, evenly chosen, the
/// first 64 MB. -1 where none could be looked at. Where it does not have to tell (files of other users), it
/// says that all are.
double cached_share(const std::vector<std::string>& files);

/// How much of some files is in the kernel's cache.
struct CacheResidency {
  std::int64_t files = 0, bytes = 0;  ///< that were looked at
  std::int64_t resident_bytes = 0;    ///< of them
  std::int64_t unreadable = 0;        ///< files that could not be looked at
  bool is_whole = true;               ///< false: the time was over, and there is more
};
/// Looks at the files among `paths` and below them, in the order of their folders, until `budget` is over. It
/// reads nothing of them.
CacheResidency cache_residency(const std::vector<std::string>& paths, std::chrono::milliseconds budget);

}  // namespace millrace
