#include "experiments/io/stalls/stall_analysis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "experiments/io/dlio/dlio_output.h"
#include "experiments/io/stalls/fetch_stage.h"
#include "runtime/base/error.h"
#include "runtime/base/median.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

/// How an epoch is run.
struct EpochKind {
  bool reads = true, decodes = true, computes = true;
  Cache* cache = nullptr;  ///< null: everything is a hit
};

struct EpochResult {
  double wall_s = 0, wait_s = 0;
  /// Samples per second from the first batch to the last: without the filling of the empty pipeline at the
  /// start, and without the last computation, beside which nothing is fetched.
  double steady_speed = 0;
  FetchCounts counts;
};

/// A cache in which everything is.
class WholeCache final : public Cache {
 public:
  bool read(std::int64_t, Bytes) override { return true; }
  Bytes used() const override { return 0; }
};

class Laboratory {
 public:
  explicit Laboratory(const StallJob& job)
      : job_(job), samples_(static_cast<std::int64_t>(job.source.files.size())) {
    fetch_.files = job.source.files;
    fetch_.sizes = job.sizes;
    fetch_.storage = job.storage;
    fetch_.threads = job.fetch_threads;
    fetch_.ahead = std::max<std::int64_t>(
        job.fetch_threads, job.batch * job.decode_threads * std::max<std::int64_t>(1, job.prefetch));
  }

  EpochResult epoch(const EpochKind& kind) {
    const SampleOrder order(
        {.files = samples_, .shuffle_files = true, .key = derive_seed(job_.seed, "epoch", epoch_++)});
    std::vector<std::int64_t> files;
    for (std::int64_t i = 0; i < samples_; ++i) files.push_back(order.at(i).file);
    const auto started = std::chrono::steady_clock::now();
    const auto seconds = [&] { return Seconds(std::chrono::steady_clock::now() - started).count(); };
    EpochResult result;
    WholeCache whole;
    SampleSource source = job_.source;
    std::optional<FetchStage> stage;
    if (kind.reads) {
      stage.emplace(fetch_, files, kind.cache ? *kind.cache : whole);
      source.before_open = [&](std::int64_t file) { stage->wait_for(file); };
    } else {
      source.synthetic = true;
      source.preprocess = {};
    }
    if (kind.decodes) {
      steps(source, order, kind.computes, result);
    } else {
      for (const std::int64_t file : files) stage->wait_for(file);
    }
    result.wall_s = seconds();
    if (stage) result.counts = stage->counts();
    return result;
  }

 private:
  /// The loop of a device: waits for a batch, then computes. Sets the result's wait and speed.
  void steps(const SampleSource& source, const SampleOrder& order, bool computes, EpochResult& result) {
    const std::int64_t count = num_steps(samples_, 1, job_.batch);
    ReadySignal signal;
    BatchLoader loader(source, order,
                       {.samples = samples_,
                        .batch = job_.batch,
                        .steps = count,
                        .threads = job_.decode_threads,
                        .prefetch = job_.prefetch},
                       signal);
    // One stream for all epochs of one kind: the same steps take the same time in each of them.
    RandomStream random(derive_seed(job_.seed, "compute"));
    std::chrono::steady_clock::time_point first, free;  // free: when the device has computed all that it had
    for (std::int64_t step = 0; step < count; ++step) {
      const auto asked = std::chrono::steady_clock::now();
      const bool waits = !loader.is_ready();
      if (waits) {
        std::unique_lock lock(signal.mutex);
        if (!signal.changed.wait_for(lock, job_.timeout, [&] { return loader.is_ready(); }))
          throw DataError("step " + std::to_string(step) + ": no batch came within " +
                              printed("%g s", Seconds(job_.timeout).count()),
                          "is the storage stuck? --timeout sets the limit");
      }
      loader.take();
      // A device begins with a batch that is there as soon as it is free. That this thread woke up late does
      // not count.
      const auto now = std::chrono::steady_clock::now(),
                 begins = waits || !computes || step == 0 ? now : free;
      result.wait_s += Seconds(now - asked).count();
      if (step == 0) first = begins;
      if (step > 0 && step == count - 1)
        result.steady_speed = static_cast<double>(step * job_.batch) / Seconds(begins - first).count();
      if (!computes) continue;
      free =
          begins + std::chrono::nanoseconds(static_cast<std::int64_t>(draw(job_.computation, random) * 1e9));
      wait_.until(free);
    }
  }

  const StallJob& job_;
  std::int64_t samples_;
  FetchOptions fetch_;
  std::uint64_t epoch_ = 0;
  PreciseWait wait_{std::chrono::microseconds(50)};
};

double device_bytes() {
  const Json lines = proc_lines("/proc/self/io");
  const Json* line = lines.find("read_bytes");
  return line && line->is_string() ? std::strtod(line->as_string().c_str(), nullptr) : -1;
}

}  // namespace

