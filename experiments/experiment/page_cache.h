// The kernel's cache of a data set's files: filled or dropped before a run. Linux. LibTorch-free.
#pragma once

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

}  // namespace millrace
