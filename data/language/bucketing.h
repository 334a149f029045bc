// Orders of an epoch that put sentences of similar length into one step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace millrace {

/// Makes the permutations of torch.randperm(n) with a generator on the CPU (MT19937), bit for bit. n must be
/// below 2^32.
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
  std::int64_t per_step = 1;          ///< samples of a step
  std::int64_t steps_per_shard = 80;  ///< steps whose samples are sorted together
};
/// Returns the order of PipeDream's and MLPerf v0.5's sampler. A permutation is cut to whole steps, each
/// shard is sorted by `key`, and the same generator permutes the steps. The sort is stable: the original's
/// order of equal keys is not portable. Samples that fill no step are last, for a loader that keeps them.
/// Pure.
std::vector<std::int64_t> bucketed_order(std::int64_t size, const BucketOptions& options,
                                         const std::function<std::int64_t(std::int64_t index)>& key,
                                         std::uint32_t seed);

/// Buckets of samples of similar length.
struct LengthBuckets {
  int buckets = 5;            ///< 1: all samples together
  std::int64_t longest = 1;   ///< tokens of a side; longer samples go into the last bucket
  std::int64_t per_step = 1;  ///< samples of a step

  /// Returns the bucket of a pair whose longer side has `length` tokens. Buckets are ceil(longest / buckets)
  /// tokens wide.
  int of(std::int64_t length) const;
};
/// Returns the order of MLPerf v0.6's sampler. Each bucket is permuted and cut to whole steps. Then the same
/// generator permutes the steps of all buckets. `length` returns the tokens of a pair's longer side. Samples
/// that fill no step are last: see `in_whole_steps`. Pure.
std::vector<std::int64_t> length_bucket_order(std::int64_t size, const LengthBuckets& options,
                                              const std::function<std::int64_t(std::int64_t index)>& length,
                                              std::uint32_t seed);
/// Returns how many samples of length_bucket_order are in whole steps of one bucket.
std::int64_t in_whole_steps(std::int64_t size, const LengthBuckets& options,
                            const std::function<std::int64_t(std::int64_t index)>& length);

/// Sorts the samples of each step by `key`, largest first; equal samples keep their order. The microbatches
/// of a step then have samples of similar length.
void sort_within_steps(std::vector<std::int64_t>& order, std::int64_t per_step,
                       const std::function<std::int64_t(std::int64_t index)>& key);

}  // namespace millrace