Bytes share_of_bytes(const std::vector<Bytes>& sizes, double fraction) {
  const Bytes all = std::accumulate(sizes.begin(), sizes.end(), Bytes{0});
  return fraction >= 1 ? all : static_cast<Bytes>(std::llround(fraction * static_cast<double>(all)));
}

Estimate estimate_of(const std::vector<double>& values) {
  const auto n = values.size();
  if (n == 0) return {};
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n);
  if (n == 1) return {mean, 0};
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  // The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
  constexpr double kQuantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  const double t =
      n - 2 < std::size(kQuantiles) ? kQuantiles[n - 2] : 1.96 + 2.4 / static_cast<double>(n - 1);
  return {mean, t * std::sqrt(squares / static_cast<double>(n - 1) / static_cast<double>(n))};
}

Json to_json(const Estimate& estimate) {
  return Json::object({{"mean", estimate.mean}, {"half_interval_95", estimate.half}});
}

std::string interval(const Estimate& estimate, const char* format) {
  return printed(format, estimate.mean) + (estimate.half > 0 ? " ± " + printed(format, estimate.half) : "");
}

Estimate estimate_over(const std::vector<EpochSplit>& repeats,
                       const std::function<double(const EpochSplit&)>& part) {
  std::vector<double> values;
  for (const EpochSplit& one : repeats) values.push_back(part(one));
  return estimate_of(values);
}

EpochSplit split_epoch(double ingestion_s, double prepared_s, double limited_s) {
  const double compute = std::min(ingestion_s, limited_s);
  const double prepared = std::clamp(prepared_s, compute, limited_s);
  return {compute, prepared - compute, limited_s - prepared};
}

Prediction predict(const StallRates& rates, double cache_fraction, double miss_share) {
  Prediction out{.cache_fraction = cache_fraction, .miss_share = miss_share};
  out.fetch = miss_share > 0 ? rates.storage / miss_share : std::numeric_limits<double>::infinity();
  out.speed = std::min({out.fetch, rates.preparation, rates.device});
  out.bound = out.speed == out.fetch ? "storage" : out.speed == rates.preparation ? "preparation" : "device";
  return out;
}

std::optional<double> smallest_cache(const StallRates& rates, CachePolicy policy) {
  const double enough =
      1 - rates.storage / std::min(rates.preparation, rates.device);  // hit ratio that is needed
  if (enough <= 0) return 0;
  if (!expected_hit_ratio(policy, 0.5) || policy == CachePolicy::None) return std::nullopt;
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (*expected_hit_ratio(policy, x) < enough ? low : high) = x;
  }
  return high;
}

namespace {
/// Seconds in which storage serves so many requests that have so many bytes together.
double seconds_of(const StorageSpec& storage, double requests, double bytes, int threads) {
  const double at_once = std::min(storage.queue_depth, threads), transfer = bytes / storage.bytes_per_s;
  return std::max(transfer, (requests * storage.latency_s + transfer) / at_once);
}
}  // namespace

double storage_rate(const StorageSpec& storage, double mean_size, int threads) {
  return 1 / seconds_of(storage, 1, mean_size, threads);
}

