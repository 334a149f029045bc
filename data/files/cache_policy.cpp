#include "data/files/cache_policy.h"

#include <cmath>
#include <list>
#include <numeric>
#include <unordered_map>

#include "runtime/base/random.h"

namespace millrace {
namespace {

struct Kept {
  std::int64_t item;
  Bytes size;
};

class NoCache final : public Cache {
 public:
  bool read(std::int64_t, Bytes) override { return false; }
  Bytes used() const override { return 0; }
};

class MinIoCache final : public Cache {
 public:
  explicit MinIoCache(Bytes capacity) : capacity_(capacity) {}
  bool read(std::int64_t item, Bytes size) override {
    if (kept_.contains(item)) return true;
    if (size <= capacity_ - used_) kept_.emplace(item, size), used_ += size;
    return false;
  }
  Bytes used() const override { return used_; }

 private:
  Bytes capacity_, used_ = 0;
  std::unordered_map<std::int64_t, Bytes> kept_;
};

/// First in, first out; with `refreshes`, a hit makes a file the newest (least recently used leaves).
class QueueCache final : public Cache {
 public:
  QueueCache(Bytes capacity, bool refreshes) : capacity_(capacity), refreshes_(refreshes) {}
  bool read(std::int64_t item, Bytes size) override {
    if (const auto at = place_.find(item); at != place_.end()) {
      if (refreshes_) queue_.splice(queue_.end(), queue_, at->second);
      return true;
    }
    if (size > capacity_) return false;
    while (size > capacity_ - used_) {
      used_ -= queue_.front().size;
      place_.erase(queue_.front().item);
      queue_.pop_front();
    }
    queue_.push_back({item, size});
    place_[item] = std::prev(queue_.end());
    used_ += size;
    return false;
  }
  Bytes used() const override { return used_; }

 private:
  Bytes capacity_, used_ = 0;
  bool refreshes_;
  std::list<Kept> queue_;  // oldest first
  std::unordered_map<std::int64_t, std::list<Kept>::iterator> place_;
};

class RandomCache final : public Cache {
 public:
  RandomCache(Bytes capacity, std::uint64_t seed) : capacity_(capacity), random_(seed) {}
  bool read(std::int64_t item, Bytes size) override {
    if (place_.contains(item)) return true;
    if (size > capacity_) return false;
    while (size > capacity_ - used_) {
      const std::size_t leaves = random_.below(kept_.size());
      used_ -= kept_[leaves].size;
      place_.erase(kept_[leaves].item);
      if (leaves + 1 != kept_.size()) {
        kept_[leaves] = kept_.back();
        place_[kept_[leaves].item] = leaves;
      }
      kept_.pop_back();
    }
    place_[item] = kept_.size();
    kept_.push_back({item, size});
    used_ += size;
    return false;
  }
  Bytes used() const override { return used_; }

 private:
  Bytes capacity_, used_ = 0;
  RandomStream random_;
  std::vector<Kept> kept_;
  std::unordered_map<std::int64_t, std::size_t> place_;
};

}  // namespace

std::unique_ptr<Cache> make_cache(CachePolicy policy, Bytes capacity, std::uint64_t seed) {
  switch (policy) {
    case CachePolicy::None:
      return std::make_unique<NoCache>();
    case CachePolicy::Random:
      return std::make_unique<RandomCache>(capacity, seed);
    case CachePolicy::Lru:
      return std::make_unique<QueueCache>(capacity, true);
    case CachePolicy::Fifo:
      return std::make_unique<QueueCache>(capacity, false);
    case CachePolicy::MinIo:
      break;
  }
  return std::make_unique<MinIoCache>(capacity);
}

std::optional<double> expected_hit_ratio(CachePolicy policy, double fraction) {
  const double x = fraction;
  if (policy == CachePolicy::None || x <= 0) return 0;
  if (policy == CachePolicy::Fifo) return std::nullopt;
  if (x >= 1) return 1;
  if (policy == CachePolicy::MinIo) return x;
  if (policy == CachePolicy::Lru) return x + (1 - x) * std::log1p(-x);
  // Each miss evicts a kept file with probability 1 / (x n). Between two reads of a file lie T n others, with
  // T of the triangular distribution on (0, 2): it survives them with probability E[exp(-(1 - h) T / x)].
  double low = 0, high = 1 - 1e-12;  // at h = 1 the equation holds for any x: not the state that is reached
  for (int i = 0; i < 200; ++i) {
    const double h = (low + high) / 2, a = (1 - h) / x, survives = -std::expm1(-a) / a;
    (survives * survives > h ? low : high) = h;
  }
  return low;
}

double EpochReads::hit_ratio() const {
  const std::int64_t all = hits + peer_hits + misses;
  return all == 0 ? 0 : static_cast<double>(hits + peer_hits) / static_cast<double>(all);
}

std::vector<EpochReads> simulate_cache(const CacheStudy& study) {
  std::vector<std::unique_ptr<Cache>> caches;
  for (int node = 0; node < study.nodes; ++node)
    caches.push_back(make_cache(study.policy, study.capacity,
                                derive_seed(study.seed, "cache", static_cast<std::uint64_t>(node))));
  const std::size_t count = study.sizes.size();
  // Partitioned: the node that keeps a file. MinIO never evicts, so an owner stays.
  std::vector<int> owner(study.partitioned ? count : 0, -1);
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<EpochReads> epochs;
  for (int epoch = 0; epoch < study.epochs; ++epoch) {
    RandomStream random(derive_seed(study.seed, "order", static_cast<std::uint64_t>(epoch)));
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    EpochReads reads;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t item = order[i];
      const Bytes size = study.sizes[item];
      const int node = static_cast<int>(i % static_cast<std::size_t>(study.nodes));
      if (study.partitioned && owner[item] >= 0 && owner[item] != node) {
        ++reads.peer_hits, reads.peer_bytes += size;
        continue;
      }
      Cache& cache = *caches[static_cast<std::size_t>(node)];
      const Bytes before = cache.used();
      if (cache.read(static_cast<std::int64_t>(item), size)) {
        ++reads.hits, reads.hit_bytes += size;
      } else {
        ++reads.misses, reads.miss_bytes += size;
        if (study.partitioned && cache.used() > before) owner[item] = node;
      }
    }
    epochs.push_back(reads);
  }
  return epochs;
}

}  // namespace millrace
