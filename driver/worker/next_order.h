// A rank that has lost its peer waits for the launcher's order to run the job again, in the same process.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

/// Tells the launcher that this rank has met the others. From now on next_order() may be called.
void tell_of_meeting();

/// Tells the launcher that the run has ended here because a peer is lost, and waits for an order. Puts what
/// is of the process, and not of a run, as a new process has it: the environment of the order, no kept
/// memory. Returns the arguments of `train`; nothing: the launcher wants none, or says nothing for
/// kOrderPatience.
std::optional<std::vector<std::string>> next_order();

/// How much longer than a new process this one waits to meet the others: it goes on at once after an order,
/// and they are still being started.
std::chrono::milliseconds start_patience();

}  // namespace millrace
