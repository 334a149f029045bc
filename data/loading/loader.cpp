// Microbatches by position, which worker threads make ahead. The content of a position depends on (seed,
// position) only.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "data/loading/dataset.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/cpu_time.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/random.h"
#include "runtime/base/read_time.h"
#include "runtime/stage/finite_check.h"
#include "runtime/trace/trace.h"

namespace millrace {
namespace {

std::int64_t samples_of_epoch(const Dataset& dataset, const LoaderOptions& options) {
  const std::int64_t per_step = std::int64_t{options.microbatch} * options.microbatches_per_step;
  return options.shuffle ? dataset.samples_in_epoch(per_step) : dataset.size();
}

/// The work of this thread so far. The difference between two calls does not depend on other threads that run
/// in between.
struct Effort {
  std::chrono::nanoseconds computed;
  long waits;  ///< number of times that the thread waited for a file, a lock or a sleep
};

Effort effort() {
  rusage use{};
  ::getrusage(RUSAGE_THREAD, &use);
  return {cpu_time(CLOCK_THREAD_CPUTIME_ID), use.ru_nvcsw};
}

thread_local int worker_of_thread = -1;  // -1: it is none of a loader's

class Loader final : public BatchSource {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, LoaderOptions options)
      : dataset_(std::move(dataset)),
        options_(std::move(options)),
        in_epoch_(samples_of_epoch(*dataset_, options_)),
        per_epoch_(steps_per_epoch(*dataset_, options_) * options_.microbatches_per_step) {
    if (options_.wanted.empty()) options_.wanted.assign(options_.fields.size(), 1);
    const bool reads = std::ranges::find(options_.wanted, 1) != options_.wanted.end();
    if (!reads) options_.workers = 0;  // no field is wanted: only extents are
    for (int i = 0; i < options_.workers; ++i)
      workers_.emplace_back([this, i](std::stop_token stop) {
        worker_of_thread = i;
        work(stop);
      });
  }

  ~Loader() override {
    for (auto& worker : workers_) worker.request_stop();
    changed_.notify_all();
  }

