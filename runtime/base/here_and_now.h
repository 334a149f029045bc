// The processor and the time at which something is measured or run, and the cores that it may use.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace millrace {

/// Returns the processor's name as /proc/cpuinfo has it, escaped; empty: it has none.
std::string processor_name();

/// Returns the cores that this process may use, by their numbers in Linux; empty: not known.
std::vector<int> core_numbers_here();

/// Returns how many cores this process may use; 0: not known.
int cores_here();

/// Returns how long ago this process was started, exec(2) included, to a hundredth of a second; 0: not known.
std::chrono::duration<double> process_age();

/// Returns the time in UTC as "2026-01-31T12:00:00Z".
std::string utc_now();

}  // namespace millrace
