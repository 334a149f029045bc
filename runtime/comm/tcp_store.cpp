// Rendezvous over TCP: rank 0 serves. A connection begins with a handshake (handshake.h), then each request
// is {operation, number, key, value} with 32-bit lengths, bounded, and each answer {number, what, value}: an
// answer that comes after its request was given up is known by its number. A GET waits on the server until
// its client asks for something else. One thread a connection: a job has few.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/comm/addresses.h"
#include "runtime/comm/handshake.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

using Limits = TcpStoreLimits;
using std::chrono::milliseconds;

// A server that cannot take a connection (no descriptors, no memory) tries again after this long.
constexpr milliseconds kAcceptPause{100};
// How soon a waiting GET sees that its client asks for something else.
constexpr milliseconds kGetSlice{20};
// A message whose first byte is there is complete within this time, or its sender is broken.
constexpr milliseconds kRestOfMessage{5000};
constexpr milliseconds kSetDeadline{30'000};

enum Operation : std::uint8_t { kSet = 's', kGet = 'g' };
enum Answer : std::uint8_t { kOk = 'o', kRefused = 'r' };

/// Non-blocking: every transfer has its deadline.
class Socket {
 public:
  explicit Socket(Clock& clock, int fd = -1) : clock_(clock), fd_(fd) {
    if (fd_ >= 0) ::fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  Socket(Socket&& other) noexcept : clock_(other.clock_), fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }
  TimePoint after(milliseconds time) const { return clock_.now() + time; }
  void shut() const { ::shutdown(fd_, SHUT_RDWR); }

  /// Until one of `events`, an error or the deadline. False: the deadline.
  bool await(short events, TimePoint deadline) const {
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - clock_.now()).count();
      pollfd state{fd_, events, 0};
      const int n = ::poll(&state, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
      if (n > 0) return true;
      if (n == 0 || errno != EINTR) return false;
    }
  }

  bool send(std::string_view bytes, TimePoint deadline) const {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n > 0) {
        bytes.remove_prefix(n);
      } else if (n < 0 && errno == EAGAIN) {
        if (!await(POLLOUT, deadline)) return false;
      } else if (n == 0 || errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  bool receive(char* bytes, std::size_t count, TimePoint deadline) const {
    while (count) {
      const ssize_t n = ::recv(fd_, bytes, count, 0);
      if (n > 0) {
        bytes += n;
        count -= static_cast<std::size_t>(n);
      } else if (n < 0 && errno == EAGAIN) {
        if (!await(POLLIN, deadline)) return false;
      } else if (n == 0 || errno != EINTR) {
        return false;
      }
    }
    return true;
  }

  bool receive_number(std::uint32_t& number, TimePoint deadline) const {
    if (!receive(reinterpret_cast<char*>(&number), sizeof number, deadline)) return false;
    number = ntohl(number);
    return true;
  }
  /// False also if it is longer than `limit`: not one of ours.
  bool receive_text(std::string& text, std::uint32_t limit, TimePoint deadline) const {
    std::uint32_t length = 0;
    if (!receive_number(length, deadline) || length > limit) return false;
    text.resize(length);
    return receive(text.data(), length, deadline);
  }

 private:
  Clock& clock_;
  int fd_;
};

std::string number_bytes(std::uint32_t number) {
  number = htonl(number);
  return {reinterpret_cast<const char*>(&number), sizeof number};
}
std::string text_bytes(const std::string& text) {
  return number_bytes(static_cast<std::uint32_t>(text.size())) + text;
}

std::string name_of(const TcpStoreOptions& options) {
  return host_and_port(options.address, options.port);
}

/// The values, and how many of them there may be.
class Values {
 public:
  Values(int size, Clock& clock)
      : most_keys_(Limits::keys(size)), most_bytes_(Limits::bytes(size)), store_(make_memory_store(clock)) {}

  bool set(const std::string& key, const std::string& value) {
    {
      const std::lock_guard lock(mutex_);
      const auto known = sizes_.find(key);
      if (known == sizes_.end() && sizes_.size() >= most_keys_) return false;
      const std::size_t before = known == sizes_.end() ? 0 : known->second;
      const std::size_t now = key.size() + value.size();
      if (bytes_ - before + now > most_bytes_) return false;
      bytes_ += now - before;
      sizes_[key] = now;
    }
    store_->set(key, value);
    return true;
  }
  bool find(const std::string& key, std::string& value, milliseconds wait) {
    try {
      value = store_->get(key, wait);
      return true;
    } catch (const PeerError&) {
      return false;
    }
  }

 private:
  std::size_t most_keys_, most_bytes_;
  std::shared_ptr<Store> store_;
  std::mutex mutex_;  // guards what follows
  std::map<std::string, std::size_t> sizes_;
  std::size_t bytes_ = 0;
};

class Server {
 public:
  explicit Server(const TcpStoreOptions& options)
      : options_(options), values_(options.size, options.clock), listener_(options.clock) {
    SocketAddress address = resolve(options.address, options.port);
    if (options.all_addresses) address = any_address(address);
    listener_ = Socket(options.clock, ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    ::setsockopt(listener_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(listener_.fd(), address.get(), address.size) != 0 || ::listen(listener_.fd(), 128) != 0) {
      const std::string reason = std::strerror(errno);
      throw ConfigError("cannot listen on " + name_of(options) + ": " + reason,
                        "another job may hold the port: choose another MASTER_PORT");
    }
    acceptor_ = std::jthread([this](std::stop_token stop) { accept(stop); });
  }

  ~Server() {
    acceptor_.request_stop();
    {
      const std::lock_guard lock(mutex_);
      if (listener_.fd() >= 0) listener_.shut();
    }
    acceptor_.join();
    for (auto& client : clients_) client.socket.shut();
    clients_.clear();  // joins
  }

 private:
  struct Client {
    explicit Client(Socket s) : socket(std::move(s)) {}
    Socket socket;
    std::atomic<bool> known{false};  ///< has shown that it belongs to the job
    std::atomic<bool> ended{false};
    std::jthread thread;  // last: ends first
  };

  bool all_are_here() {
    const std::lock_guard lock(mutex_);
    return joined_.size() >= static_cast<std::size_t>(options_.size);
  }

  /// Until all ranks of the job have come: then nobody else has any business here.
  void accept(const std::stop_token& stop) {
    while (!stop.stop_requested() && !all_are_here()) {
      // Also looks from time to time whether the last rank's handshake is through.
      if (!listener_.await(POLLIN, listener_.after(kAcceptPause))) continue;
      forget_ended();
      const auto strangers =
          static_cast<std::size_t>(std::ranges::count_if(clients_, [](const Client& c) { return !c.known; }));
      if (strangers >= Limits::kStrangers) {
        options_.clock.sleep_until(
            listener_.after(kAcceptPause));  // they have kHandshake; the queue of the kernel waits
        continue;
      }
      Socket socket(options_.clock, ::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (socket.fd() < 0) {
        // Nothing to take after all, or no descriptors: the connection stays in the queue.
        if (!stop.stop_requested()) options_.clock.sleep_until(listener_.after(kAcceptPause));
        continue;
      }
      Client& client = clients_.emplace_back(std::move(socket));
      client.thread = std::jthread([this, &client](const std::stop_token& end) {
        serve(client, end);
        client.socket.shut();
        client.ended = true;
      });
    }
    const std::lock_guard lock(mutex_);
    listener_ = Socket(options_.clock);
  }

  void forget_ended() {
    std::erase_if(clients_, [](const Client& c) { return c.ended.load(); });
  }

  /// Empty: `hello` is a rank of this job, and is noted. Else why not.
  std::string refusal(const Hello& hello, const std::string& challenge) {
    if (!is_proof(hello.proof, client_proof(options_.token, challenge, hello)))
      return "its token is another one (MILLRACE_TOKEN)";
    if (hello.job != options_.job || hello.size != options_.size) {
      return "it is held by another job (" + options_.job + ", " + std::to_string(options_.size) +
             " ranks), not this one (" + hello.job + ", " + std::to_string(hello.size) + " ranks)";
    }
    const std::lock_guard lock(mutex_);
    if (!joined_.insert(hello.rank).second)
      return "rank " + std::to_string(hello.rank) + " of the job there has joined already";
    return "";
  }

  bool welcome(const Client& client) {
    const TimePoint deadline = client.socket.after(Limits::kHandshake);
    const std::string challenge = random_bytes(kNonceBytes);
    std::string text;
    if (!client.socket.send(kGreeting + challenge, deadline) ||
        !client.socket.receive_text(text, kMostHelloBytes, deadline))
      return false;
    const std::optional<Hello> hello = parse_hello(text);
    if (!hello) return false;
    const std::string reason = refusal(*hello, challenge);
    if (!reason.empty()) {
      log_warning("refused a connection to " + name_of(options_) + ": " + reason);
      client.socket.send(std::string(1, kRefused) + text_bytes(reason), deadline);
      return false;
    }
    return client.socket.send(
        std::string(1, kOk) + text_bytes(server_proof(options_.token, challenge, *hello)), deadline);
  }

  void serve(Client& client, const std::stop_token& stop) {
    const Socket& socket = client.socket;
    if (!welcome(client)) return;
    client.known = true;
    std::string key, value;
    while (!stop.stop_requested()) {
      if (!socket.await(POLLIN, socket.after(milliseconds(1000)))) continue;
      const TimePoint deadline = socket.after(kRestOfMessage);
      char operation = 0;
      std::uint32_t number = 0;
      if (!socket.receive(&operation, 1, deadline) || !socket.receive_number(number, deadline) ||
          !socket.receive_text(key, Limits::kKeyBytes, deadline) ||
          !socket.receive_text(value, Limits::kValueBytes, deadline))
        return;
      Answer answer = kOk;
      if (operation == kSet) {
        if (!values_.set(key, value)) answer = kRefused;
        value = answer == kOk ? "" : "the store is full";
      } else if (operation != kGet) {
        return;
      } else if (!wait_for(key, value, socket, stop)) {
        continue;  // the client has given up: its next request is there, or it is gone
      }
      if (!socket.send(number_bytes(number) + static_cast<char>(answer) + text_bytes(value),
                       socket.after(kRestOfMessage)))
        return;
    }
  }

  /// In slices: the client may ask for something else meanwhile, and the server may end.
  bool wait_for(const std::string& key, std::string& value, const Socket& socket,
                const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (values_.find(key, value, kGetSlice)) return true;
      if (socket.await(POLLIN | POLLRDHUP, socket.after(milliseconds(0)))) return false;
    }
    return false;
  }

  TcpStoreOptions options_;
  Values values_;
  std::mutex mutex_;  // guards the end of listener_, and joined_
  Socket listener_;
  std::set<int> joined_;
  std::list<Client> clients_;  // only the acceptor's, until it has ended
  std::jthread acceptor_;
};

class TcpStore final : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : clock_(options.clock), name_(name_of(options)), socket_(options.clock) {
    if (options.rank == 0) server_ = std::make_unique<Server>(options);
    const TimePoint deadline = socket_.after(options.deadline);
    connect(options, deadline);
    introduce(options, deadline);
  }

  void set(const std::string& key, const std::string& value) override {
    request(kSet, key, value, kSetDeadline);
  }
  std::string get(const std::string& key, milliseconds deadline) override {
    return request(kGet, key, "", deadline);
  }

 private:
  static int connected(const Socket& socket, const SocketAddress& address, TimePoint deadline) {
    if (::connect(socket.fd(), address.get(), address.size) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    if (!socket.await(POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }

  void connect(const TcpStoreOptions& options, TimePoint deadline) {
    const SocketAddress address = resolve(options.address, options.port);
    for (auto pause = milliseconds(1);; pause = std::min(pause * 2, milliseconds(50))) {
      Socket socket(clock_, ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int error = socket.fd() < 0 ? errno : connected(socket, address, deadline);
      if (error == 0) {
        const int on = 1;
        ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        socket_ = std::move(socket);
        return;
      }
      if (clock_.now() >= deadline) {
        throw PeerError("rendezvous: nobody listens on " + name_ + " after " +
                            std::to_string(options.deadline.count()) + " ms: " + std::strerror(error),
                        "did rank 0 start? Are MASTER_ADDR and MASTER_PORT right?");
      }
      clock_.sleep_until(clock_.now() + pause);
    }
  }

  void introduce(const TcpStoreOptions& options, TimePoint deadline) {
    const std::string greeting = kGreeting;
    std::string challenge(greeting.size() + kNonceBytes, '\0');
    const bool greeted = socket_.receive(challenge.data(), challenge.size(), deadline);
    if (!greeted || challenge.rfind(greeting, 0) != 0) {
      throw PeerError("rendezvous: " + name_ + " does not answer as rank 0 of a job",
                      "something else may listen there, or that job's ranks are complete: choose another "
                      "MASTER_PORT");
    }
    challenge.erase(0, greeting.size());
    Hello hello{
        .rank = options.rank, .size = options.size, .job = options.job, .nonce = random_bytes(kNonceBytes)};
    hello.proof = client_proof(options.token, challenge, hello);
    char answer = 0;
    std::string text;
    if (!socket_.send(text_bytes(to_bytes(hello)), deadline) || !socket_.receive(&answer, 1, deadline) ||
        !socket_.receive_text(text, kMostHelloBytes, deadline))
      throw PeerError("rendezvous: " + name_ + " closed the connection", "has rank 0 ended?");
    const std::string hint =
        "give each job a MASTER_PORT of its own, and all its ranks the same MILLRACE_TOKEN";
    if (answer != kOk)
      throw ConfigError("rendezvous: " + name_ + " refused this rank: " + printable(text), hint);
    if (!is_proof(text, server_proof(options.token, challenge, hello)))
      throw ConfigError("rendezvous: who listens on " + name_ + " does not know this job's token", hint);
  }

  std::string request(Operation operation, const std::string& key, const std::string& value,
                      milliseconds time) {
    if (key.size() > Limits::kKeyBytes || value.size() > Limits::kValueBytes)
      throw InternalError("rendezvous: key '" + key + "' or its value is too long");
    const std::lock_guard lock(mutex_);
    const TimePoint deadline = socket_.after(time);
    const std::uint32_t mine = ++requests_;
    std::string text = std::string(1, static_cast<char>(operation));
    text += number_bytes(mine) + text_bytes(key) + text_bytes(value);
    bool alive = !broken_ && socket_.send(text, socket_.after(std::max(time, kRestOfMessage)));
    // Answers to requests that were given up come first.
    while (alive && socket_.await(POLLIN, deadline)) {
      const TimePoint rest = socket_.after(kRestOfMessage);
      std::uint32_t number = 0;
      char answer = 0;
      std::string got;
      alive = socket_.receive_number(number, rest) && socket_.receive(&answer, 1, rest) &&
              socket_.receive_text(got, Limits::kValueBytes, rest);
      if (!alive || number != mine) continue;
      if (answer == kOk) return got;
      throw PeerError("rendezvous: " + name_ + " refused key '" + key + "': " + printable(got));
    }
    broken_ = !alive;  // in the middle of a message: what follows cannot be read
    throw PeerError("rendezvous: " + name_ + " gave no answer for key '" + key + "' within " +
                        std::to_string(time.count()) + " ms" + (alive ? "" : " (connection lost)"),
                    "did all ranks start? Has rank 0 ended?");
  }

  Clock& clock_;
  std::string name_;
  std::unique_ptr<Server> server_;
  std::mutex mutex_;  // guards what follows
  Socket socket_;
  bool broken_ = false;
  std::uint32_t requests_ = 0;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options) {
  TcpStoreOptions named = options;
  named.job = printable(named.job.substr(0, kMostJobBytes));
  return std::make_shared<TcpStore>(named);
}

}  // namespace millrace
