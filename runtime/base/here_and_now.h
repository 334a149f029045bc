// The processor, the cores and the time of a measurement or run.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace millrace {

/// Returns the processor's name from /proc/cpuinfo, escaped; empty: unknown.
std::string processor_name();

/// Returns the Linux numbers of the cores that this process may use; empty: unknown.
std::vector<int> core_numbers_here();

/// Returns how many cores this process may use; 0: unknown.
int cores_here();

/// Returns the time since this process started, exec(2) included, to a hundredth of a second; 0: unknown.
std::chrono::duration<double> process_age();

/// Returns the time in UTC as "2026-01-31T12:00:00Z".
std::string utc_now();

}  // namespace millrace
