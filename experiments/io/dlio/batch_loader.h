// Batches for one emulated rank: read ahead by threads, or from memory, or by a simulated time line.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/files/sample_file.h"
#include "experiments/io/dlio/sample_order.h"
#include "experiments/io/dlio/time_spec.h"

namespace millrace {

/// The samples of one split: their files and their format. Const while loaders run; thread-safe.
struct SampleSource {
  SampleFormat format = SampleFormat::Npz;
  std::vector<std::string> files;
  std::vector<std::string> indices;  ///< of tfrecord; may be empty
  ReadOptions read;
  TimeSpec preprocess;
  std::uint64_t seed = 0;
  bool synthetic = false;  ///< no files at all
  /// Throws DataError if the bytes of (file, sample) are wrong; empty: not checked.
  std::function<void(std::int64_t file, std::int64_t sample, std::string_view bytes)> check;
  /// All samples, by file * samples_per_file + sample; empty: read when needed.
  std::vector<std::string> memory;
  std::int64_t samples_per_file = 1;
  /// Called by a reader before it opens a file; empty: nothing is. From many threads.
  std::function<void(std::int64_t file)> before_open;
};

/// The samples that a rank takes in one step.
struct LoadedBatch {
  std::int64_t samples = 0;
  Bytes bytes = 0;
  std::uint64_t places = 0;  ///< sum of hashes of the samples' numbers: equal sums, equal sets
};

std::uint64_t hash_of_place(std::int64_t number);

/// Reads samples; each reader thread has one, which keeps the file it read last open.
class SampleReader {
 public:
  explicit SampleReader(const SampleSource& source) : source_(source) {}
  /// Adds the sample to the batch. `number`: file * samples_per_file + sample.
  void read(const SamplePlace& place, LoadedBatch& batch);

 private:
  const SampleSource& source_;
  std::unique_ptr<SampleFile> file_;
  std::int64_t open_ = -1;
};

/// Says to a process that something may have become ready.
struct ReadySignal {
  std::mutex mutex;
  std::condition_variable changed;
};

struct BatchLoaderOptions {
  std::int64_t samples = 0, ranks = 1, batch = 1, rank = 0, first_step = 0, steps = 0;
  int threads = 1;            ///< 0: batches are read when they are asked for
  std::int64_t prefetch = 2;  ///< batches ahead for each thread
};

/// The batches of one rank in one epoch, in order.
class BatchLoader {
 public:
  BatchLoader(const SampleSource& source, const SampleOrder& order, const BatchLoaderOptions& options,
              ReadySignal& signal);
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;
  ~BatchLoader();
  /// Whether `take` returns at once. Throws what a reader threw.
  bool is_ready();
  LoadedBatch take();

 private:
  struct Slot {
    std::atomic<bool> ready{false};
    LoadedBatch batch;
  };
  void work(std::stop_token stop, int thread);
  LoadedBatch make(std::int64_t step, SampleReader& reader, PreciseWait& wait);

  const SampleSource& source_;
  const SampleOrder& order_;
  BatchLoaderOptions options_;
  ReadySignal& signal_;
  std::unique_ptr<Slot[]> slots_;
  std::int64_t num_slots_ = 0;
  std::int64_t taken_ = 0;      // written under mutex_
  std::int64_t next_ = 0;       // guarded by mutex_
  std::exception_ptr failure_;  // guarded by mutex_
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable_any room_;
  std::unique_ptr<SampleReader> own_;  // without threads
  PreciseWait own_wait_{std::chrono::microseconds(100)};
  std::vector<std::jthread> threads_;  // last
};

/// Loads the same batches on virtual time. Reads are done one after the other and timed; threads,
/// read-ahead and preprocessing are played through on their own time lines.
class VirtualLoader {
 public:
  VirtualLoader(const SampleSource& source, const SampleOrder& order, const BatchLoaderOptions& options,
                double start_s);
  /// The next batch and the time at which it is ready, for a consumer who asks at `now_s`.
  std::pair<LoadedBatch, double> take(double now_s);

 private:
  const SampleSource& source_;
  const SampleOrder& order_;
  BatchLoaderOptions options_;
  SampleReader reader_;
  std::vector<double> free_at_;  // of each thread
  std::deque<double> room_at_;   // when slots became free
  std::int64_t next_ = 0;
};

}  // namespace millrace