double simulated_miss_share(const std::vector<Bytes>& sizes, CachePolicy policy, double fraction,
                            const StorageSpec& storage, int threads) {
  constexpr int kEpochs = 12, kLast = 4;
  // With few files much depends on which of them came first: the mean of several caches is what to expect.
  const auto caches = std::clamp<std::size_t>(20'000 / std::max<std::size_t>(1, sizes.size()), 1, 64);
  const double epochs = kLast * static_cast<double>(caches);
  double files = 0, bytes = 0;  // that miss in an epoch
  for (std::size_t cache = 0; cache < caches; ++cache) {
    const std::vector<EpochReads> all = simulate_cache({.sizes = sizes,
                                                        .policy = policy,
                                                        .capacity = share_of_bytes(sizes, fraction),
                                                        .epochs = kEpochs,
                                                        .seed = cache + 1});
    for (auto at = all.end() - kLast; at != all.end(); ++at) {
      files += static_cast<double>(at->misses) / epochs;
      bytes += static_cast<double>(at->miss_bytes) / epochs;
    }
  }
  const auto all_bytes = static_cast<double>(share_of_bytes(sizes, 1));
  if (storage.is_real) return bytes / all_bytes;
  return seconds_of(storage, files, bytes, threads) /
         seconds_of(storage, static_cast<double>(sizes.size()), all_bytes, threads);
}

TimedPhases time_phases(const StallJob& job) {
  Laboratory laboratory(job);
  laboratory.epoch({.computes = false});  // brings the files into memory
  const std::unique_ptr<Cache> cache =
      make_cache(job.policy, share_of_bytes(job.sizes, job.cache_fraction), derive_seed(job.seed, "cache"));
  const bool limited = job.cache_fraction < 1;
  if (limited)
    for (int i = 0; i < fills_of(job.policy); ++i) laboratory.epoch({.decodes = false, .cache = cache.get()});
  TimedPhases times;
  std::int64_t hits = 0, reads = 0;
  for (int repeat = 0; repeat < job.repeats; ++repeat) {
    const double ingestion_s = laboratory.epoch({.reads = false}).wall_s;
    const double prepared_s = laboratory.epoch({}).wall_s;
    double limited_s = prepared_s;
    if (limited) {
      const EpochResult result = laboratory.epoch({.cache = cache.get()});
      limited_s = result.wall_s;
      hits += result.counts.hits, reads += result.counts.hits + result.counts.misses;
      times.miss_bytes += result.counts.miss_bytes / job.repeats;
    }
    times.repeats.push_back(split_epoch(ingestion_s, prepared_s, limited_s));
  }
  if (reads > 0) times.hit_ratio = static_cast<double>(hits) / static_cast<double>(reads);
  return times;
}

StallReport analyze_stalls(const StallJob& job, const std::vector<double>& fractions,
                           const std::function<void(std::int64_t done, std::int64_t total)>& tell) {
  Laboratory laboratory(job);
  StallReport report;
  report.samples = static_cast<std::int64_t>(job.source.files.size());
  report.steps = num_steps(report.samples, 1, job.batch);
  // Each repeat: five epochs, and one for each fraction. Before: one that brings the files into memory, and
  // one or more that fill each cache.
  const auto kinds = static_cast<std::int64_t>(fractions.size());
  const int fills = fills_of(job.policy);
  const std::int64_t total = 1 + (1 + kinds) * fills + job.repeats * (5 + kinds);
  std::int64_t done = 0;
  const auto run = [&](const EpochKind& kind) {
    const EpochResult result = laboratory.epoch(kind);
    tell(++done, total);
    return result;
  };
  const double before = device_bytes();
  run({.computes = false});
  const auto make = [&](double fraction) {
    return make_cache(job.policy, share_of_bytes(job.sizes, fraction), derive_seed(job.seed, "cache"));
  };
  const std::unique_ptr<Cache> cache = make(job.cache_fraction);
  std::vector<std::unique_ptr<Cache>> caches;
  for (const double fraction : fractions) caches.push_back(make(fraction));
  for (int i = 0; i < fills; ++i) {
    const double first = run({.cache = cache.get()}).wall_s;
    if (i == 0) report.first_epoch_s = first;
    // Nothing is timed here: only what they keep matters.
    for (const auto& other : caches) run({.decodes = false, .cache = other.get()});
  }
  std::vector<double> ingestion, prepared, limited, preparation, storage, waits;
  std::vector<std::vector<double>> speeds(fractions.size());
  std::vector<double> hits(fractions.size());
  std::int64_t hit = 0, read = 0;
  const auto samples = static_cast<double>(report.samples);
  const std::unique_ptr<Cache> none = make_cache(CachePolicy::None, 0, 0);
  for (int repeat = 0; repeat < job.repeats; ++repeat) {
    ingestion.push_back(run({.reads = false}).wall_s);
    prepared.push_back(run({}).wall_s);
    const EpochResult with_cache = run({.cache = cache.get()});
    limited.push_back(with_cache.wall_s);
    waits.push_back(with_cache.wait_s);
    hit += with_cache.counts.hits, read += with_cache.counts.hits + with_cache.counts.misses;
    report.miss_bytes += with_cache.counts.miss_bytes / job.repeats;
    preparation.push_back(samples / run({.computes = false}).wall_s);
    storage.push_back(samples / run({.decodes = false, .cache = none.get()}).wall_s);
    for (std::size_t i = 0; i < fractions.size(); ++i) {
      const EpochResult result = run({.cache = caches[i].get()});
      speeds[i].push_back(result.steady_speed > 0 ? result.steady_speed : samples / result.wall_s);
      hits[i] += static_cast<double>(result.counts.hits) / samples / job.repeats;
    }
  }
  const double after = device_bytes();
  if (before >= 0 && after >= 0) report.device_bytes = after - before;
  report.ingestion_s = estimate_of(ingestion);
  report.prepared_s = estimate_of(prepared);
  report.limited_s = estimate_of(limited);
  report.split = split_epoch(report.ingestion_s.mean, report.prepared_s.mean, report.limited_s.mean);
  report.data_wait_s = estimate_of(waits).mean;
  report.rates = {samples / median(ingestion), median(preparation), median(storage)};
  report.hit_ratio = read == 0 ? 0 : static_cast<double>(hit) / static_cast<double>(read);
  for (std::size_t i = 0; i < fractions.size(); ++i)
    report.measured.push_back(
        {predict(report.rates, fractions[i],
                 simulated_miss_share(job.sizes, job.policy, fractions[i], job.storage, job.fetch_threads)),
         estimate_of(speeds[i]), median(speeds[i]), hits[i]});
  return report;
}

}  // namespace millrace
