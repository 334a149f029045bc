// Samples of CPU, disks, GPUs and processes, taken once a second beside the calls of a command.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/counters/kernel_counts.h"

namespace millrace {

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

  /// Waits for the next change of second, and notes on both sides of it which time the monotonic clock has.
  /// At most 1 s.
  void align();
  /// One row in each file. `processes` are those of the command.
  void sample(const std::set<std::uint32_t>& processes);
  /// Ends the files so that any reader takes them, and nvidia-smi.
  void finish();

  bool has_gpu() const { return pmon_ > 0; }
  std::int64_t samples() const { return samples_; }
  std::int64_t lost() const { return lost_; }  ///< rows that the disk did not take

 private:
  void sample_cpu(const std::tm& local);
  void sample_disks(const std::tm& local);
  void sample_no_gpu(const std::tm& local);
  void sample_processes(const std::set<std::uint32_t>& processes);
  void put(LineFile& file, const std::string& line);
  CpuTicks cpu_ticks();
  std::map<std::string, DiskCounts> disks();

  KernelCounts kernel_{};
  LineFile cpu_file_, disk_file_, gpu_file_, align_file_, process_file_;
  CpuTicks cpu_before_;
  std::map<std::string, DiskCounts> disks_before_;
  std::int64_t disks_at_ns_ = 0;
  std::int64_t samples_ = 0, lost_ = 0;
  int pmon_ = 0;  ///< process of nvidia-smi; 0: none
  bool finished_ = false;
};

}  // namespace millrace
