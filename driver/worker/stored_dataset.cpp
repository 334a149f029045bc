#include "driver/worker/stored_dataset.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <utility>

#include "data/files/cache_policy.h"
#include "data/files/data_kinds.h"
#include "data/files/storage_model.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/base/read_time.h"

namespace millrace {
namespace {

class StoredDataset final : public Dataset {
 public:
  StoredDataset(std::shared_ptr<const Dataset> dataset, const StorageFlags& flags, Bytes bytes,
                std::uint64_t seed)
      : dataset_(std::move(dataset)),
        bytes_(std::max<Bytes>(1, bytes / std::max<std::int64_t>(1, dataset_->size()))),
        storage_(*flags.storage),
        cache_(make_cache(flags.policy,
                          static_cast<Bytes>(flags.cache * static_cast<double>(bytes_ * size())),
                          derive_seed(seed, "storage cache"))) {
    for (int epoch = 0; epoch < fills_of(flags.policy); ++epoch)
      for (const std::int64_t sample : epoch_order(size(), derive_seed(seed, "storage fill"), epoch, true))
        cache_->read(sample, bytes_);
  }
  std::int64_t size() const override { return dataset_->size(); }
  Sample get(std::int64_t index, std::uint64_t seed, Wanted wanted) const override {
    wait_for(index % size());
    return dataset_->get(index, seed, wanted);
  }
  std::string describe() const override { return dataset_->describe(); }
  int num_classes() const override { return dataset_->num_classes(); }
  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    dataset_->measure(index, lengths, counts);
  }
  std::vector<std::int64_t> order(const EpochOrder& epoch) const override { return dataset_->order(epoch); }
  std::int64_t samples_in_epoch(std::int64_t per_step) const override {
    return dataset_->samples_in_epoch(per_step);
  }
  std::int64_t stride() const override { return dataset_->stride(); }
  std::string fingerprint() const override { return dataset_->fingerprint(); }
  std::vector<std::pair<std::string, std::string>> recorded() const override { return dataset_->recorded(); }
  std::vector<std::string> notes() const override { return dataset_->notes(); }
  std::map<std::int64_t, unsigned> odd_samples() const override { return dataset_->odd_samples(); }
  std::int64_t left_out() const override { return dataset_->left_out(); }
  std::string name_of(std::int64_t index) const override { return dataset_->name_of(index); }
  StorageReads storage_reads() const override {
    const std::lock_guard lock(mutex_);
    return reads_;
  }

 private:
  void wait_for(std::int64_t sample) const {
    // A sleep ends late. What a thread asks next, it would have asked so much earlier.
    thread_local TimePoint::duration late{};
    {
      const std::lock_guard lock(mutex_);
      const bool hit = cache_->read(sample, bytes_);
      ++(hit ? reads_.hits : reads_.misses);
      if (hit) return;
    }
    const CountedRead read;
    const TimePoint served = storage_.served_at(steady_clock().now() - late, bytes_);
    steady_clock().sleep_until(served);
    constexpr std::chrono::milliseconds kMostOfASleep{5};
    late = std::clamp<TimePoint::duration>(steady_clock().now() - served, {}, kMostOfASleep);
  }

  std::shared_ptr<const Dataset> dataset_;
  const Bytes bytes_;  // of a sample
  mutable StorageModel storage_;
  mutable std::mutex mutex_;  // guards what follows
  const std::unique_ptr<Cache> cache_;
  mutable StorageReads reads_{.is_modelled = true};
};

}  // namespace

std::shared_ptr<const Dataset> stored(std::shared_ptr<const Dataset> dataset, const StorageFlags& flags,
                                      Bytes bytes, std::uint64_t seed) {
  return std::make_shared<StoredDataset>(std::move(dataset), flags, bytes, seed);
}

Result<Bytes> bytes_of_data(const std::string& data) {
  namespace fs = std::filesystem;
  if (rest_of(data, kSyntheticData))
    return Problem{"--storage", "the data is made up: no files are read", "name a data set: --data FOLDER"};
  Bytes bytes = 0;
  std::error_code error;
  const auto add = [&](const fs::path& file) {
    std::error_code unreadable;
    const auto size = fs::file_size(file, unreadable);
    if (!unreadable) bytes += static_cast<Bytes>(size);
  };
  for (const std::string& path : paths_of_data(data)) {
    if (fs::is_regular_file(path, error)) add(path);
    if (!fs::is_directory(path, error)) continue;
    for (fs::recursive_directory_iterator at(path, error), end; !error && at != end; at.increment(error))
      if (at->is_regular_file(error)) add(at->path());
  }
  if (bytes == 0) return Problem{"--storage", data + " has no files", "name a data set: --data FOLDER"};
  return bytes;
}

}  // namespace millrace