  Batch get(std::int64_t position) override {
    if (options_.workers == 0) return make(position);
    if (short_ >= kShortToStop) return make_here(position);
    std::unique_lock lock(mutex_);
    // The first position, and one that does not ascend, restarts the window.
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

  BatchExtent extent(std::int64_t position) const override {
    const auto [epoch, rows] = rows_of(position);
    return extent_of(epoch, rows);
  }

  std::string nonfinite_sample(std::int64_t from, std::int64_t to) const override {
    try {
      return search_nonfinite(from, to);
    } catch (const std::exception& error) {
      log_warning(std::string("after a number that was not finite the data could not be read again: ") +
                  error.what());
      return {};
    }
  }

  void seek(std::int64_t) override {
    std::lock_guard lock(mutex_);
    started_ = false;  // the next get() restarts the window
  }

 private:
  std::string search_nonfinite(std::int64_t from, std::int64_t to) const {
    const std::vector<char> all(options_.fields.size(), 1);
    std::int64_t numbers = 0;
    for (std::int64_t position = std::max<std::int64_t>(from, 0); position < to; ++position) {
      const auto [epoch, rows] = rows_of(position);
      const std::shared_ptr<const Order> order = order_of(epoch);
      for (std::int64_t row = rows.first; row < rows.second; ++row) {
        const std::int64_t index = (*order)[row];
        const Sample sample = dataset_->get(index, augment_seed(epoch, index), all);
        for (std::size_t f = 0; f < sample.size(); ++f) {
          const at::Tensor& values = sample[f].tensor;
          const char* const found = nonfinite_in(values);
          if (found)
            return "field " + options_.fields[f].name + " is " + found + " in sample " + name_of(index);
          numbers += values.defined() ? values.numel() : 0;
        }
        if (numbers > kMostNumbers) return {};
      }
    }
    return {};
  }

  struct Job {
    std::int64_t position;
    bool taken = false, done = false;
    Batch batch;
    std::exception_ptr error;
  };

  // If a batch takes no longer than the waking of a worker, the thread that asks makes it. That begins after
  // kShortToStop batches shorter than kShort in a row, and ends with one longer than kLong. With a GPU it
  // never begins: the asking thread must keep the GPU busy.
  static constexpr std::chrono::microseconds kShort{40}, kLong{150};
  static constexpr int kShortToStop = 16;

  Batch make_here(std::int64_t position) {
    const TimePoint start = steady_clock().now();
    Batch batch = make(position);
    if (steady_clock().now() - start > kLong) {
      short_ = 0;
      seek(position + 1);
    }
    return batch;
  }

  /// A search for numbers that are not finite ends after so many: 700 photographs of 224 x 224.
  static constexpr std::int64_t kMostNumbers = 100'000'000;

  /// Returns null for numbers that a model can take: -Inf is in masks.
  static const char* nonfinite_in(const at::Tensor& values) {
    if (is_finite(values)) return nullptr;
    if (values.isnan().any().item<bool>()) return "NaN";
    return values.eq(std::numeric_limits<double>::infinity()).any().item<bool>() ? "infinite" : nullptr;
  }

  std::string name_of(std::int64_t index) const {
    const std::string name = dataset_->name_of(index);
    return std::to_string(index) + (name.empty() ? "" : " (" + name + ")") + " of " + dataset_->describe();
  }

  std::uint64_t augment_seed(std::int64_t epoch, std::int64_t index) const {
    return derive_seed(options_.seed, "augment", static_cast<std::uint64_t>(epoch),
                       static_cast<std::uint64_t>(index));
  }

  void restart(std::int64_t position) {
    jobs_.clear();  // workers keep their own jobs alive; nobody uses the results
    started_ = true;
    front_ = next_ = position;
    jobs_.push_back(std::make_shared<Job>(Job{.position = next_++}));
    fill();
  }

  void drop_front() { jobs_.pop_front(); }

  /// Adds jobs for coming positions of this rank up to the prefetch limit, after half of them are used up. To
  /// wake a worker for every microbatch would cost more than to make a small microbatch.
  void fill() {
    if (static_cast<int>(jobs_.size()) > options_.prefetch / 2) return;
    const std::int64_t horizon = next_ + 100'000;  // a rank without work ahead must not search forever
    while (static_cast<int>(jobs_.size()) < options_.prefetch && next_ < horizon) {
      const std::int64_t position = next_++;
      if (!options_.mine || options_.mine(position))
        jobs_.push_back(std::make_shared<Job>(Job{.position = position}));
    }
    changed_.notify_all();
  }

  void work(std::stop_token stop) {
    at::set_num_threads(1);
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
      const Effort before = effort();
      try {
        batch = make(job->position);
      } catch (...) {
        error = std::current_exception();
      }
      const Effort after = effort();
      const bool is_short =
          !options_.page_locked && after.waits == before.waits && after.computed - before.computed < kShort;
      lock.lock();
      short_ = is_short ? short_ + 1 : 0;
      job->batch = std::move(batch);
      job->error = error;
      job->done = true;
      changed_.notify_all();
    }
  }

  using Order = std::vector<std::int64_t>;
  using Rows = std::pair<std::int64_t, std::int64_t>;  // [first, end) in an epoch's order

  /// Returns the epoch of a position, and its samples. Only an epoch's last step may have fewer samples than
  /// the others.
  std::pair<std::int64_t, Rows> rows_of(std::int64_t position) const {
    const std::int64_t epoch = position / per_epoch_, within = position % per_epoch_;
    const std::int64_t step = within / options_.microbatches_per_step,
                       m = within % options_.microbatches_per_step;
    const std::int64_t per_step = std::int64_t{options_.microbatch} * options_.microbatches_per_step;
    const std::int64_t first = step * per_step;
    if (const std::int64_t left = in_epoch_ - first; left < per_step) {
      const auto edge = [&](std::int64_t k) { return first + left * k / options_.microbatches_per_step; };
      return {epoch, {edge(m), edge(m + 1)}};
    }
    return {epoch, {first + m * options_.microbatch, first + (m + 1) * options_.microbatch}};
  }

