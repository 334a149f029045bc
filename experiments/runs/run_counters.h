// Reads the counters of a run (counters.rank<k>.jsonl) back for people. LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace millrace {

/// How much of the data set was in the kernel's cache (runtime/counters/page_cache.h).
struct CacheLook {
  std::string when;  ///< "start" or "end"
  std::int64_t files = 0, bytes = 0, resident_bytes = 0, unreadable_files = 0;
  bool is_whole = false;
};

/// The counts of a process, and with `of_host` of its host, while it ran.
struct ProcessCounters {
  std::string host;
  int rank = 0, ranks = 1;
  bool of_host = false;
  bool is_ended = false;     ///< false: the file has no end
  std::int64_t samples = 0;  ///< that were taken
  std::int64_t skipped = 0;  ///< that came too late to be taken
  std::int64_t damaged = 0;  ///< lines that cannot be read
  double own_cpu_s = 0;      ///< that the sampling itself took; 0: not known
  /// Samples without a value, by what could not be read, with the reason.
  std::map<std::string, std::pair<std::int64_t, std::string>> missing;
  std::vector<CacheLook> cache;
  /// Moments in nanoseconds since 1970, by the clock of rank 0. Of long runs every n-th sample is read.
  std::vector<std::int64_t> unix_ns;
  /// The number of each moment by name ("process.cpu_s", "disks.sda.read_bytes", "cores.busy_s.0"). NaN: it
  /// is missing.
  std::map<std::string, std::vector<double>> values;

  /// Returns the numbers of `name`; null: there are none.
  const std::vector<double>* find(const std::string& name) const;
  /// Names that begin with `begin` and end with `end`: what is between them, for example disks.
  std::vector<std::string> between(const std::string& begin, const std::string& end) const;
  /// Returns what the counter has grown from one moment to another, with straight lines between samples; NaN:
  /// it is not there.
  double growth(const std::string& name, std::int64_t from_ns, std::int64_t to_ns) const;
};

/// The processes of a run in the order of ranks. A resumed run has several of a rank. Empty: nothing was
/// counted.
std::vector<ProcessCounters> read_counters(const std::string& folder);

}  // namespace millrace
