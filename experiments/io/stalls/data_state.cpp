#include "experiments/io/stalls/data_state.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {

namespace fs = std::filesystem;

DataState state_of(std::vector<std::string> files) {
  std::sort(files.begin(), files.end());
  DataState state{.files = std::move(files), .sizes = {}, .times = {}};
  for (const std::string& file : state.files) {
    state.sizes.push_back(fs::file_size(file));
    state.times.push_back(fs::last_write_time(file));
  }
  return state;
}

void require_unchanged(const DataState& before, const std::vector<std::string>& now) {
  const auto changed = [](const std::string& file, const std::string& how) {
    throw DataError(file + ": " + how + " during the run, so its result was not written",
                    "measure again when nothing else writes to the data");
  };
  for (std::size_t f = 0; f < before.files.size(); ++f) {
    std::error_code gone;
    const std::uintmax_t size = fs::file_size(before.files[f], gone);
    if (gone) changed(before.files[f], "was taken away");
    if (size != before.sizes[f])
      changed(before.files[f],
              "went from " + std::to_string(before.sizes[f]) + " to " + std::to_string(size) + " bytes");
    if (fs::last_write_time(before.files[f], gone) != before.times[f] && !gone)
      changed(before.files[f], "was written to");
  }
  for (const std::string& file : now)
    if (!std::ranges::binary_search(before.files, file)) changed(file, "was added");
}

}  // namespace millrace
