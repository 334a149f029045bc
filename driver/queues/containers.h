// The containers in which the agents of a job may run. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// The container in which the ranks of each host run.
struct Container {
  std::string image;                ///< empty: none
  std::string runtime = "docker";   ///< a row of the table in containers.cpp
  std::vector<std::string> mounts;  ///< "/data" or "/data:/inside", "/data:/inside:ro"
};

/// Returns the words that run `agent` in the container, with `folder` mounted and with the host's network.
/// Problem: an unknown runtime, a mount that is no absolute path.
Result<std::vector<std::string>> in_container(const Container& container, const std::string& folder,
                                              bool with_gpus, std::vector<std::string> agent);

}  // namespace millrace
