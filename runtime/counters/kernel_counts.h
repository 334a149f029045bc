// Linux's counts of a host and of a process, as /proc has them. A file that cannot be read is a Problem that
// names it, never a zero. LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// Ticks since the start of the machine, by kind; guests' time is not in user and nice.
struct CpuTicks {
  enum Kind { User, Nice, System, Idle, IoWait, Irq, SoftIrq, Steal, Guest, GuestNice };
  std::uint64_t of[10] = {};
};

/// Counts of a disk since the start of the machine. Times are in milliseconds and add up over what is in
/// flight.
struct DiskCounts {
  std::uint64_t reads = 0, read_sectors = 0, read_ms = 0;  // a sector has 512 bytes
  std::uint64_t writes = 0, written_sectors = 0, write_ms = 0;
  std::uint64_t busy_ms = 0;       ///< in which something was in flight
  std::uint64_t in_flight_ms = 0;  ///< the same, times how much was
};

struct NetworkCounts {
  std::uint64_t received_bytes = 0, received_packets = 0, sent_bytes = 0, sent_packets = 0;
  std::uint64_t errors = 0;  ///< and what was dropped, both ways
};

struct MemoryCounts {
  std::uint64_t total = 0, available = 0, cached = 0, dirty = 0;  ///< bytes
};

struct ProcessCounts {
  std::string name;
  double cpu_s = 0;
  std::uint64_t threads = 0, minor_faults = 0, major_faults = 0, resident = 0;
};

struct ProcessIo {
  /// Bytes of calls like read() and write(), from wherever they came. Mapped files and sockets' recv() are
  /// not among them.
  std::uint64_t read_by_calls = 0, written_by_calls = 0;
  std::uint64_t read_from_disk = 0, written_to_disk = 0;  ///< also by page faults and reading ahead
};

/// Reads the kernel's counts. Not thread-safe.
class KernelCounts {
 public:
  /// Other folders than the kernel's are for tests.
  explicit KernelCounts(std::filesystem::path proc = "/proc", std::filesystem::path sys = "/sys");

  /// All cores together, then each core.
  Result<std::vector<CpuTicks>> cpu();
  /// Whole disks, not their parts: what /sys/block lists, without loops and memory.
  Result<std::map<std::string, DiskCounts>> disks();
  Result<std::map<std::string, NetworkCounts>> networks();  ///< by interface
  Result<MemoryCounts> memory();
  /// `process`: a number, or "self".
  Result<ProcessCounts> process(const std::string& process);
  Result<ProcessIo> process_io(const std::string& process);  ///< needs the same user

  /// Bytes that this object has read, which count as read by this process.
  std::uint64_t bytes_read() const { return bytes_read_; }
  static double seconds(std::uint64_t ticks);

 private:
  Result<std::string> read(const std::filesystem::path& file);
  std::filesystem::path proc_, sys_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace millrace
