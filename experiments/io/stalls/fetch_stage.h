// The first stage of a loader: brings whole files from storage, in the order of the epoch, ahead of the
// threads that decode them. A cache decides which reads go to storage.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/files/cache_policy.h"
#include "data/files/storage_model.h"

namespace millrace {

struct FetchOptions {
  std::vector<std::string> files;
  std::vector<Bytes> sizes;  ///< of the files
  StorageSpec storage;
  int threads = 4;         ///< requests that are under way at once
  std::int64_t ahead = 1;  ///< files that may be there before a reader has asked for them
};

/// What an epoch's reads came to.
struct FetchCounts {
  std::int64_t hits = 0, misses = 0;
  Bytes hit_bytes = 0, miss_bytes = 0;
};

/// One epoch of fetching. Threads start with the object and end with it. Readers may be many threads.
class FetchStage {
 public:
  /// `order`: the files, each once. `cache` is used until the object ends, from its threads, one at a time.
  FetchStage(const FetchOptions& options, std::vector<std::int64_t> order, Cache& cache);
  ~FetchStage();
  FetchStage(const FetchStage&) = delete;
  FetchStage& operator=(const FetchStage&) = delete;

  /// Returns when the file has been fetched. Throws DataError if a file cannot be read.
  void wait_for(std::int64_t file);
  FetchCounts counts();

 private:
  void work(std::stop_token stop);
  void read_from_device(const std::string& path) const;

  const FetchOptions& options_;
  std::vector<std::int64_t> order_;
  Cache& cache_;
  StorageModel storage_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::size_t next_ = 0, taken_ = 0;  // guarded by mutex_, as all that follows
  std::vector<bool> fetched_;         // by file
  FetchCounts counts_;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // last
};

}  // namespace millrace
