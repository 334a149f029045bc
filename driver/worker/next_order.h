// A rank that has lost its peer waits for the launcher's order to run the job again, in the same process.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

/// Notifies the launcher that this rank has met the others. From then on next_order() may be called.
void tell_of_meeting();

/// Notifies the launcher that the run has ended here because a peer is lost, and waits for an order. Resets
/// the process's state to that of a new process: the environment of the order, no kept memory. Returns the
/// arguments of `train`, or nothing if the launcher wants no run or sends nothing for kOrderPatience.
std::optional<std::vector<std::string>> next_order();

/// Returns how much longer than a new process this one waits to meet the others: it continues immediately
/// after an order, while new processes are still starting.
std::chrono::milliseconds start_patience();

}  // namespace millrace