  /// Returns the order of an epoch. The last two orders are kept for batches and extents.
  std::shared_ptr<const Order> order_of(std::int64_t epoch) const {
    std::lock_guard lock(orders_mutex_);
    for (const auto& [known, order] : orders_) {
      if (known == epoch) return order;
    }
    Order own =
        dataset_->order({.seed = options_.seed,
                         .epoch = epoch,
                         .per_step = std::int64_t{options_.microbatch} * options_.microbatches_per_step,
                         .shuffle = options_.shuffle});
    MILLRACE_CHECK(own.empty() || static_cast<std::int64_t>(own.size()) == dataset_->size(),
                   dataset_->describe());
    if (own.empty()) own = epoch_order(dataset_->size(), options_.seed, epoch, options_.shuffle);
    auto order = std::make_shared<const Order>(std::move(own));
    if (orders_.size() == 2) orders_.pop_front();
    orders_.emplace_back(epoch, order);
    return order;
  }

  /// Returns BatchExtent::follows. It is also 0 if a stride is not a whole number of steps.
  std::int64_t follows_of(Rows rows) const {
    const std::int64_t stride = dataset_->stride();
    const std::int64_t per_step = std::int64_t{options_.microbatch} * options_.microbatches_per_step;
    if (stride == 0 || rows.first < stride || stride % per_step != 0) return 0;
    return stride / options_.microbatch;
  }

  /// Returns the extent of a microbatch. It measures the samples only if the model has dimensions or counts.
  BatchExtent extent_of(std::int64_t epoch, Rows rows) const {
    BatchExtent extent{.samples = rows.second - rows.first, .follows = follows_of(rows)};
    if (options_.num_dimensions == 0 && options_.num_counts == 0) return extent;
    const std::shared_ptr<const Order> order = order_of(epoch);
    extent.lengths.assign(options_.num_dimensions, 0);
    extent.counts.assign(options_.num_counts, 0);
    std::vector<std::int64_t> lengths(options_.num_dimensions), counts(options_.num_counts);
    for (std::int64_t row = rows.first; row < rows.second; ++row) {
      std::ranges::fill(lengths, 0);
      std::ranges::fill(counts, 0);
      dataset_->measure((*order)[row], lengths, counts);
      for (std::size_t d = 0; d < lengths.size(); ++d)
        extent.lengths[d] = std::max(extent.lengths[d], lengths[d]);
      for (std::size_t c = 0; c < counts.size(); ++c) extent.counts[c] += counts[c];
    }
    return extent;
  }

  Batch make(std::int64_t position) {
    if (!options_.spans) return make_untraced(position);
    const TimePoint start = steady_clock().now();
    const std::chrono::nanoseconds before = read_time_of_thread();
    Batch batch = make_untraced(position);
    // Reads and the rest alternate from sample to sample. They are shown one behind the other.
    const TimePoint read = start + (read_time_of_thread() - before), end = steady_clock().now();
    const auto record = [&](SpanKind kind, TimePoint from, TimePoint to) {
      options_.spans->record({.kind = kind,
                              .peer = worker_of_thread,
                              .microbatch = position,
                              .start = from.time_since_epoch().count(),
                              .end = to.time_since_epoch().count()});
    };
    record(SpanKind::Load, start, read);
    record(SpanKind::Preprocess, read, end);
    return batch;
  }

  Batch make_untraced(std::int64_t position) {
    const auto [epoch, rows] = rows_of(position);
    const std::shared_ptr<const Order> order = order_of(epoch);
    const BatchExtent extent = extent_of(epoch, rows);
    Batch batch;
    batch.fields.resize(options_.fields.size());
    for (std::size_t f = 0; f < options_.fields.size(); ++f) {
      if (options_.wanted[f]) batch.fields[f] = empty_field(options_.fields[f], extent);
    }
    for (std::int64_t row = rows.first; row < rows.second; ++row) {
      const std::int64_t index = (*order)[row];
      const Sample sample = dataset_->get(index, augment_seed(epoch, index), options_.wanted);
      MILLRACE_CHECK(sample.size() == options_.fields.size(), dataset_->describe());
      for (std::size_t f = 0; f < sample.size(); ++f) {
        if (options_.wanted[f]) place(options_.fields[f], sample[f], row - rows.first, batch.fields[f]);
      }
    }
    return batch;
  }

  at::Tensor empty_field(const FieldSpec& field, const BatchExtent& extent) const {
    const Shape shape = field_shape(field, extent);
    const bool varies = std::ranges::any_of(field.shape, [](std::int64_t d) { return d < 0; });
    at::Tensor tensor = at::empty(shape, options_of(field.dtype));
    return varies ? tensor.fill_(field.padding) : tensor;
  }

