// Manages the memory of CPU tensors: replaces LibTorch's allocator by one that caches freed blocks.
#pragma once

#include <cstdint>

namespace millrace {

/// Bytes of CPU tensors, as requested; the blocks that hold them are up to an eighth larger.
struct HostMemory {
  std::int64_t live = 0;
  std::int64_t peak = 0;    ///< the greatest `live` so far
  std::int64_t cached = 0;  ///< bytes of free blocks that are kept for later tensors
};

/// Installs an allocator that caches freed blocks of this process's CPU tensors. A pipeline requests the same
/// sizes in every microbatch; fresh pages and malloc's merging would take a quarter of a small step
/// (docs/benchmarks.md). Blocks are aligned to 64 bytes like LibTorch's, so results do not change. Call it
/// once, before other threads create tensors; further calls do nothing.
void install_host_allocator();

/// During the lifetime of such an object, CPU tensors that its thread creates count neither as live nor in
/// the peak. It is for data sets kept in memory, which plans do not account for.
class UncountedTensors {
 public:
  UncountedTensors();
  ~UncountedTensors();
  UncountedTensors(const UncountedTensors&) = delete;
  UncountedTensors& operator=(const UncountedTensors&) = delete;
};

/// Returns the process's peak resident set size in bytes: tensors, libraries, cached blocks. Thread-safe.
std::int64_t peak_resident_bytes();
/// Returns the CPU time in seconds used by all threads of the process. Thread-safe.
double process_cpu_seconds();

/// Returns the current numbers; zeros before install_host_allocator(). Thread-safe.
HostMemory host_memory();
void reset_host_peak();  ///< sets the peak to the live bytes. Thread-safe
void free_host_cache();  ///< returns blocks that hold no tensor to the system. Thread-safe

}  // namespace millrace
