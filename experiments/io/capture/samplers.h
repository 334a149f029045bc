// Samples of CPU, disks, GPUs and processes, taken once a second beside the calls of a command.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/counters/kernel_counts.h"

namespace millrace {

/// UTC in nanoseconds by the monotonic clock, tied to the clock of the day once, at the first call. So
/// whoever sets that clock later moves no time of a capture.
std::int64_t steady_utc_ns();
/// Returns by how much steady_utc_ns() is ahead of the monotonic clock. That never changes.
std::int64_t utc_ahead_ns();
/// Returns by how much the clock of the day is ahead of steady_utc_ns().
std::int64_t clock_set_by_ns();

/// Writes cpu.out (as mpstat), iostat.json (as iostat), gpu.out (as nvidia-smi pmon), trace_time_align.out,
/// and processes.csv: for each process its CPU seconds, resident bytes, page faults, and the bytes that it
/// moved from and to disks. Not thread-safe.
class Samplers {
 public:
  /// Opens the files and takes the first counts. Throws ConfigError.
  explicit Samplers(const std::filesystem::path& folder);
  ~Samplers();
  Samplers(const Samplers&) = delete;
  Samplers& operator=(const Samplers&) = delete;

  /// Waits for a change of second, and notes which time the monotonic clock has on both sides of it.
  /// 0.1 to 1.1 s.
  void align();
  /// One row in each file. `processes` are those of the command.
  void sample(const std::set<std::uint32_t>& processes);
  /// Ends the files so that any reader takes them, and nvidia-smi.
  void finish();

  bool has_gpu() const { return pmon_ > 0; }
  std::int64_t samples() const { return samples_; }
  std::int64_t lost() const { return lost_; }  ///< rows that the disk did not take
  /// Returns a sentence for each kind of sample that the kernel did not give. No zero stands in its place.
  std::vector<std::string> gaps() const;

 private:
  void sample_cpu(const std::tm& local);
  void sample_disks(const std::tm& local);
  void sample_no_gpu(const std::tm& local);
  void sample_processes(const std::set<std::uint32_t>& processes);
  void put(LineFile& file, const std::string& line);
  /// A count that the kernel does not give.
  struct Gap {
    std::int64_t samples = 0;
    std::string because;
  };
  template <class Counts>
  static std::optional<Counts> noted(const Result<Counts>& counts, Gap& gap);

  KernelCounts kernel_{};
  Gap no_cpu_, no_disks_;
  LineFile cpu_file_, disk_file_, gpu_file_, align_file_, process_file_;
  std::vector<CpuTicks> cpu_before_;  ///< of all cores together; empty: not read yet
  std::map<std::string, DiskCounts> disks_before_;
  std::int64_t disks_at_ns_ = 0;
  std::int64_t samples_ = 0, lost_ = 0;
  int pmon_ = 0;  ///< process of nvidia-smi; 0: none
  bool has_disk_row_ = false, finished_ = false;
};

}  // namespace millrace
