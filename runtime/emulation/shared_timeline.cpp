#include "runtime/emulation/shared_timeline.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace millrace {
namespace {

using Ticks = TimePoint::rep;

}  // namespace

std::atomic_ref<Ticks> SharedTimeline::free_at() {
  return std::atomic_ref<Ticks>(mapped_ ? *static_cast<Ticks*>(mapped_) : own_);
}

std::shared_ptr<SharedTimeline> SharedTimeline::of_this_process() {
  return std::shared_ptr<SharedTimeline>(new SharedTimeline(nullptr));
}

Result<std::shared_ptr<SharedTimeline>> SharedTimeline::open(const std::string& path, TimePoint now) {
  const auto failed = [&] {
    return Problem{path,
                   std::string("the time line of a shared device cannot be kept: ") + std::strerror(errno),
                   "name a folder that all of its jobs can write"};
  };
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return failed();
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, sizeof(Ticks)) == 0)
    mapped = ::mmap(nullptr, sizeof(Ticks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  ::close(file);
  errno = error;
  if (mapped == MAP_FAILED) return failed();
  std::shared_ptr<SharedTimeline> made(new SharedTimeline(mapped));
  // No job issues work an hour ahead.
  Ticks was = made->free_at().load();
  if (was > (now + std::chrono::hours(1)).time_since_epoch().count())
    made->free_at().compare_exchange_strong(was, now.time_since_epoch().count());
  return made;
}

SharedTimeline::~SharedTimeline() {
  if (mapped_) ::munmap(mapped_, sizeof(Ticks));
}

TimePoint SharedTimeline::append(TimePoint earliest, TimePoint::duration length) {
  const std::atomic_ref<Ticks> free = free_at();
  Ticks before = free.load(), after = 0;
  do {
    after = std::max(before, earliest.time_since_epoch().count()) + length.count();
  } while (!free.compare_exchange_weak(before, after));
  return TimePoint(TimePoint::duration(after));
}

}  // namespace millrace
