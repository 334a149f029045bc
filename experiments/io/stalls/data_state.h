// Finds whether data changed while it was measured.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace {

struct DataState {
  std::vector<std::string> files;  ///< sorted
  std::vector<std::uintmax_t> sizes;
  std::vector<std::filesystem::file_time_type> times;  ///< of the last write
};

/// Throws filesystem_error for a file that is not there.
DataState state_of(std::vector<std::string> files);

/// Throws DataError if the files are no longer as they were, or if `now`, which lists the data again, has
/// another one: what was measured is of neither state.
void require_unchanged(const DataState& before, const std::vector<std::string>& now);

}  // namespace millrace
