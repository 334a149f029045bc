// Connections of somebody who does not belong to the job.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

namespace millrace {

inline sockaddr_in loopback(int port) {
  return {.sin_family = AF_INET,
          .sin_port = htons(static_cast<std::uint16_t>(port)),
          .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
}

inline int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), length);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// A connection of somebody who may be anybody.
class Stranger {
 public:
  explicit Stranger(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in address = loopback(port);
    is_connected_ = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  Stranger(Stranger&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_connected_(other.is_connected_) {}
  ~Stranger() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool is_connected() const { return is_connected_; }
  void say(const std::string& bytes) const { ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  /// Reads until the server ends it; false if it does not within the time.
  bool is_sent_away(std::chrono::milliseconds time) const {
    const timeval limit{.tv_sec = time.count() / 1000, .tv_usec = time.count() % 1000 * 1000};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    char buffer[256];
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) return true;
      if (n < 0) return false;
    }
  }

 private:
  int fd_;
  bool is_connected_ = false;
};

}  // namespace millrace
