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

/// Returns the place in newest_ of the first message that was posted later.
std::size_t EmulatedPort::later_than(std::int64_t posted) const {
  std::size_t place = count_;
  while (place > 0 && newest_[place - 1].posted > posted) --place;
  return place;
}

std::int64_t EmulatedPort::free_at(std::int64_t posted) const {
  const std::size_t place = later_than(posted);
  return place == 0 ? left_before_ : newest_[place - 1].left;
}

void EmulatedPort::passed(std::int64_t posted, std::int64_t length, std::int64_t left) {
  if (count_ == newest_.size()) {
    left_before_ = newest_.front().left;
    std::move(newest_.begin() + 1, newest_.end(), newest_.begin());
    --count_;
  }
  std::size_t place = later_than(posted);
  std::move_backward(newest_.begin() + place, newest_.begin() + count_, newest_.begin() + count_ + 1);
  newest_[place] = {posted, length, left};
  for (++count_; ++place < count_;)
    newest_[place].left = std::max(newest_[place].left, newest_[place - 1].left + newest_[place].length);
}

EmulatedPorts::EmulatedPorts(std::vector<int> hosts, const std::string& file)
    : hosts_(std::move(hosts)),
      num_hosts_(hosts_.empty() ? 0 : static_cast<std::size_t>(*std::ranges::max_element(hosts_)) + 1) {
  const std::size_t count = 2 * (num_hosts_ + hosts_.size()), bytes = count * sizeof(EmulatedPort);
  if (file.empty() || count == 0) {
    own_.resize(count);
    ports_ = own_.data();
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
  ports_ = static_cast<EmulatedPort*>(mapped);
}

EmulatedPorts::~EmulatedPorts() {
  if (file_ < 0) return;
  ::munmap(ports_, 2 * (num_hosts_ + hosts_.size()) * sizeof(EmulatedPort));
  ::close(file_);
}

bool EmulatedPorts::takes(int from, int to, bool is_collective) const {
  return is_collective || hosts_[static_cast<std::size_t>(from)] != hosts_[static_cast<std::size_t>(to)];
}

bool EmulatedPorts::Earlier::operator()(const std::shared_ptr<Request>& a,
                                        const std::shared_ptr<Request>& b) const {
  return std::tie(a->posted, a->nth, a->from) < std::tie(b->posted, b->nth, b->from);
}

void EmulatedPorts::ask(std::shared_ptr<Request> request) {
  const std::lock_guard lock(mutex_);
  asked_.insert(std::move(request));
}

TimePoint EmulatedPorts::next() {
  const std::lock_guard lock(mutex_);
  return asked_.empty() ? TimePoint::max() : (*asked_.begin())->posted;
}

std::vector<std::shared_ptr<EmulatedPorts::Request>> EmulatedPorts::settle(TimePoint now) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Request>> settled;
  const auto later =
      std::ranges::find_if(asked_, [&](const auto& request) { return request->posted >= now; });
  settled.assign(asked_.begin(), later);
  if (settled.empty()) return settled;
  asked_.erase(asked_.begin(), later);
  // A process that ends gives the lock back. Nobody holds it for longer than this loop takes.
  if (file_ >= 0)
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  for (const auto& request : settled) pass(*request);
  if (file_ >= 0) ::flock(file_, LOCK_UN);
  return settled;
}

void EmulatedPorts::pass(Request& request) {
  const auto from = static_cast<std::size_t>(request.from), to = static_cast<std::size_t>(request.to);
  const bool leaves = hosts_[from] != hosts_[to];
  EmulatedPort& out = ports_[2 * (leaves ? static_cast<std::size_t>(hosts_[from]) : num_hosts_ + from)];
  EmulatedPort& in = ports_[2 * (leaves ? static_cast<std::size_t>(hosts_[to]) : num_hosts_ + to) + 1];
  const std::int64_t posted = request.posted.time_since_epoch().count(), length = request.length.count();
  const std::int64_t left = std::max({posted, out.free_at(posted), in.free_at(posted)}) + length;
  out.passed(posted, length, left);
  in.passed(posted, length, left);
  request.left = TimePoint(TimePoint::duration(left));
}

}  // namespace millrace
