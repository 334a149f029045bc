// LibTorch-free.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace millrace {

/// The settings that determine a run, keyed by flag name: ("lr", "0.01"), ("microbatch", "8"), ...
using Settings = std::vector<std::pair<std::string, std::string>>;

inline void append(Settings& settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
}

}  // namespace millrace
