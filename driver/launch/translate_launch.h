// `millrace translate --ranks N` as the user types it: starts the ranks on this host. LibTorch-free.
#pragma once

#include <string>
#include <vector>

namespace millrace {

/// True if these are arguments of `translate` for several ranks, and this process is no rank of a job: the
/// caller must start them.
bool starts_translate_ranks(const std::vector<std::string>& args);

/// Starts the ranks and ends all when one fails. 0; 2 for what cannot start; the first failing rank's code.
int launch_translate(const std::vector<std::string>& args);

}  // namespace millrace
