// Microbatches by position, made ahead by worker threads. What a position holds depends on (seed, position)
// only.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "data/dataset.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

class Loader final : public BatchSource {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
      : dataset_(std::move(dataset)),
        options_(std::move(options)),
        per_epoch_(steps_per_epoch(*dataset_, options_) * options_.microbatches_per_step) {
    for (int i = 0; i < options_.workers; ++i)
      workers_.emplace_back([this](std::stop_token stop) { work(stop); });
  }

  ~Loader() override {
    for (auto& worker : workers_) worker.request_stop();
    changed_.notify_all();
  }

  Batch get(std::int64_t position) override {
    if (options_.workers == 0) return make(position, nullptr);
    std::unique_lock lock(mutex_);
    // The first position asked for (and one that does not ascend) starts the window anew.
    if (!started_ || position < front_) restart(position);
    while (!jobs_.empty() && jobs_.front()->position < position) drop_front();
    if (jobs_.empty() || jobs_.front()->position > position) restart(position);
    std::shared_ptr<Job> job = jobs_.front();
    changed_.wait(lock, [&] { return job->done; });
    drop_front();
    front_ = position + 1;
    fill();
    if (job->error) std::rethrow_exception(job->error);
    return std::move(job->batch);
  }

  void seek(std::int64_t) override {
    std::lock_guard lock(mutex_);
    started_ = false;  // the next get() says where
  }

 private:
  struct Job {
    std::int64_t position;
    bool taken = false, done = false;
    Batch batch;
    std::exception_ptr error;
  };

  void restart(std::int64_t position) {
    jobs_.clear();  // workers keep theirs alive and finish into nowhere
    started_ = true;
    front_ = next_ = position;
    jobs_.push_back(std::make_shared<Job>(Job{.position = next_++}));
    fill();
  }

  void drop_front() { jobs_.pop_front(); }

  /// Adds jobs for coming positions of this rank up to the prefetch limit, once half of them are used up: a
  /// worker that is woken for every microbatch costs more than a small one's making.
  void fill() {
    if (static_cast<int>(jobs_.size()) > options_.prefetch / 2) return;
    const std::int64_t horizon = next_ + 100'000;  // a rank without work ahead must not search for ever
    while (static_cast<int>(jobs_.size()) < options_.prefetch && next_ < horizon) {
      const std::int64_t position = next_++;
      if (!options_.mine || options_.mine(position))
        jobs_.push_back(std::make_shared<Job>(Job{.position = position}));
    }
    changed_.notify_all();
  }

  void work(std::stop_token stop) {
    at::set_num_threads(1);
    EpochOrder order;
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      std::shared_ptr<Job> job;
      for (const auto& candidate : jobs_) {
        if (!candidate->taken) {
          job = candidate;
          break;
        }
      }
      if (!job) {
        changed_.wait(lock, stop,
                      [&] { return std::ranges::any_of(jobs_, [](const auto& j) { return !j->taken; }); });
        continue;
      }
      job->taken = true;
      lock.unlock();
      Batch batch;
      std::exception_ptr error;
      try {
        batch = make(job->position, &order);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      job->batch = std::move(batch);
      job->error = error;
      job->done = true;
      changed_.notify_all();
    }
  }

  /// One epoch's order, kept by whoever makes batches.
  struct EpochOrder {
    std::int64_t epoch = -1;
    std::vector<std::int64_t> samples;
  };

  Batch make(std::int64_t position, EpochOrder* cached) {
    EpochOrder& order = cached ? *cached : own_order_;
    const std::int64_t epoch = position / per_epoch_, within = position % per_epoch_;
    if (order.epoch != epoch)
      order = {epoch, epoch_order(dataset_->size(), options_.seed, epoch, options_.shuffle)};
    Batch batch;
    std::vector<std::int64_t> targets;
    // Less than a microbatch only at the end of an epoch that keeps it.
    const auto rows = static_cast<int>(
        std::min<std::int64_t>(options_.microbatch, dataset_->size() - within * options_.microbatch));
    for (int i = 0; i < rows; ++i) {
      const std::int64_t index = order.samples[static_cast<std::size_t>(within * options_.microbatch + i)];
      const std::uint64_t augment = derive_seed(options_.seed, "augment", static_cast<std::uint64_t>(epoch),
                                                static_cast<std::uint64_t>(index));
      Sample sample = dataset_->get(index, augment, options_.want_input);
      targets.push_back(sample.target);
      if (!options_.want_input) continue;
      if (!batch.input.defined()) {
        std::vector<std::int64_t> shape{rows};
        shape.insert(shape.end(), sample.input.sizes().begin(), sample.input.sizes().end());
        batch.input = at::empty(shape, options_of(at::kFloat));
      }
      MILLRACE_CHECK(sample.input.is_contiguous() && sample.input.scalar_type() == at::kFloat);
      std::memcpy(batch.input.mutable_data_ptr<float>() + i * sample.input.numel(),
                  sample.input.const_data_ptr<float>(), sample.input.nbytes());
    }
    if (options_.want_target) {
      batch.target = at::empty({rows}, options_of(at::kLong));
      std::ranges::copy(targets, batch.target.mutable_data_ptr<std::int64_t>());
    }
    return batch;
  }

  at::TensorOptions options_of(at::ScalarType type) const {
    return at::TensorOptions(type).pinned_memory(options_.page_locked);
  }

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::int64_t per_epoch_;
  EpochOrder own_order_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool started_ = false;
  std::int64_t front_ = 0;
  std::int64_t next_ = 0;
  std::vector<std::jthread> workers_;  // last: ends first
};

}  // namespace

std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options) {
  const std::int64_t samples = std::int64_t{options.microbatch} * options.microbatches_per_step;
  return options.keep_incomplete ? (dataset.size() + samples - 1) / samples : dataset.size() / samples;
}

Result<std::unique_ptr<BatchSource>> make_loader(std::shared_ptr<const Dataset> dataset,
                                                 const LoaderOptions& options) {
  MILLRACE_CHECK(!options.keep_incomplete || options.microbatches_per_step == 1);
  if (steps_per_epoch(*dataset, options) < 1) {
    return Problem{"--data",
                   "the data set has " + std::to_string(dataset->size()) + " samples, one step needs " +
                       std::to_string(std::int64_t{options.microbatch} * options.microbatches_per_step),
                   "use a smaller --microbatch or fewer --microbatches"};
  }
  return std::unique_ptr<BatchSource>(std::make_unique<Loader>(std::move(dataset), options));
}

}  // namespace millrace
