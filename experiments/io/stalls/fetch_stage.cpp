#include "experiments/io/stalls/fetch_stage.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "experiments/io/dlio/time_spec.h"
#include "runtime/base/error.h"

namespace millrace {

FetchStage::FetchStage(const FetchOptions& options, std::vector<std::int64_t> order, Cache& cache)
    : options_(options),
      order_(std::move(order)),
      cache_(cache),
      storage_(options.storage),
      fetched_(options.files.size(), false) {
  for (int i = 0; i < options.threads; ++i)
    threads_.emplace_back([this](std::stop_token stop) { work(stop); });
}

FetchStage::~FetchStage() {
  for (std::jthread& thread : threads_) thread.request_stop();
  changed_.notify_all();
}

/// Pages that an earlier read left in the kernel's cache are dropped first, so that the device is asked.
void FetchStage::read_from_device(const std::string& path) const {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw DataError(path + ": cannot be opened: " + std::strerror(errno));
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  char buffer[128 << 10];
  ssize_t got = 0;
  while ((got = ::read(file, buffer, sizeof buffer)) > 0 || (got < 0 && errno == EINTR)) {
  }
  const int error = errno;
  ::close(file);
  if (got < 0) throw DataError(path + ": cannot be read: " + std::strerror(error));
}

void FetchStage::work(std::stop_token stop) {
  PreciseWait wait{std::chrono::microseconds(0)};  // a core that it spun on would be the decoders' loss
  while (true) {
    std::int64_t file = 0;
    bool hit = false;
    Bytes size = 0;
    {
      std::unique_lock lock(mutex_);
      const auto room = [&] {
        return failure_ || next_ == order_.size() ||
               next_ < taken_ + static_cast<std::size_t>(options_.ahead);
      };
      if (!changed_.wait(lock, stop, room) || failure_ || next_ == order_.size()) return;
      file = order_[next_++];
      size = options_.sizes[static_cast<std::size_t>(file)];
      hit = cache_.read(file, size);
      ++(hit ? counts_.hits : counts_.misses);
      (hit ? counts_.hit_bytes : counts_.miss_bytes) += size;
    }
    std::exception_ptr failure;
    if (!hit && options_.storage.is_real) {
      try {
        read_from_device(options_.files[static_cast<std::size_t>(file)]);
      } catch (...) {
        failure = std::current_exception();
      }
    } else if (!hit) {
      wait.until(storage_.served_at(wait.begin(), size));
    }
    {
      const std::lock_guard lock(mutex_);
      fetched_[static_cast<std::size_t>(file)] = true;
      if (failure && !failure_) failure_ = failure;
    }
    changed_.notify_all();
  }
}

void FetchStage::wait_for(std::int64_t file) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ || fetched_[static_cast<std::size_t>(file)]; });
    if (failure_) std::rethrow_exception(failure_);
    ++taken_;
  }
  changed_.notify_all();
}

FetchCounts FetchStage::counts() {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace millrace
