// A thread that samples counters of a process and its host during a run, into a file of lines. LibTorch-free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/counters/kernel_counts.h"

namespace millrace {

struct CounterOptions {
  std::chrono::milliseconds interval{1000};  ///< time between samples; 0: no counters
  /// also sample the host: processors, memory, disks, networks, GPUs
  bool host = false;
  /// files and folders whose share in the kernel's page cache is reported
  std::vector<std::string> data;
  KernelCounts kernel{};

  bool any() const { return interval.count() > 0; }
};

/// The first line of the file: identifies the sampled processes.
struct CounterHeader {
  std::string run;
  int rank = 0;
  int ranks = 1;  ///< ranks in this process: threads, numbered from `rank` on
  /// As in StepLogHeader.
  std::int64_t clock_ns = 0, unix_ns = 0, clock_offset_ns = 0;
};

/// Samples from construction to finish() or destruction, including both moments. A counter file that cannot
/// be read is listed in the sample's `missing`, and counted. A full disk loses lines, which are counted.
class CounterSampler {
 public:
  /// Throws ConfigError if the file cannot be created. `append`: a resumed run continues the file.
  CounterSampler(const std::filesystem::path& file, const CounterHeader& header, CounterOptions options,
                 bool append);
  ~CounterSampler();
  CounterSampler(const CounterSampler&) = delete;
  CounterSampler& operator=(const CounterSampler&) = delete;

  /// Takes the last sample, checks the page cache again and closes the file.
  void finish();

 private:
  void run(const std::stop_token& ended);
  void sample();
  void look_at_cache(const char* when);
  void put(const Json& line);
  void add_host(Json& line, Json& missing);
  void miss(Json& missing, const std::string& what, const Problems& problems);

  LineFile file_;
  CounterOptions options_;
  std::int64_t samples_ = 0, skipped_ = 0, lost_ = 0;
  std::map<std::string, std::int64_t> missed_;  // number of samples, by missing counter
  std::map<std::string, std::string> reasons_;  // the first reason for each
  std::mutex mutex_;                            // guards wake_
  std::condition_variable_any wake_;
  std::jthread thread_;  // declared last: it uses all other members
};

}  // namespace millrace
