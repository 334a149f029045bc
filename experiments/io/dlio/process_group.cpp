#include "experiments/io/dlio/process_group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/error.h"

namespace millrace {

struct alignas(64) ProcessGroup::Place {
  std::atomic<std::uint32_t> round;  // barriers that the process has come to
  double values[kExchanged];
};

struct ProcessGroup::Segment {
  std::uint32_t processes;
  alignas(64) std::atomic<std::uint32_t> arrived;
  alignas(64) std::atomic<std::uint32_t> round;  // barriers that all have passed; a futex
};

namespace {

constexpr std::chrono::milliseconds kLook{20};  // a sleeper looks at its deadline so often

std::uint32_t* word(std::atomic<std::uint32_t>& value) {
  static_assert(sizeof(value) == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  return reinterpret_cast<std::uint32_t*>(&value);
}

}  // namespace

ProcessGroup::Place& ProcessGroup::place(int process) const {
  return reinterpret_cast<Place*>(segment_ + 1)[process];
}

void ProcessGroup::create(const std::string& path, int processes) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const auto bytes =
      static_cast<off_t>(sizeof(Segment) + sizeof(Place) * static_cast<std::size_t>(processes));
  const auto count = static_cast<std::uint32_t>(processes);
  const bool made =
      fd >= 0 && ::ftruncate(fd, bytes) == 0 && ::pwrite(fd, &count, sizeof count, 0) == sizeof count;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!made)
    throw ConfigError(path + ": cannot be created: " + std::strerror(error),
                      "set TMPDIR to a folder that you may write");
}

ProcessGroup::ProcessGroup(const std::string& path, int process, const Options& options)
    : process_(process), options_(options) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(sizeof(Segment))) {
    if (fd >= 0) ::close(fd);
    throw ConfigError(path + ": is no meeting place of a job", "`millrace dlio` makes it for its processes");
  }
  bytes_ = static_cast<std::size_t>(info.st_size);
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (mapped == MAP_FAILED) throw ConfigError(path + ": cannot be mapped");
  segment_ = static_cast<Segment*>(mapped);
  size_ = static_cast<int>(segment_->processes);
  MILLRACE_CHECK(process_ >= 0 && process_ < size_);
}

ProcessGroup::~ProcessGroup() {
  ::munmap(segment_, bytes_);
}

void ProcessGroup::barrier(const char* what) {
  const std::uint32_t next = ++round_;
  place(process_).round.store(next, std::memory_order_release);
  if (segment_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
    segment_->arrived.store(0, std::memory_order_relaxed);
    segment_->round.store(next, std::memory_order_release);
    if (size_ > 1) ::syscall(SYS_futex, word(segment_->round), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto is_over = [&] { return segment_->round.load(std::memory_order_acquire) == next; };
  while (std::chrono::steady_clock::now() - start < options_.spin) {
    if (is_over()) return;
    __builtin_ia32_pause();
  }
  while (!is_over()) {
    const timespec look{0, std::chrono::nanoseconds(kLook).count()};
    ::syscall(SYS_futex, word(segment_->round), FUTEX_WAIT, next - 1, &look, nullptr, 0);
    if (is_over()) return;
    if (std::chrono::steady_clock::now() - start < options_.timeout) continue;
    std::string missing;
    for (int p = 0; p < size_; ++p) {
      if (place(p).round.load(std::memory_order_acquire) != next)
        missing += (missing.empty() ? "" : ", ") + std::to_string(p);
    }
    throw PeerError(
        std::string(what) + ": waited " +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count()) +
            " s for process " + missing,
        "look at its log; --timeout sets the wait");
  }
}

std::vector<std::vector<double>> ProcessGroup::exchange(std::span<const double> mine, const char* what) {
  MILLRACE_CHECK(mine.size() <= kExchanged);
  std::copy(mine.begin(), mine.end(), place(process_).values);
  barrier(what);
  std::vector<std::vector<double>> all;
  for (int p = 0; p < size_; ++p) all.emplace_back(place(p).values, place(p).values + mine.size());
  barrier(what);  // nobody writes the next exchange before all have read this one
  return all;
}

double ProcessGroup::maximum(double mine, const char* what) {
  double largest = mine;
  for (const auto& values : exchange({&mine, 1}, what)) largest = std::max(largest, values[0]);
  return largest;
}

}  // namespace millrace
