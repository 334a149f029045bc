// Rendezvous over TCP: rank 0 serves. Each request is {operation, key, value} with 32-bit lengths, bounded; a
// GET waits on the server. One thread a connection: a job has few, and they end with the rendezvous.
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

constexpr std::uint32_t kMaxLength = 1 << 20;
enum Operation : std::uint8_t { kSet = 's', kGet = 'g' };

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool transfer_all(int fd, char* data, std::size_t bytes, bool send) {
  while (bytes) {
    const ssize_t n = send ? ::send(fd, data, bytes, MSG_NOSIGNAL) : ::recv(fd, data, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

bool send_text(int fd, std::string text) {
  std::uint32_t length = htonl(static_cast<std::uint32_t>(text.size()));
  return transfer_all(fd, reinterpret_cast<char*>(&length), 4, true) &&
         transfer_all(fd, text.data(), text.size(), true);
}

bool receive_text(int fd, std::string& text) {
  std::uint32_t length = 0;
  if (!transfer_all(fd, reinterpret_cast<char*>(&length), 4, false)) return false;
  length = ntohl(length);
  if (length > kMaxLength) return false;  // not one of ours
  text.resize(length);
  return transfer_all(fd, text.data(), length, false);
}

sockaddr_in address_of(const std::string& host, int port) {
  addrinfo hints{.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    throw ConfigError("MASTER_ADDR '" + host + "' cannot be resolved: " + ::gai_strerror(error),
                      "give a host name or an IPv4 address");
  }
  sockaddr_in address{};
  std::memcpy(&address, found->ai_addr, sizeof address);
  ::freeaddrinfo(found);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

class Server {
 public:
  Server(const std::string& host, int port)
      : store_(make_memory_store()), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(listener_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address = address_of(host, port);
    if (::bind(listener_.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_.fd(), 128) != 0) {
      const std::string reason = std::strerror(errno);
      throw ConfigError("cannot listen on " + host + ":" + std::to_string(port) + ": " + reason,
                        "another job may hold the port: choose another MASTER_PORT");
    }
    acceptor_ = std::jthread([this](std::stop_token stop) { accept(stop); });
  }

  ~Server() {
    acceptor_.request_stop();
    ::shutdown(listener_.fd(), SHUT_RDWR);
    acceptor_.join();
    std::lock_guard lock(mutex_);
    for (auto& client : clients_) ::shutdown(client.socket.fd(), SHUT_RDWR);
    clients_.clear();  // joins
  }

 private:
  struct Client {
    Socket socket;
    std::jthread thread;
  };

  void accept(std::stop_token stop) {
    while (!stop.stop_requested()) {
      Socket socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.fd() < 0) continue;
      std::lock_guard lock(mutex_);
      Client& client = clients_.emplace_back(Client{std::move(socket), {}});
      client.thread = std::jthread([this, fd = client.socket.fd()](std::stop_token end) { serve(fd, end); });
    }
  }

  void serve(int fd, std::stop_token stop) {
    std::uint8_t operation = 0;
    std::string key, value;
    while (transfer_all(fd, reinterpret_cast<char*>(&operation), 1, false) && receive_text(fd, key) &&
           receive_text(fd, value)) {
      if (operation == kSet) {
        store_->set(key, value);
        if (!send_text(fd, "")) return;
      } else if (operation == kGet) {
        // In slices, so that the server's end does not wait for a key that never comes.
        for (bool found = false; !found && !stop.stop_requested();) {
          try {
            value = store_->get(key, std::chrono::milliseconds(50));
            found = true;
          } catch (const PeerError&) {
            pollfd state{fd, POLLRDHUP, 0};
            if (::poll(&state, 1, 0) > 0) return;  // the client has gone
          }
        }
        if (stop.stop_requested() || !send_text(fd, value)) return;
      } else {
        return;
      }
    }
  }

  std::shared_ptr<Store> store_;
  Socket listener_;
  std::mutex mutex_;  // guards clients_
  std::list<Client> clients_;
  std::jthread acceptor_;
};

class TcpStore final : public Store {
 public:
  TcpStore(const std::string& host, int port, bool is_server, std::chrono::milliseconds deadline)
      : name_(host + ":" + std::to_string(port)) {
    if (is_server) server_ = std::make_unique<Server>(host, port);
    connect(host, port, deadline);
  }

  void set(const std::string& key, const std::string& value) override {
    request(kSet, key, value, std::chrono::seconds(30));
  }
  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    return request(kGet, key, "", deadline);
  }

 private:
  void connect(const std::string& host, int port, std::chrono::milliseconds deadline) {
    const sockaddr_in address = address_of(host, port);
    const auto start = std::chrono::steady_clock::now();
    for (auto pause = std::chrono::milliseconds(1);;
         pause = std::min(pause * 2, std::chrono::milliseconds(50))) {
      auto socket = std::make_unique<Socket>(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket->fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
        const int on = 1;
        ::setsockopt(socket->fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        socket_ = std::move(socket);
        return;
      }
      if (std::chrono::steady_clock::now() - start > deadline) {
        throw PeerError("rendezvous: nobody listens on " + name_ + " after " +
                            std::to_string(deadline.count()) + " ms: " + std::strerror(errno),
                        "did rank 0 start? Are MASTER_ADDR and MASTER_PORT right?");
      }
      std::this_thread::sleep_for(pause);
    }
  }

  std::string request(Operation operation, const std::string& key, const std::string& value,
                      std::chrono::milliseconds deadline) {
    std::lock_guard lock(mutex_);
    timeval limit{.tv_sec = deadline.count() / 1000, .tv_usec = deadline.count() % 1000 * 1000};
    ::setsockopt(socket_->fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::uint8_t code = operation;
    std::string answer;
    const bool good = transfer_all(socket_->fd(), reinterpret_cast<char*>(&code), 1, true) &&
                      send_text(socket_->fd(), key) && send_text(socket_->fd(), value) &&
                      receive_text(socket_->fd(), answer);
    if (!good)
      throw PeerError("rendezvous: " + name_ + " gave no answer for key '" + key + "' within " +
                          std::to_string(deadline.count()) + " ms",
                      "did all ranks start? Has rank 0 ended?");
    return answer;
  }

  std::string name_;
  std::unique_ptr<Server> server_;
  std::mutex mutex_;  // guards socket_
  std::unique_ptr<Socket> socket_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const std::string& address, int port, bool is_server,
                                      std::chrono::milliseconds deadline) {
  return std::make_shared<TcpStore>(address, port, is_server, deadline);
}

}  // namespace millrace
