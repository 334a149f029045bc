// The order of samples: which rank reads which sample when. Every sample comes once an epoch, for any
// numbers of samples, ranks and batch.
#pragma once

#include <cstdint>

namespace millrace {

/// A permutation of [0, count) that needs no memory: a Feistel network over the next power of four, walked
/// until it lands inside. Value type.
class Permutation {
 public:
  Permutation(std::int64_t count, std::uint64_t key);
  std::int64_t operator()(std::int64_t position) const;

 private:
  std::uint64_t once(std::uint64_t value) const;
  std::int64_t count_;
  std::uint64_t key_;
  int half_bits_;
};

struct OrderOptions {
  std::int64_t files = 0, samples_per_file = 1;
  bool shuffle_files = false, shuffle_samples = false;  ///< samples: over all files
  std::uint64_t key = 0;                                ///< of the epoch
};

struct SamplePlace {
  std::int64_t file = 0, sample = 0;
};

/// The order of one epoch. Value type.
class SampleOrder {
 public:
  explicit SampleOrder(const OrderOptions& options);
  SamplePlace at(std::int64_t position) const;

 private:
  OrderOptions options_;
  Permutation files_, samples_;
};

/// Positions [begin, begin + count) of an epoch.
struct Share {
  std::int64_t begin = 0, count = 0;
};

/// ceil(samples / (ranks * batch)): in the last step ranks share what is left as evenly as it goes; some may
/// get nothing, but all take the step.
std::int64_t num_steps(std::int64_t samples, std::int64_t ranks, std::int64_t batch);
Share share_of(std::int64_t samples, std::int64_t ranks, std::int64_t batch, std::int64_t step,
               std::int64_t rank);

}  // namespace millrace
