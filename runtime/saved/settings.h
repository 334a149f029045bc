// LibTorch-free.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// The settings that decide a run, by the names of the flags: ("lr", "0.01"), ("microbatch", "8"), ...
using Settings = std::vector<std::pair<std::string, std::string>>;

inline void append(Settings& settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
}

}  // namespace millrace
