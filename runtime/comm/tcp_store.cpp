// Rendezvous over TCP: rank 0 serves. A connection begins with a handshake (authenticated_socket.h), then
// each request is {operation, number, key, value} with 32-bit lengths, bounded, and each answer {number,
// what, value}: an answer that comes after its request was given up is known by its number. A GET waits on
// the server until its client asks for something else. One thread a connection: a job has few.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/open_files.h"
#include "runtime/comm/addresses.h"
#include "runtime/comm/authenticated_socket.h"
#include "runtime/comm/handshake.h"
#include "runtime/comm/socket.h"
#include "runtime/comm/store.h"

namespace millrace {
namespace {

using Limits = TcpStoreLimits;
using std::chrono::milliseconds;

// How soon a waiting GET sees that its client asks for something else.
constexpr milliseconds kGetSlice{20};
constexpr milliseconds kLongestSlice{320};
// A message whose first byte is there is complete within this time, or its sender is broken.
constexpr milliseconds kRestOfMessage{5000};
constexpr milliseconds kSetDeadline{30'000};
constexpr std::size_t kOtherFiles = 64;

enum Operation : std::uint8_t { kSet = 's', kGet = 'g' };
enum Answer : std::uint8_t { kOk = 'o', kRefused = 'r' };

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
  explicit Server(const TcpStoreOptions& options, const TlsSecret* tls)
      : options_(options), values_(options.size, options.clock) {
    SocketAddress address = resolve(options.address, options.port);
    if (options.all_addresses) address = any_address(address);
    // A connection of each rank, beside what a process has open anyway.
    require_open_files(static_cast<std::size_t>(options.size) + kOtherFiles,
                       "rank 0, where " + std::to_string(options.size) + " ranks meet,");
    Socket listener = listen_on(address, options.clock);
    log_info("listens on " + address.text_with_port() + " for the meeting until all ranks have come");
    listener_ = std::make_unique<AuthenticatedListener>(
        ListenerOptions{.name = name_of(options),
                        .size = options.size,
                        .expected = options.size,
                        .token = options.token,
                        .tls = tls,
                        .refusal = [this](const Hello& hello) { return refusal(hello); },
                        .joined = [this](const Hello&, Socket socket) { join(std::move(socket)); },
                        .clock = options.clock},
        std::move(listener));
  }

  ~Server() {
    listener_.reset();
    for (auto& client : clients_) client.socket.shut();
    clients_.clear();  // joins
    log_info(std::to_string(options_.size) + " ranks met by " + std::to_string(sets_) + " values, read " +
             std::to_string(gets_) + " times");
  }

 private:
  struct Client {
    explicit Client(Socket s) : socket(std::move(s)) {}
    Socket socket;
    std::jthread thread;  // last: ends first
  };

  std::string refusal(const Hello& hello) {
    if (hello.job != options_.job || hello.size != options_.size) {
      return "it is held by another job (" + options_.job + ", " + std::to_string(options_.size) +
             " ranks), not this one (" + hello.job + ", " + std::to_string(hello.size) + " ranks)";
    }
    if (!joined_.insert(hello.rank).second)
      return "rank " + std::to_string(hello.rank) + " of the job there has joined already";
    return "";
  }

  void join(Socket socket) {
    Client& client = clients_.emplace_back(std::move(socket));
    client.thread = std::jthread([this, &client](const std::stop_token& end) {
      serve(client, end);
      client.socket.shut();
    });
  }

  void serve(Client& client, const std::stop_token& stop) {
    Socket& socket = client.socket;
    std::string key, value;
    while (!stop.stop_requested()) {
      if (!socket.has_decrypted() && !socket.await(POLLIN, socket.after(milliseconds(1000)))) continue;
      const TimePoint deadline = socket.after(kRestOfMessage);
      char operation = 0;
      std::uint32_t number = 0;
      if (!socket.receive(&operation, 1, deadline) || !socket.receive_number(number, deadline) ||
          !socket.receive_text(key, Limits::kKeyBytes, deadline) ||
          !socket.receive_text(value, Limits::kValueBytes, deadline))
        return;
      Answer answer = kOk;
      if (operation == kSet) {
        ++sets_;
        if (!values_.set(key, value)) answer = kRefused;
        value = answer == kOk ? "" : "the store is full";
      } else if (operation != kGet) {
        return;
      } else if (!wait_for(key, value, socket, stop)) {
        continue;  // the client has given up: its next request is there, or it is gone
      } else {
        ++gets_;
      }
      if (!socket.send(number_bytes(number) + static_cast<char>(answer) + text_bytes(value),
                       socket.after(kRestOfMessage)))
        return;
    }
  }

  /// In slices: the client may ask for something else meanwhile, and the server may end.
  bool wait_for(const std::string& key, std::string& value, const Socket& socket,
                const std::stop_token& stop) {
    for (milliseconds slice = kGetSlice; !stop.stop_requested(); slice = std::min(2 * slice, kLongestSlice)) {
      if (values_.find(key, value, slice)) return true;
      if (socket.await(POLLIN | POLLRDHUP, socket.after(milliseconds(0)))) return false;
    }
    return false;
  }

  TcpStoreOptions options_;
  Values values_;
  std::atomic<std::int64_t> sets_ = 0, gets_ = 0;
  // The listener's, until it has ended:
  std::set<int> joined_;
  std::list<Client> clients_;
  std::unique_ptr<AuthenticatedListener> listener_;
};

class TcpStore final : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : clock_(options.clock), name_(name_of(options)), socket_(options.clock) {
    if (options.encrypt) tls_ = std::make_unique<TlsSecret>(options.token);
    if (options.rank == 0) server_ = std::make_unique<Server>(options, tls_.get());
    socket_ = connect_authenticated({.address = options.address,
                                     .port = options.port,
                                     .rank = options.rank,
                                     .size = options.size,
                                     .job = options.job,
                                     .token = options.token,
                                     .tls = tls_.get(),
                                     .what = "rank 0 of a job",
                                     .deadline = options.deadline,
                                     .clock = options.clock});
  }

  void set(const std::string& key, const std::string& value) override {
    request(kSet, key, value, kSetDeadline);
  }
  std::string get(const std::string& key, milliseconds deadline) override {
    return request(kGet, key, "", deadline);
  }

 private:
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
  std::unique_ptr<TlsSecret> tls_;  // outlives the sockets
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
