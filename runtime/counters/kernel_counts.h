// Linux's counters of a host and of a process, read from /proc. A file that cannot be read is an error that
// names it, never a zero. LibTorch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// Ticks since boot, by kind; guest time is not included in user and nice.
struct CpuTicks {
  enum Kind { User, Nice, System, Idle, IoWait, Irq, SoftIrq, Steal, Guest, GuestNice };
  std::uint64_t of[10] = {};
};

/// Counters of a disk since boot. Times are in milliseconds and are summed over requests in flight.
struct DiskCounts {
  std::uint64_t reads = 0, read_sectors = 0, read_ms = 0;  // a sector has 512 bytes
  std::uint64_t writes = 0, written_sectors = 0, write_ms = 0;
  std::uint64_t busy_ms = 0;       ///< time with at least one request in flight
  std::uint64_t in_flight_ms = 0;  ///< time with requests in flight, weighted by their number
};

struct NetworkCounts {
  std::uint64_t received_bytes = 0, received_packets = 0, sent_bytes = 0, sent_packets = 0;
  std::uint64_t errors = 0;  ///< errors and dropped packets, in both directions
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
  /// Bytes transferred by calls such as read() and write(), from any source. Mapped files and recv() on
  /// sockets are not included.
  std::uint64_t read_by_calls = 0, written_by_calls = 0;
  std::uint64_t read_from_disk = 0, written_to_disk = 0;  ///< also by page faults and read-ahead
};

/// Reads the kernel's counters. Not thread-safe.
class KernelCounts {
 public:
  /// Other folders than the kernel's are used by tests.
  explicit KernelCounts(std::filesystem::path proc = "/proc", std::filesystem::path sys = "/sys");

  /// Returns all cores together, then each core.
  Result<std::vector<CpuTicks>> cpu();
  /// Returns counters of whole disks, not partitions: the entries of /sys/block, without loop and memory
  /// devices.
  Result<std::map<std::string, DiskCounts>> disks();
  Result<std::map<std::string, NetworkCounts>> networks();  ///< by interface
  Result<MemoryCounts> memory();
  /// `process` is a pid or "self".
  Result<ProcessCounts> process(const std::string& process);
  Result<ProcessIo> process_io(const std::string& process);  ///< requires the same user

  /// Bytes that this object has read, which the kernel counts as reads by this process.
  std::uint64_t bytes_read() const { return bytes_read_; }
  static double seconds(std::uint64_t ticks);

 private:
  Result<std::string> read(const std::filesystem::path& file);
  std::filesystem::path proc_, sys_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace millrace
