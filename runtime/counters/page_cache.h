// The kernel's page cache: which parts of files it holds, and how to fill it or drop files from it. Linux.
// LibTorch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// Returns the regular files among `paths` and in the folders among them, sorted. Unreadable files are left
/// out.
std::vector<std::string> files_below(const std::vector<std::string>& paths);

/// Reads all files once.
void warm_cache(const std::vector<std::string>& files);
/// Requests that the kernel drop the files' pages, which needs no root. Dirty pages are written first. Pages
/// that a process maps stay.
void drop_cache(const std::vector<std::string>& files);

/// Returns the share of these files' pages that is in memory (mincore). It checks at most 64 files, evenly
/// chosen, and the first 64 MB of each. Returns -1 if none could be checked. For files of other users the
/// kernel may report that all pages are resident.
double cached_share(const std::vector<std::string>& files);

/// The part of some files that is in the kernel's page cache.
struct CacheResidency {
  std::int64_t files = 0, bytes = 0;  ///< that were checked
  std::int64_t resident_bytes = 0;    ///< of the checked bytes
  std::int64_t unreadable = 0;        ///< files that could not be checked
  bool is_whole = true;               ///< false: the budget ran out before all files were checked
};
/// Checks the files among `paths` and in the folders among them, in folder order, until `budget` runs out. It
/// does not read the files.
CacheResidency cache_residency(const std::vector<std::string>& paths, std::chrono::milliseconds budget);

}  // namespace millrace
