// Orders of an epoch that put sentences of like length into one step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace millrace {

/// torch.randperm(n) of a generator on the CPU, bit for bit: MT19937. n below 2^32.
class TorchGenerator {
 public:
  explicit TorchGenerator(std::uint32_t seed);
  std::uint32_t next();
  std::vector<std::int64_t> permutation(std::int64_t n);

 private:
  void refill();
  std::uint32_t state_[624];
  int used_ = 624;
};

struct BucketOptions {
  std::int64_t per_step = 1;          ///< samples
  std::int64_t steps_per_shard = 80;  ///< that are sorted together
};
/// PipeDream's and MLPerf v0.5's sampler: a permutation, cut to whole steps, in shards sorted by `key`
/// (stable: the original's order of equal ones is not portable), and the steps permuted by the same
/// generator. What the cut leaves over comes last, for a loader that keeps it. Pure.
std::vector<std::int64_t> bucketed_order(std::int64_t size, const BucketOptions& options,
                                         const std::function<std::int64_t(std::int64_t index)>& key,
                                         std::uint32_t seed);

/// Buckets of like length.
struct LengthBuckets {
  int buckets = 5;            ///< 1: all samples together
  std::int64_t longest = 1;   ///< tokens of a side; longer ones go into the last bucket
  std::int64_t per_step = 1;  ///< samples

  /// Bucket of a pair whose longer side has so many tokens: widths are ceil(longest / buckets).
  int of(std::int64_t length) const;
};
/// MLPerf v0.6's sampler: each bucket permuted and cut to whole steps, then the steps of all buckets permuted
/// by the same generator. `length`: of the longer side. What is cut off comes last: see `in_whole_steps`.
/// Pure.
std::vector<std::int64_t> length_bucket_order(std::int64_t size, const LengthBuckets& options,
                                              const std::function<std::int64_t(std::int64_t index)>& length,
                                              std::uint32_t seed);
/// How many samples of that order are in whole steps of one bucket.
std::int64_t in_whole_steps(std::int64_t size, const LengthBuckets& options,
                            const std::function<std::int64_t(std::int64_t index)>& length);

/// Sorts the samples of each step by `key`, longest first, equal ones as they were: its microbatches are then
/// of like length.
void sort_within_steps(std::vector<std::int64_t>& order, std::int64_t per_step,
                       const std::function<std::int64_t(std::int64_t index)>& key);

}  // namespace millrace
