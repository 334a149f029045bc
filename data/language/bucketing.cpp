#include "data/language/bucketing.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace millrace {

TorchGenerator::TorchGenerator(std::uint32_t seed) {
  state_[0] = seed;
  for (std::uint32_t i = 1; i < 624; ++i)
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
}

void TorchGenerator::refill() {
  for (int i = 0; i < 624; ++i) {
    const std::uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % 624] & 0x7fffffffu);
    state_[i] = state_[(i + 397) % 624] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
  }
  used_ = 0;
}

std::uint32_t TorchGenerator::next() {
  if (used_ == 624) refill();
  std::uint32_t y = state_[used_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

std::vector<std::int64_t> TorchGenerator::permutation(std::int64_t n) {
  std::vector<std::int64_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = 0; i + 1 < n; ++i) {
    const std::int64_t other = i + next() % (n - i);
    std::swap(order[i], order[other]);
  }
  return order;
}

std::vector<std::int64_t> bucketed_order(std::int64_t size, const BucketOptions& options,
                                         const std::function<std::int64_t(std::int64_t)>& key,
                                         std::uint32_t seed) {
  TorchGenerator generator(seed);
  std::vector<std::int64_t> shuffled = generator.permutation(size);
  const std::int64_t steps = size / options.per_step, whole = steps * options.per_step;
  const std::int64_t shard = options.per_step * options.steps_per_shard;
  for (std::int64_t first = 0; first < whole; first += shard) {
    std::stable_sort(shuffled.begin() + first, shuffled.begin() + std::min(first + shard, whole),
                     [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
  }
  std::vector<std::int64_t> order;
  order.reserve(shuffled.size());
  for (std::int64_t step : generator.permutation(steps)) {
    const auto first = shuffled.begin() + step * options.per_step;
    order.insert(order.end(), first, first + options.per_step);
  }
  order.insert(order.end(), shuffled.begin() + whole, shuffled.end());
  return order;
}

int LengthBuckets::of(std::int64_t length) const {
  const std::int64_t width = (longest + buckets - 1) / buckets;
  return static_cast<int>(std::min<std::int64_t>(length / width, buckets - 1));
}

std::vector<std::int64_t> length_bucket_order(std::int64_t size, const LengthBuckets& options,
                                              const std::function<std::int64_t(std::int64_t)>& length,
                                              std::uint32_t seed) {
  std::vector<std::vector<std::int64_t>> buckets(options.buckets);
  for (std::int64_t i = 0; i < size; ++i) buckets[options.of(length(i))].push_back(i);
  TorchGenerator generator(seed);
  std::vector<std::int64_t> whole, left;
  for (const std::vector<std::int64_t>& bucket : buckets) {
    const auto in_bucket = static_cast<std::int64_t>(bucket.size());
    const std::int64_t kept = in_bucket / options.per_step * options.per_step;
    std::int64_t place = 0;
    for (std::int64_t at : generator.permutation(in_bucket))
      (place++ < kept ? whole : left).push_back(bucket[at]);
  }
  std::vector<std::int64_t> order;
  order.reserve(size);
  for (std::int64_t step :
       generator.permutation(static_cast<std::int64_t>(whole.size()) / options.per_step)) {
    const auto first = whole.begin() + step * options.per_step;
    order.insert(order.end(), first, first + options.per_step);
  }
  order.insert(order.end(), left.begin(), left.end());
  return order;
}

std::int64_t in_whole_steps(std::int64_t size, const LengthBuckets& options,
                            const std::function<std::int64_t(std::int64_t)>& length) {
  std::vector<std::int64_t> counts(options.buckets);
  for (std::int64_t i = 0; i < size; ++i) ++counts[options.of(length(i))];
  std::int64_t whole = 0;
  for (std::int64_t count : counts) whole += count / options.per_step * options.per_step;
  return whole;
}

void sort_within_steps(std::vector<std::int64_t>& order, std::int64_t per_step,
                       const std::function<std::int64_t(std::int64_t)>& key) {
  const auto size = static_cast<std::int64_t>(order.size());
  for (std::int64_t first = 0; first < size; first += per_step) {
    std::stable_sort(order.begin() + first, order.begin() + std::min(first + per_step, size),
                     [&](std::int64_t a, std::int64_t b) { return key(a) > key(b); });
  }
}

}  // namespace millrace
