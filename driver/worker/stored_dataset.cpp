#include "driver/worker/stored_dataset.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

#include "data/files/cache_policy.h"
#include "data/files/data_kinds.h"
#include "data/files/storage_model.h"
#include "data/loading/forwarding_dataset.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/base/read_time.h"
#include "runtime/counters/page_cache.h"

namespace millrace {
namespace {

class StoredDataset final : public ForwardingDataset {
 public:
  StoredDataset(std::shared_ptr<const Dataset> dataset, const StorageFlags& flags, Bytes bytes,
                std::uint64_t seed)
      : ForwardingDataset(std::move(dataset)),
        bytes_(std::max<Bytes>(1, bytes / std::max<std::int64_t>(1, size()))),
        storage_(*flags.storage),
        cache_(make_cache(flags.policy,
                          static_cast<Bytes>(flags.cache * static_cast<double>(bytes_ * size())),
                          derive_seed(seed, "storage cache"))),
        reads_(static_cast<std::size_t>(size())) {
    for (int epoch = 0; epoch < fills_of(flags.policy); ++epoch)
      for (const std::int64_t sample : epoch_order(size(), derive_seed(seed, "storage fill"), epoch, true))
        cache_->read(sample, bytes_);
  }
  Sample get(std::int64_t index, std::uint64_t seed, Wanted wanted) const override {
    wait_for(index % size());
    return ForwardingDataset::get(index, seed, wanted);
  }
  StorageReads storage_reads() const override {
    const std::lock_guard lock(mutex_);
    StorageReads reads{.is_modelled = true};
    for (const Reads& one : reads_) {
      if (one.all == 0) continue;
      ++reads.samples;
      reads.hits += static_cast<double>(one.hits) / one.all;
    }
    return reads;
  }

 private:
  struct Reads {
    std::uint32_t all = 0, hits = 0;
  };

  void wait_for(std::int64_t sample) const {
    // A sleep ends late. What a thread asks next, it would have asked so much earlier.
    thread_local TimePoint::duration late{};
    {
      const std::lock_guard lock(mutex_);
      const bool hit = cache_->read(sample, bytes_);
      Reads& own = reads_[static_cast<std::size_t>(sample)];
      ++own.all;
      if (hit) ++own.hits;
      if (hit) return;
    }
    const CountedRead read;
    const TimePoint served = storage_.served_at(steady_clock().now() - late, bytes_);
    steady_clock().sleep_until(served);
    constexpr std::chrono::milliseconds kMostOfASleep{5};
    late = std::clamp<TimePoint::duration>(steady_clock().now() - served, {}, kMostOfASleep);
  }

  const Bytes bytes_;  // of a sample
  mutable StorageModel storage_;
  mutable std::mutex mutex_;  // guards what follows
  const std::unique_ptr<Cache> cache_;
  mutable std::vector<Reads> reads_;  // by sample
};

}  // namespace

std::shared_ptr<const Dataset> stored(std::shared_ptr<const Dataset> dataset, const StorageFlags& flags,
                                      Bytes bytes, std::uint64_t seed) {
  return std::make_shared<StoredDataset>(std::move(dataset), flags, bytes, seed);
}

Result<Bytes> bytes_of_data(const std::string& data) {
  if (rest_of(data, kSyntheticData))
    return Problem{"--storage", "the data is made up: no files are read", "name a data set: --data FOLDER"};
  Bytes bytes = 0;
  for (const std::string& file : files_below(paths_of_data(data))) {
    std::error_code unreadable;
    const auto size = std::filesystem::file_size(file, unreadable);
    if (!unreadable) bytes += static_cast<Bytes>(size);
  }
  if (bytes == 0) return Problem{"--storage", data + " has no files", "name a data set: --data FOLDER"};
  return bytes;
}

}  // namespace millrace
