#include "runtime/comm/emulated_ports.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {

EmulatedPorts::EmulatedPorts(std::vector<int> hosts, const std::string& file)
    : hosts_(std::move(hosts)),
      num_hosts_(hosts_.empty() ? 0 : static_cast<std::size_t>(*std::ranges::max_element(hosts_)) + 1) {
  const std::size_t count = 2 * (num_hosts_ + hosts_.size()), bytes = count * sizeof(std::int64_t);
  if (file.empty() || count == 0) {
    own_.assign(count, 0);
    free_ = own_.data();
    return;
  }
  file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* mapped = MAP_FAILED;
  if (file_ >= 0 && ::ftruncate(file_, static_cast<off_t>(bytes)) == 0)
    mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) {
    const std::string why = std::strerror(errno);
    if (file_ >= 0) ::close(file_);
    throw ConfigError(file + ": the ports of emulated links cannot be kept: " + why);
  }
  free_ = static_cast<std::int64_t*>(mapped);
}

EmulatedPorts::~EmulatedPorts() {
  if (file_ < 0) return;
  ::munmap(free_, 2 * (num_hosts_ + hosts_.size()) * sizeof(std::int64_t));
  ::close(file_);
}

bool EmulatedPorts::takes(int from, int to, bool is_collective) const {
  return is_collective || hosts_[static_cast<std::size_t>(from)] != hosts_[static_cast<std::size_t>(to)];
}

void EmulatedPorts::ask(std::shared_ptr<Request> request) {
  const std::lock_guard lock(mutex_);
  asked_.push_back(std::move(request));
}

void EmulatedPorts::settle(TimePoint now) {
  const std::lock_guard lock(mutex_);
  const auto later = std::partition(asked_.begin(), asked_.end(),
                                    [&](const auto& request) { return request->posted < now; });
  if (later == asked_.begin()) return;
  std::sort(asked_.begin(), later, [](const auto& a, const auto& b) {
    return std::tie(a->posted, a->nth, a->from) < std::tie(b->posted, b->nth, b->from);
  });
  // A process that ends gives the lock back. Nobody holds it for longer than this loop takes.
  if (file_ >= 0)
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  for (auto request = asked_.begin(); request != later; ++request) pass(**request);
  if (file_ >= 0) ::flock(file_, LOCK_UN);
  asked_.erase(asked_.begin(), later);
}

void EmulatedPorts::pass(Request& request) {
  const auto from = static_cast<std::size_t>(request.from), to = static_cast<std::size_t>(request.to);
  const bool leaves = hosts_[from] != hosts_[to];
  std::int64_t& out = free_[2 * (leaves ? static_cast<std::size_t>(hosts_[from]) : num_hosts_ + from)];
  std::int64_t& in = free_[2 * (leaves ? static_cast<std::size_t>(hosts_[to]) : num_hosts_ + to) + 1];
  const std::int64_t start = std::max({request.posted.time_since_epoch().count(), out, in});
  out = in = start + request.length.count();
  request.left = TimePoint(TimePoint::duration(out));
}

}  // namespace millrace
