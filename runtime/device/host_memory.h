// Manages the memory of CPU tensors: it replaces LibTorch's allocator by one that keeps freed blocks.
#pragma once

#include <cstdint>

namespace millrace {

/// Bytes of CPU tensors, as they were asked for: the blocks that hold them are up to an eighth larger.
struct HostMemory {
  std::int64_t live = 0;
  std::int64_t peak = 0;    ///< the greatest `live` so far
  std::int64_t cached = 0;  ///< bytes of blocks that tensors have freed and that are kept for the next ones
};

/// Lets CPU tensors of this process come from blocks that are kept when freed, from now on. A pipeline asks
/// for the same sizes in every microbatch; fresh pages and malloc's merging would take a quarter of a small
/// step (docs/benchmarks.md). Blocks are aligned to 64 bytes as LibTorch's are, so results do not change.
/// Call it once, before other threads make tensors; further calls do nothing.
void install_host_allocator();

/// While such an object lives, CPU tensors that its thread makes count neither as live nor in the peak. It
/// serves data sets that are kept in memory, which no plan knows of.
class UncountedTensors {
 public:
  UncountedTensors();
  ~UncountedTensors();
  UncountedTensors(const UncountedTensors&) = delete;
  UncountedTensors& operator=(const UncountedTensors&) = delete;
};

/// Returns the process's largest resident set so far in bytes: tensors, libraries, kept blocks. Thread-safe.
std::int64_t peak_resident_bytes();
/// Returns the seconds of CPU time that all threads of the process have had. Thread-safe.
double process_cpu_seconds();

/// Returns the current numbers; zeros before install_host_allocator(). Thread-safe.
HostMemory host_memory();
void reset_host_peak();  ///< sets the peak to the live bytes. Thread-safe
void free_host_cache();  ///< gives blocks that hold no tensor back to the system. Thread-safe

}  // namespace millrace
