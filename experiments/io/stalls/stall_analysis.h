// Differential data-stall analysis: how much of an epoch is computation, how much waits for decoding, how
// much for storage; and what another cache, storage, number of cores or device would change. Source:
// DS-Analyzer, PVLDB 14(5), section 4.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/files/cache_policy.h"
#include "data/files/storage_model.h"
#include "experiments/io/dlio/batch_loader.h"
#include "runtime/base/json.h"

namespace millrace {

/// A mean of repeats, with half of its 95 % confidence interval (Student's t); one repeat: no interval (0).
struct Estimate {
  double mean = 0, half = 0;
};
Estimate estimate_of(const std::vector<double>& values);
Json to_json(const Estimate& estimate);
/// "1.50 ± 0.02"; without its half where there is none. `format` is of one number.
std::string interval(const Estimate& estimate, const char* format);

struct StallJob {
  SampleSource source;       ///< one sample a file
  std::vector<Bytes> sizes;  ///< of its files
  TimeSpec computation;      ///< of one step
  std::int64_t batch = 1;    ///< samples of a step
  int decode_threads = 1;
  std::int64_t prefetch = 2;  ///< batches ahead for each decoding thread
  int fetch_threads = 4;
  StorageSpec storage;
  CachePolicy policy = CachePolicy::MinIo;
  double cache_fraction = 0.35;  ///< of the data set's bytes
  int repeats = 3;
  std::uint64_t seed = 1;
  std::chrono::milliseconds timeout{300'000};  ///< longest wait for one batch
};
/// Returns the share `fraction` of all bytes.
Bytes share_of_bytes(const std::vector<Bytes>& sizes, double fraction);

/// Wall time of an epoch in three parts that add up to it; none is negative. `ingestion_s`: without reading.
/// `prepared_s`: everything cached. `limited_s`: with the cache and the storage of the job. Noise that would
/// make a part negative is given to the part before it.
struct EpochSplit {
  double compute_s = 0, preparation_s = 0, fetch_s = 0;
  double total() const { return compute_s + preparation_s + fetch_s; }
};
EpochSplit split_epoch(double ingestion_s, double prepared_s, double limited_s);
/// The estimate of what `part` says of each repeat.
Estimate estimate_over(const std::vector<EpochSplit>& repeats,
                       const std::function<double(const EpochSplit&)>& part);

/// Speeds in samples per second, each alone: of the device (G), of decoding (P), and of storage where nothing
/// is cached (S). Medians of the repeats.
struct StallRates {
  double device = 0, preparation = 0, storage = 0;
};

/// The speed min(F, P, G), where F = S / (share of storage's time that the misses take), and which of them it
/// is.
struct Prediction {
  double cache_fraction = 0, miss_share = 0, fetch = 0, speed = 0;
  std::string bound;  ///< "storage", "preparation", "device"
};
Prediction predict(const StallRates& rates, double cache_fraction, double miss_share);
/// The smallest cache, as a share of the data, with which storage is not what bounds; nothing for a policy
/// without a closed form, or if no cache is small enough (100 % is always enough).
std::optional<double> smallest_cache(const StallRates& rates, CachePolicy policy);

/// Storage's speed in samples per second for files of `mean_size` bytes and at most `threads` requests at
/// once.
double storage_rate(const StorageSpec& storage, double mean_size, int threads);

/// The share of an epoch without a cache that storage takes for the misses, in the long run, where the cache
/// holds `fraction` of all bytes: simulated with the files' sizes, the mean of the last four of twelve
/// epochs. Of this machine's disk it is the share of the bytes, because what a request takes is not known.
double simulated_miss_share(const std::vector<Bytes>& sizes, CachePolicy policy, double fraction,
                            const StorageSpec& storage, int threads);

/// A cache size that was run beside its prediction.
struct MeasuredPoint {
  Prediction predicted;
  Estimate speed;           ///< samples per second, from the first batch of an epoch to its last
  double median_speed = 0;  ///< of the repeats: other work of the machine disturbs it less
  double hit_ratio = 0;
};

struct StallReport {
  Estimate ingestion_s, prepared_s, limited_s;  ///< epochs
  double first_epoch_s = 0;                     ///< with an empty cache
  EpochSplit split;
  StallRates rates;
  double hit_ratio = 0;
  Bytes miss_bytes = 0;      ///< of one epoch
  double device_bytes = -1;  ///< that the kernel read from devices in all epochs; -1: not told
  double data_wait_s = 0;    ///< of the device, in an epoch with the job's cache
  std::int64_t samples = 0, steps = 0;
  std::vector<MeasuredPoint> measured;
};

/// The three phases alone, without rates and predictions.
struct TimedPhases {
  std::vector<EpochSplit> repeats;
  double hit_ratio = 1;
  Bytes miss_bytes = 0;  ///< of one epoch
};
/// Runs the phases in turn, `repeats` times. A cache of everything has no misses: its epoch is the prepared
/// one. Throws DataError.
TimedPhases time_phases(const StallJob& job);

/// Runs the phases in turn, `repeats` times, and each of `fractions` as often. `tell(done, total)` after each
/// epoch. Throws DataError.
StallReport analyze_stalls(const StallJob& job, const std::vector<double>& fractions,
                           const std::function<void(std::int64_t done, std::int64_t total)>& tell);

}  // namespace millrace
