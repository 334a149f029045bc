#include "experiments/io/dlio/batch_loader.h"

#include <algorithm>

#include "data/made_up/payload.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

/// The preprocessing time of a batch's samples: a function of where the batch stands, not of who reads it.
double preprocess_seconds(const SampleSource& source, const BatchLoaderOptions& options, std::int64_t step,
                          std::int64_t samples) {
  if (source.preprocess.is_zero()) return 0;
  RandomStream random(derive_seed(source.seed, "preprocess",
                                  static_cast<std::uint64_t>(options.first_step + step),
                                  static_cast<std::uint64_t>(options.rank)));
  double seconds = 0;
  for (std::int64_t i = 0; i < samples; ++i) seconds += draw(source.preprocess, random);
  return seconds;
}

LoadedBatch read_batch(const SampleOrder& order, const BatchLoaderOptions& options, std::int64_t step,
                       SampleReader& reader) {
  LoadedBatch batch;
  const Share share =
      share_of(options.samples, options.ranks, options.batch, options.first_step + step, options.rank);
  for (std::int64_t i = 0; i < share.count; ++i) reader.read(order.at(share.begin + i), batch);
  return batch;
}

}  // namespace

std::uint64_t hash_of_place(std::int64_t number) {
  return hashed(0x6d696c6c72616365ull, static_cast<std::uint64_t>(number));
}

void SampleReader::read(const SamplePlace& place, LoadedBatch& batch) {
  const std::int64_t number = place.file * source_.samples_per_file + place.sample;
  ++batch.samples;
  batch.places += hash_of_place(number);
  if (source_.synthetic) return;
  if (!source_.memory.empty()) {
    batch.bytes += static_cast<Bytes>(source_.memory[number].size());
    return;
  }
  if (open_ != place.file) {
    const auto file = static_cast<std::size_t>(place.file);
    file_.reset();  // not two whole files in memory
    if (source_.before_open) source_.before_open(place.file);
    file_ = open_sample_file(source_.format, source_.files[file],
                             source_.indices.empty() ? std::string() : source_.indices[file], source_.read);
    open_ = place.file;
    if (file_->num_samples() < source_.samples_per_file)
      throw DataError(source_.files[file] + ": holds " + std::to_string(file_->num_samples()) + " samples, " +
                          std::to_string(source_.samples_per_file) + " are expected",
                      "workload.dataset.num_samples_per_file must be what the data were generated with");
  }
  const std::string_view bytes = file_->sample(place.sample);
  if (source_.check) source_.check(place.file, place.sample, bytes);
  batch.bytes += static_cast<Bytes>(bytes.size());
}

BatchLoader::BatchLoader(const SampleSource& source, const SampleOrder& order,
                         const BatchLoaderOptions& options, ReadySignal& signal)
    : source_(source), order_(order), options_(options), signal_(signal) {
  // A batch that is named and not copied needs no reading, and so no threads.
  const bool instant = (source.synthetic || !source.memory.empty()) && source.preprocess.is_zero();
  if (instant) options_.threads = 0;
  if (options_.threads == 0) {
    own_ = std::make_unique<SampleReader>(source);
    return;
  }
  num_slots_ = std::clamp<std::int64_t>(options_.threads * std::max<std::int64_t>(1, options_.prefetch), 1,
                                        std::max<std::int64_t>(1, options_.steps));
  slots_ = std::make_unique<Slot[]>(static_cast<std::size_t>(num_slots_));
  const auto threads = static_cast<int>(std::min<std::int64_t>(options_.threads, options_.steps));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i](std::stop_token stop) { work(stop, i); });
}

BatchLoader::~BatchLoader() {
  for (std::jthread& thread : threads_) thread.request_stop();
  room_.notify_all();
}

LoadedBatch BatchLoader::make(std::int64_t step, SampleReader& reader, PreciseWait& wait) {
  LoadedBatch batch = read_batch(order_, options_, step, reader);
  const double seconds = preprocess_seconds(source_, options_, step, batch.samples);
  if (seconds > 0)
    wait.until(wait.begin() + std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9)));
  return batch;
}

void BatchLoader::work(std::stop_token stop, int) {
  SampleReader reader(source_);
  PreciseWait wait{std::chrono::microseconds(0)};  // readers never take the core that the loop waits on
  while (true) {
    std::int64_t mine = 0;
    {
      std::unique_lock lock(mutex_);
      if (!room_.wait(lock, stop, [&] { return next_ >= options_.steps || next_ < taken_ + num_slots_; }))
        return;
      if (next_ >= options_.steps || stop.stop_requested()) return;
      mine = next_++;
    }
    try {
      Slot& slot = slots_[mine % num_slots_];
      slot.batch = make(mine, reader, wait);
      slot.ready.store(true, std::memory_order_release);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = options_.steps;
      failed_.store(true, std::memory_order_release);
    }
    { const std::lock_guard lock(signal_.mutex); }
    signal_.changed.notify_all();
  }
}

bool BatchLoader::is_ready() {
  if (options_.threads == 0) return true;
  if (failed_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    std::rethrow_exception(failure_);
  }
  return slots_[taken_ % num_slots_].ready.load(std::memory_order_acquire);
}

LoadedBatch BatchLoader::take() {
  if (options_.threads == 0) return make(taken_++, *own_, own_wait_);
  Slot& slot = slots_[taken_ % num_slots_];
  const LoadedBatch batch = slot.batch;
  slot.ready.store(false, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    ++taken_;
  }
  room_.notify_one();
  return batch;
}

VirtualLoader::VirtualLoader(const SampleSource& source, const SampleOrder& order,
                             const BatchLoaderOptions& options, double start_s)
    : source_(source), order_(order), options_(options), reader_(source) {
  free_at_.assign(std::max(1, options.threads), start_s);
  const std::int64_t slots =
      options.threads == 0 ? 0 : options.threads * std::max<std::int64_t>(1, options.prefetch);
  room_at_.assign(slots, start_s);
}

std::pair<LoadedBatch, double> VirtualLoader::take(double now_s) {
  const auto started = std::chrono::steady_clock::now();
  const std::int64_t step = next_++;
  const LoadedBatch batch = read_batch(order_, options_, step, reader_);
  // Batches that are named only, or known, cost nothing on the time line either.
  const bool instant = source_.synthetic || !source_.memory.empty();
  const double read_s = instant ? 0 : Seconds(std::chrono::steady_clock::now() - started).count();
  const double cost = read_s + preprocess_seconds(source_, options_, step, batch.samples);
  const auto thread = std::min_element(free_at_.begin(), free_at_.end());
  double begin = *thread;
  if (options_.threads == 0) {
    begin = std::max(begin, now_s);
  } else {
    begin = std::max(begin, room_at_.front());
    room_at_.pop_front();
  }
  *thread = begin + cost;
  const double ready = std::max(now_s, begin + cost);
  if (options_.threads > 0) room_at_.push_back(ready);  // the slot is free once the batch is taken
  return {batch, ready};
}

}  // namespace millrace