  /// Copies a sample into its row. If it is shorter than the microbatch, the rest of the row stays padding.
  static void place(const FieldSpec& field, const FieldValue& value, std::int64_t row, at::Tensor& into) {
    if (!value.tensor.defined()) {
      MILLRACE_CHECK(field.shape.empty() && field.dtype == at::kLong, "field " << field.name);
      into.mutable_data_ptr<std::int64_t>()[row] = value.number;
      return;
    }
    MILLRACE_CHECK(value.tensor.is_contiguous() && value.tensor.scalar_type() == field.dtype,
                   "field " << field.name);
    const std::int64_t rows = into.size(field.batch_dimension);
    if (field.batch_dimension == 0 && value.tensor.numel() * rows == into.numel()) {
      std::memcpy(static_cast<char*>(into.mutable_data_ptr()) +
                      row * static_cast<std::int64_t>(value.tensor.nbytes()),
                  value.tensor.const_data_ptr(), value.tensor.nbytes());
      return;
    }
    at::Tensor target = into.select(field.batch_dimension, row);
    for (std::int64_t d = 0; d < value.tensor.dim(); ++d) target = target.narrow(d, 0, value.tensor.size(d));
    target.copy_(value.tensor);
  }

  at::TensorOptions options_of(at::ScalarType dtype) const {
    return at::TensorOptions(dtype).pinned_memory(options_.page_locked);
  }

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  std::int64_t in_epoch_;  // samples of an epoch
  std::int64_t per_epoch_;
  std::mutex mutex_;  // guards jobs_, started_, front_ and next_
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::atomic<int> short_{0};  // batches in a row that took less than kShort and did not wait
  bool started_ = false;
  std::int64_t front_ = 0;
  std::int64_t next_ = 0;
  mutable std::mutex orders_mutex_;  // guards orders_
  mutable std::deque<std::pair<std::int64_t, std::shared_ptr<const Order>>> orders_;
  std::vector<std::jthread> workers_;  // the last member, so that threads end before the others are destroyed
};

}  // namespace

std::int64_t steps_per_epoch(const Dataset& dataset, const LoaderOptions& options) {
  const std::int64_t samples = std::int64_t{options.microbatch} * options.microbatches_per_step;
  const std::int64_t in_epoch = samples_of_epoch(dataset, options), left = in_epoch % samples;
  return in_epoch / samples + (options.keep_incomplete && left >= options.microbatches_per_step ? 1 : 0);
}

Status check_steps(const Dataset& dataset, const LoaderOptions& options) {
  if (steps_per_epoch(dataset, options) >= 1) return Ok{};
  return Problem{"--data",
                 "the data set has " + std::to_string(samples_of_epoch(dataset, options)) +
                     " samples for an epoch, one step needs " +
                     std::to_string(std::int64_t{options.microbatch} * options.microbatches_per_step),
                 "use a smaller --microbatch or fewer --microbatches"};
}

Result<std::unique_ptr<BatchSource>> make_loader(std::shared_ptr<const Dataset> dataset,
                                                 const LoaderOptions& options) {
  if (const Status enough = check_steps(*dataset, options); !enough) return enough.problems();
  return std::unique_ptr<BatchSource>(std::make_unique<Loader>(std::move(dataset), options));
}

MakeBatches batches_of(std::shared_ptr<const Dataset> train, std::shared_ptr<const Dataset> test,
                       const LoaderOptions& options) {
  const auto loader = [](const std::shared_ptr<const Dataset>& dataset, const LoaderOptions& of) {
    auto made = make_loader(dataset, of);
    if (!made) throw DataError(to_string(made.problems()));
    return *std::move(made);
  };
  return [=](const BatchNeeds& needs, const BatchNeeds& evaluation) {
    const auto with = [&](const BatchNeeds& of) {
      LoaderOptions read = options;
      read.wanted = of.fields;
      read.mine = of.mine;
      read.spans = of.spans;
      return read;
    };
    BatchSources sources;
    if (train) sources.train = loader(train, with(needs));
    if (!test) return sources;
    LoaderOptions once = with(evaluation);
    once.microbatches_per_step = 1;
    once.shuffle = false;
    once.keep_incomplete = true;
    if (!train) sources.train = loader(test, once);
    sources.evaluation.microbatches = steps_per_epoch(*test, once);
    sources.evaluation.batches = loader(test, once);
    return sources;
  };
}

}  // namespace millrace
