// Counters of a process and its host, sampled by a thread beside a run, into a file of lines. LibTorch-free.
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
  std::chrono::milliseconds interval{1000};  ///< from one sample to the next; 0: no counters
  bool host = false;                         ///< also of the host: processors, memory, disks, networks, GPUs
  std::vector<std::string> data;             ///< files and folders: how much of them the kernel's cache holds
  KernelCounts kernel{};

  bool any() const { return interval.count() > 0; }
};

/// The first line of the file: whose counters these are.
struct CounterHeader {
  std::string run;
  int rank = 0;
  int ranks = 1;  ///< in this process: the others are its threads, from `rank` on
  /// StepLogHeader's.
  std::int64_t clock_ns = 0, unix_ns = 0, clock_offset_ns = 0;
};

/// Samples from its construction to finish() or destruction, at both moments too. A file that cannot be read
/// is named in the sample's `missing`, and counted. A disk that is full costs lines, which are counted.
class CounterSampler {
 public:
  /// Throws ConfigError if the file cannot be made. `append`: a run goes on, and so does its file.
  CounterSampler(const std::filesystem::path& file, const CounterHeader& header, CounterOptions options,
                 bool append);
  ~CounterSampler();
  CounterSampler(const CounterSampler&) = delete;
  CounterSampler& operator=(const CounterSampler&) = delete;

  /// Takes the last sample, looks at the cache again and ends the file.
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
  std::map<std::string, std::int64_t> missed_;  // samples by what they lack
  std::map<std::string, std::string> reasons_;  // the first one of each
  std::mutex mutex_;                            // of wake_
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace millrace
