#include "driver/worker/next_order.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "driver/hosts/kept_ranks.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/device/host_memory.h"

namespace millrace {
namespace {

bool follows_order = false;

/// The socket to the launcher; -1: it gave none.
int launcher_socket() {
  static const int socket = [] {
    const char* const named = std::getenv(kOrders);
    const int fd = number_of<int>(named ? named : "").value_or(-1);
    struct stat info {};
    if (fd < 0 || ::fstat(fd, &info) != 0 || !S_ISSOCK(info.st_mode)) return -1;
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
  }();
  return socket;
}

bool say(char what) {
  return launcher_socket() >= 0 && ::send(launcher_socket(), &what, 1, MSG_NOSIGNAL) == 1;
}

/// The launcher's line, with its end; empty: it has closed the socket, or says nothing.
std::string line_of_launcher() {
  const TimePoint end = steady_clock().now() + kOrderPatience;
  std::string line;
  while (!line.ends_with('\n')) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock().now());
    if (left.count() <= 0) return "";
    pollfd polled{.fd = launcher_socket(), .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, static_cast<int>(left.count())) <= 0) continue;
    char bytes[4096];
    const ssize_t n = ::recv(launcher_socket(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return "";
    line.append(bytes, static_cast<std::size_t>(n));
  }
  return line;
}

}  // namespace

void tell_of_meeting() {
  say(kHasJoined);
}

std::optional<std::vector<std::string>> next_order() {
  if (launcher_socket() < 0) return std::nullopt;
  log_info("this process waits for the launcher's order to go on");
  std::fflush(nullptr);
  free_host_cache();
  reset_host_peak();
  if (!say(kWaits)) return std::nullopt;
  const std::string line = line_of_launcher();
  if (line.empty()) return std::nullopt;
  const Result<RankOrder> order = order_from(line);
  constexpr std::size_t kProgramAndCommand = 2;
  if (!order || order->argv.size() < kProgramAndCommand || order->argv[1] != "train") {
    log_warning("the launcher's order cannot be followed" +
                (order ? std::string() : ": " + to_string(order.problems())));
    return std::nullopt;
  }
  follows_order = true;
  for (const auto& [name, value] : order->environment) ::setenv(name.c_str(), value.c_str(), 1);
  return std::vector<std::string>(order->argv.begin() + kProgramAndCommand, order->argv.end());
}

std::chrono::milliseconds start_patience() {
  return std::chrono::seconds(follows_order ? 60 : 0);
}

}  // namespace millrace
