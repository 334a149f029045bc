// Jobs side by side: each is a process of this host that launches the ranks of one job, pinned to cores,
// counted and watched; or a task in the queue of a cluster (batch_arrays.h). One that fails ends nobody else.
// Linux. LibTorch-free.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/launch/job_spec.h"
#include "experiments/sweep/batch_arrays.h"
#include "runtime/base/clock.h"
#include "runtime/base/json.h"

namespace millrace {

/// Says what happens to the leftovers of an earlier try in a job's output folder.
enum class Leftovers { Delete, Keep };

/// One job to run. Its output folder is the pool's.
struct PooledJob {
  JobSpec job;
  Leftovers leftovers = Leftovers::Delete;
  std::vector<std::string> before{};  ///< a program and its arguments that must succeed first; empty: none
  std::vector<int> cores{};           ///< it may run on; empty: on all
};

/// The resources that a job used, over the whole tree of its processes.
struct Counters {
  double seconds = 0;                        ///< wall time from start to end
  double cpu_s = 0;                          ///< user and system
  std::optional<std::int64_t> instructions;  ///< in user mode; nothing where perf is not allowed
  std::int64_t peak_memory_bytes = 0;        ///< private and shared memory, most at once; files not counted

  Json to_json() const;
  static Counters from(const Json& json);
};

struct PooledEnd {
  int id = 0;
  int exit_code = 0;
  std::string error;         ///< what its first failing rank said last; empty: none
  bool over_memory = false;  ///< ended by the pool
  Counters counters;
  double started = 0, ended = 0;  ///< by the steady clock
};

/// The load of the machine while jobs ran. Aggregated as HFTA does: over the middle 80 % of the samples.
struct HostUse {
  double cpu_percent = 0;                   ///< of all cores, mean
  std::int64_t memory_bytes = 0;            ///< of the jobs, most
  std::int64_t available_memory_bytes = 0;  ///< of the host, least
  std::map<std::string, double> gpu;        ///< by field of NVML; empty without
};

struct RunPoolOptions {
  std::int64_t memory_limit = 0;            ///< of all jobs together; over it all of them are ended. 0: none
  std::chrono::milliseconds grace{30'000};  ///< from SIGTERM to SIGKILL after an interrupt
  std::function<void()> waits = {};         ///< called several times a second while jobs run
};

/// Takes SIGCHLD and the stop signals for itself as long as it lives: one in a process, which has one thread.
class RunPool {
 public:
  explicit RunPool(const RunPoolOptions& options = {});
  RunPool(const RunPool&) = delete;
  RunPool& operator=(const RunPool&) = delete;
  /// Ends what still runs.
  ~RunPool();

  /// Jobs for a queue are submitted together, by the next wait(). Throws ConfigError if no process can
  /// be started.
  void start(int id, const PooledJob& job);
  int num_running() const { return static_cast<int>(running_.size() + queued_.size() + arrays_.num_tasks()); }
  /// Waits until at least one has ended; all that have. Empty: none runs. After SIGINT, SIGTERM or SIGHUP all
  /// are asked to stop, and later ended. Throws ConfigError if Slurm takes no jobs, PeerError if it says
  /// nothing.
  std::vector<PooledEnd> wait();
  int interrupt() const { return interrupt_; }  ///< signal that asked for a stop, or 0

  void set_waits(std::function<void()> waits) { options_.waits = std::move(waits); }
  void set_memory_limit(std::int64_t bytes) { options_.memory_limit = bytes; }
  /// Returns the use over the samples since the last call.
  HostUse take_use();

 private:
  struct Running {
    int id = 0;
    pid_t pid = -1;
    std::string folder;
    double started = 0;
    std::int64_t peak_memory = 0;
    bool over_memory = false;
  };
  struct Sample {
    double cpu_percent = 0;
    std::int64_t memory = 0, available = 0;
    std::map<std::string, double> gpu;
  };
  void read_signals();
  void sample();
  void kill_when_due();
  void reap(std::vector<PooledEnd>& ended);
  void reap_arrays(std::vector<PooledEnd>& ended);
  void send(int signal);

  RunPoolOptions options_;
  std::vector<Running> running_;
  std::vector<BatchRun> queued_;  // not submitted yet
  BatchArrays arrays_;
  std::vector<Sample> samples_;
  std::optional<TimePoint> sample_at_, kill_at_;
  double idle_before_ = 0, total_before_ = 0;  // of /proc/stat
  int signals_ = -1;
  int interrupt_ = 0;
  unsigned char old_mask_[128];  // sigset_t
};

/// The places of runs of one job that go on side by side: groups of its hosts, or cores of this host.
class RunSlots {
 public:
  /// Throws ConfigError if the hosts, which SweptJob has checked, have no room for a run any more.
  explicit RunSlots(const JobSpec& job);
  /// How many runs have places of their own, at least 1.
  int count() const;
  /// The run in the `slot`-th place. There are as many slots as one likes: they go round about.
  void place(PooledJob& run, int slot) const;

 private:
  bool queued_ = false;  // the queue finds the places
  std::vector<std::vector<HostEntry>> groups_;
  std::vector<int> cores_;  ///< that this process may use
  int width_ = 1;           ///< threads of all ranks of a run
};

/// Bytes that programs can have without swapping.
std::int64_t available_memory();

}  // namespace millrace
