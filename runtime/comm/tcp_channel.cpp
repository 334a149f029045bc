// One connection a pair of ranks. A message is {tag, bytes} and its content. Whoever posts a send writes as
// much of it as the kernel takes at once; one thread a rank writes the rest and reads what comes. A message
// that comes before its receive is posted is kept.
#include "runtime/comm/tcp_channel.h"

#include <endian.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/numbers.h"
#include "runtime/comm/addresses.h"
#include "runtime/comm/authenticated_socket.h"
#include "runtime/comm/channel.h"
#include "runtime/comm/socket.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

// A peer may be this far ahead of the receives posted here; then it waits, unless a receive needs what it
// sends behind it.
constexpr std::size_t kMostEarlyBytes = std::size_t{256} << 20;
constexpr std::size_t kMostMessageBytes = std::size_t{1} << 40;
// The thread goes on to the next connection after this much.
constexpr std::size_t kTurnBytes = std::size_t{4} << 20;

using Header = std::array<std::uint64_t, 2>;

Header header_of(std::uint64_t tag, std::size_t bytes) {
  return {htole64(tag), htole64(bytes)};
}

/// A message on its way, in either direction. Guarded by its connection's mutex, but for the bytes of an
/// unfinished one: they are the thread's.
struct Message {
  std::uint64_t tag = 0;
  at::Tensor tensor;  ///< of the caller, or bytes of our own for a message that nobody expects yet
  std::size_t bytes = 0;
  Header header{};
  std::size_t gone = 0;  ///< bytes of header and content that went out; or bytes of content that came
  bool done = false;
  std::string error{};
  const char* hint = kPeerEndedHint;

  char* data() const { return static_cast<char*>(tensor.data_ptr()); }
};
using MessagePtr = std::shared_ptr<Message>;

/// Messages by tag, in the order in which they came.
class Mailbox {
 public:
  bool empty() const { return all_.empty(); }
  void put(MessagePtr message) { all_[message->tag].push_back(std::move(message)); }
  MessagePtr take(std::uint64_t tag) {
    const auto found = all_.find(tag);
    if (found == all_.end()) return nullptr;
    MessagePtr message = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) all_.erase(found);
    return message;
  }
  void remove(const MessagePtr& message) {
    const auto found = all_.find(message->tag);
    if (found == all_.end()) return;
    std::erase(found->second, message);
    if (found->second.empty()) all_.erase(found);
  }
  template <typename Function>
  void for_each(Function function) {
    for (auto& [tag, messages] : all_)
      for (const MessagePtr& message : messages) function(*message);
  }

 private:
  std::map<std::uint64_t, std::deque<MessagePtr>> all_;
};

class Connection {
 public:
  Connection(Socket socket, Clock& clock) : socket_(std::move(socket)), clock_(clock) {}

  /// Joins the thread's epoll.
  void watch(int epoll, std::uint32_t index) {
    epoll_ = epoll;
    epoll_event event = event_of(EPOLLIN, index);
    index_ = index;
    events_ = EPOLLIN;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket_.fd(), &event) != 0)
      throw InternalError(std::string("epoll: ") + std::strerror(errno));
  }

  // ---- callers
  void send(const MessagePtr& message) {
    const std::lock_guard lock(mutex_);
    if (!loss_.empty()) {
      fail(*message, loss_);
      return;
    }
    outgoing_.push_back(message);
    if (outgoing_.size() == 1) write();
    update_events();
  }

  void receive(const MessagePtr& message) {
    const std::lock_guard lock(mutex_);
    if (MessagePtr early = early_.take(message->tag)) {
      give(*early, *message);
    } else if (reading_ && reading_is_early_ && reading_->tag == message->tag && !taker_) {
      taker_ = message;
    } else if (!loss_.empty()) {
      fail(*message, loss_);
    } else {
      posted_.put(message);
    }
    update_events();
  }

  /// Returns false at the deadline.
  bool wait(const Message& message, TimePoint deadline) {
    std::unique_lock lock(mutex_);
    return clock_.wait_until(lock, changed_, deadline, [&] { return message.done; });
  }

  void forget(const MessagePtr& message) {
    const std::lock_guard lock(mutex_);
    if (message->done) return;
    posted_.remove(message);
    if (taker_ == message) taker_ = nullptr;
  }

  /// Ends all transfers, now and later. The peer reads what has gone out, and then sees that this end is
  /// gone.
  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    lose(reason);
    socket_.finish_sending();
  }

  // ---- the thread
  void advance(std::uint32_t happened) {
    if (happened & (EPOLLIN | EPOLLHUP | EPOLLERR)) read_turn();
    const std::lock_guard lock(mutex_);
    if (!outgoing_.empty() && loss_.empty()) write();
    update_events();
  }

  /// Returns whether there is more to read of which no poll tells.
  bool has_more() const { return more_; }

 private:
  static epoll_event event_of(std::uint32_t events, std::uint32_t index) {
    epoll_event event{};
    event.events = events;
    event.data.u32 = index;
    return event;
  }

  // All that follows but read_turn(): the caller holds the mutex.
  void finish(Message& message) {
    message.done = true;
    clock_.notify_all(changed_);
  }
  void fail(Message& message, const std::string& why) {
    message.error = why;
    finish(message);
  }
  void fail_by_length(Message& message, std::size_t came) {
    message.hint = "are both ranks running the same plan?";
    fail(message, "the message has " + std::to_string(came) + " bytes");
  }
  /// The connection is of no more use.
  void lose(const std::string& why) {
    if (!loss_.empty()) return;
    loss_ = why;
    posted_.for_each([&](Message& message) { fail(message, loss_); });
    posted_ = {};
    if (taker_) fail(*taker_, loss_);
    taker_ = nullptr;
    if (reading_ && !reading_is_early_) fail(*reading_, loss_);
    for (const MessagePtr& message : outgoing_) fail(*message, loss_);
    outgoing_.clear();
  }

  void give(const Message& early, Message& to) {
    early_bytes_ -= early.bytes;
    if (early.bytes != to.bytes) return fail_by_length(to, early.bytes);
    std::memcpy(to.data(), early.data(), to.bytes);
    finish(to);
  }

  std::string lost_text() const {
    return std::string("connection lost (") + (errno ? std::strerror(errno) : "closed by the peer") + ")";
  }

  /// Writes as much as goes now.
  void write() {
    while (!outgoing_.empty()) {
      Message& message = *outgoing_.front();
      while (message.gone < sizeof message.header + message.bytes) {
        const ssize_t n = write_part(message);
        if (n < 0) return lose(lost_text());
        if (n == 0) return;
        message.gone += static_cast<std::size_t>(n);
      }
      finish(message);
      outgoing_.pop_front();
    }
  }

  ssize_t write_part(const Message& message) {
    const auto* header = reinterpret_cast<const char*>(message.header.data());
    const std::size_t in_header = sizeof message.header;
    errno = 0;
    if (message.gone >= in_header || socket_.is_encrypted()) {
      return message.gone < in_header ? socket_.write_some({header + message.gone, in_header - message.gone})
                                      : socket_.write_some({message.data() + (message.gone - in_header),
                                                            in_header + message.bytes - message.gone});
    }
    iovec parts[] = {{const_cast<char*>(header) + message.gone, in_header - message.gone},
                     {message.data(), message.bytes}};
    msghdr both{};
    both.msg_iov = parts;
    both.msg_iovlen = 2;
    ssize_t n;
    do n = ::sendmsg(socket_.fd(), &both, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 && errno == EAGAIN ? 0 : n;
  }

  /// Tells the thread what to look for.
  void update_events() {
    const bool is_expected = !posted_.empty() || taker_ || (reading_ && !reading_is_early_);
    const bool has_room = is_expected || early_bytes_ < kMostEarlyBytes;
    std::uint32_t events = 0;
    if (loss_.empty() && has_room) events |= EPOLLIN;
    if (!outgoing_.empty()) events |= EPOLLOUT;
    if (events == events_) return;
    events_ = events;
    epoll_event event = event_of(events, index_);
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket_.fd(), &event);
  }

  /// Reads until nothing is there, or this connection's turn is over.
  void read_turn() {
    more_ = false;
    for (std::size_t read = 0; read < kTurnBytes;) {
      char* to = nullptr;
      std::size_t room = 0;
      {
        const std::lock_guard lock(mutex_);
        if (!loss_.empty()) {
          // After a loss or an abort only the end is of interest: no event must be left to repeat.
          ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket_.fd(), nullptr);
          return;
        }
        to = reading_ ? reading_->data() + reading_->gone
                      : reinterpret_cast<char*>(header_.data()) + header_read_;
        room = reading_ ? reading_->bytes - reading_->gone : sizeof header_ - header_read_;
      }
      errno = 0;
      const ssize_t n = read_bytes(to, std::min(room, kTurnBytes));
      if (n == 0) return;
      const std::lock_guard lock(mutex_);
      if (n < 0) return lose(lost_text());
      read += static_cast<std::size_t>(n);
      came(static_cast<std::size_t>(n));
    }
    more_ = socket_.has_decrypted();
  }

  /// TLS has one state for both directions.
  ssize_t read_bytes(char* to, std::size_t room) {
    if (!socket_.is_encrypted()) return socket_.read_some(to, room);
    const std::lock_guard lock(mutex_);
    return socket_.read_some(to, room);
  }

  void came(std::size_t bytes) {
    if (!reading_) {
      header_read_ += bytes;
      if (header_read_ == sizeof header_) begin_message();
      return;
    }
    reading_->gone += bytes;
    if (reading_->gone < reading_->bytes) return;
    const MessagePtr message = std::exchange(reading_, nullptr);
    if (!reading_is_early_) {
      finish(*message);
    } else if (taker_) {
      give(*message, *std::exchange(taker_, nullptr));
    } else {
      early_.put(message);
    }
  }

  void begin_message() {
    header_read_ = 0;
    const std::uint64_t tag = le64toh(header_[0]), bytes = le64toh(header_[1]);
    if (bytes == 0 || bytes > kMostMessageBytes) return lose("the peer sent what is no message");
    reading_ = posted_.take(tag);
    reading_is_early_ = !reading_ || reading_->bytes != bytes;
    if (!reading_is_early_) return;
    if (reading_) fail_by_length(*reading_, bytes);
    reading_ = std::make_shared<Message>(Message{
        .tag = tag, .tensor = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte), .bytes = bytes});
    early_bytes_ += bytes;
  }

  Socket socket_;
  Clock& clock_;
  int epoll_ = -1;
  std::uint32_t index_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint32_t events_ = 0;
  std::deque<MessagePtr> outgoing_;
  Mailbox posted_, early_;
  std::size_t early_bytes_ = 0;
  Header header_{};
  std::size_t header_read_ = 0;
  MessagePtr reading_;             // null: a header is being read
  bool reading_is_early_ = false;  // reading_ is ours
  MessagePtr taker_;               // its receive was posted while it was being read
  std::string loss_;
  bool more_ = false;  // the thread's
};

class TcpPending final : public Pending {
 public:
  TcpPending(const CommunicatorOptions& options, std::shared_ptr<Connection> connection, Transfer transfer)
      : connection_(std::move(connection)),
        rank_(options.rank.value),
        transfer_(std::move(transfer)),
        deadline_(options.deadline),
        clock_(options.clock),
        message_(std::make_shared<Message>()) {
    message_->tag = transfer_.tag;
    message_->tensor = transfer_.tensor;
    message_->bytes = transfer_.tensor.nbytes();
    message_->header = header_of(message_->tag, message_->bytes);
    if (transfer_.direction == Direction::Send)
      connection_->send(message_);
    else
      connection_->receive(message_);
  }
  ~TcpPending() override { connection_->forget(message_); }

  void wait() override {
    const TimePoint start = clock_.now();
    const bool in_time = connection_->wait(*message_, start + deadline_);
    if (in_time && message_->error.empty()) return;
    const bool sends = transfer_.direction == Direction::Send;
    const std::string what = in_time ? message_->error : sends ? "not taken" : "no message";
    throw PeerError(wait_message(rank_, transfer_, clock_, start, what) +
                        (sends ? "; it has " : "; expected ") + std::to_string(message_->bytes) + " bytes",
                    in_time ? message_->hint : kLateHint);
  }

 private:
  std::shared_ptr<Connection> connection_;
  int rank_;
  Transfer transfer_;
  milliseconds deadline_;
  Clock& clock_;
  MessagePtr message_;
};

/// Returns what all ranks of this meeting know: the job's token, which a stranger does not have, and a secret
/// of the store, which makes each meeting another one.
std::string secret_of_meeting(const CommunicatorOptions& options, Store& store) {
  if (options.rank.value == 0) store.set("tcp/secret", random_token());
  return options.token + ":" + store.get("tcp/secret", options.rendezvous_deadline);
}

/// The connections of this rank while they are made.
class Meeting {
 public:
  Meeting(const CommunicatorOptions& options, const std::vector<int>& peers, Store& store,
          const std::string& secret, const TlsSecret* tls)
      : options_(options), store_(store), secret_(secret), tls_(tls) {
    for (const int peer : peers)
      if (peer != options.rank.value) peers_.push_back(peer);
  }

  std::map<int, Socket> connect() {
    const std::string me = std::to_string(options_.rank.value);
    const TimePoint deadline = options_.clock.now() + options_.rendezvous_deadline;
    // The higher rank of a pair connects.
    const int higher = static_cast<int>(std::ranges::count_if(peers_, [&](int p) { return is_higher(p); }));
    AuthenticatedListener listener(
        {.address = resolve(options_.interface_address, 0),
         .size = options_.size,
         .expected = higher,
         .token = secret_,
         .tls = tls_,
         .refusal = [this](const Hello& hello) { return refusal(hello); },
         .joined = [this](const Hello& hello, Socket socket) { add(hello.rank, std::move(socket)); },
         .clock = options_.clock});
    store_.set("tcp/" + me, host_and_port(options_.interface_address, listener.port()));
    for (const int peer : peers_)
      if (!is_higher(peer)) add(peer, connected_with(peer, deadline));
    wait_for_all(deadline);
    return std::move(sockets_);
  }

 private:
  bool is_higher(int peer) const { return peer > options_.rank.value; }
  static std::string purpose(int server) { return "messages with rank " + std::to_string(server); }

  void add(int peer, Socket socket) {
    const std::lock_guard lock(mutex_);
    sockets_.emplace(peer, std::move(socket));
    options_.clock.notify_all(changed_);
  }

  std::string refusal(const Hello& hello) {
    if (hello.job != purpose(options_.rank.value) || hello.size != options_.size)
      return "it looks for another rank";
    const bool is_peer = is_higher(hello.rank) && std::ranges::find(peers_, hello.rank) != peers_.end();
    const std::lock_guard lock(mutex_);
    return is_peer && !sockets_.contains(hello.rank) ? "" : "no connection with that rank is expected";
  }

  Socket connected_with(int peer, TimePoint deadline) {
    const auto left = [&] {
      return std::max(milliseconds(1),
                      std::chrono::duration_cast<milliseconds>(deadline - options_.clock.now()));
    };
    const std::string at = store_.get("tcp/" + std::to_string(peer), left());
    const std::size_t colon = at.rfind(':');
    const auto port = number_of<int>(at.substr(colon + 1));
    if (colon == std::string::npos || !port)
      throw PeerError("rendezvous: rank " + std::to_string(peer) + " says that it listens on '" + at + "'");
    return connect_authenticated({.address = at.substr(0, colon),
                                  .port = *port,
                                  .rank = options_.rank.value,
                                  .size = options_.size,
                                  .job = purpose(peer),
                                  .token = secret_,
                                  .tls = tls_,
                                  .what = "rank " + std::to_string(peer),
                                  .deadline = left(),
                                  .clock = options_.clock});
  }

  void wait_for_all(TimePoint deadline) {
    std::unique_lock lock(mutex_);
    if (options_.clock.wait_until(lock, changed_, deadline, [&] { return sockets_.size() == peers_.size(); }))
      return;
    std::string missing;
    for (const int peer : peers_)
      if (!sockets_.contains(peer)) missing += (missing.empty() ? "" : ", ") + std::to_string(peer);
    throw PeerError("rank " + std::to_string(options_.rank.value) + ": no connection came from rank " +
                        missing + " within " + std::to_string(options_.rendezvous_deadline.count()) + " ms",
                    "did all ranks start? Can their hosts reach " + options_.interface_address + "?");
  }

  const CommunicatorOptions& options_;
  Store& store_;
  const std::string& secret_;
  const TlsSecret* tls_;
  std::vector<int> peers_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<int, Socket> sockets_;
};

class TcpChannel final : public Channel {
 public:
  TcpChannel(const CommunicatorOptions& options, const std::vector<int>& peers, Store& store)
      : options_(options),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        connections_(static_cast<std::size_t>(options.size)) {
    if (epoll_.fd < 0 || wake_.fd < 0)
      throw ConfigError(std::string("cannot wait for messages: ") + std::strerror(errno), "see ulimit -n");
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = kWake;
    ::epoll_ctl(epoll_.fd, EPOLL_CTL_ADD, wake_.fd, &event);
    const std::string secret = secret_of_meeting(options, store);
    if (options.encrypt) tls_ = std::make_unique<TlsSecret>(secret);
    for (auto& [peer, socket] : Meeting(options, peers, store, secret, tls_.get()).connect()) {
      connections_[peer] = std::make_shared<Connection>(std::move(socket), options.clock);
      connections_[peer]->watch(epoll_.fd, static_cast<std::uint32_t>(peer));
    }
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ~TcpChannel() override {
    thread_.request_stop();
    ::eventfd_write(wake_.fd, 1);
  }

  int rank() const override { return options_.rank.value; }
  int size() const override { return options_.size; }
  milliseconds deadline() const override { return options_.deadline; }
  Clock& clock() const override { return options_.clock; }
  bool buffers_sends() const override { return false; }

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.tensor.nbytes() == 0) return std::make_unique<NothingPending>();
    const auto& connection = connections_.at(static_cast<std::size_t>(transfer.peer.value));
    if (!connection)
      throw InternalError("rank " + std::to_string(rank()) + " has no connection with rank " +
                          std::to_string(transfer.peer.value));
    return std::make_unique<TcpPending>(options_, connection, transfer);
  }

  void abort(const std::string& reason) noexcept override {
    for (const auto& connection : connections_)
      if (connection) connection->abort("aborted: " + (reason.empty() ? "a rank failed" : reason));
  }

 private:
  static constexpr std::uint32_t kWake = 0xffffffff;

  struct Descriptor {
    int fd;
    explicit Descriptor(int f) : fd(f) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
      if (fd >= 0) ::close(fd);
    }
  };

  void run(const std::stop_token& stop) {
    std::array<epoll_event, 64> events;
    std::set<std::uint32_t> more;  // connections with decrypted bytes that no event tells of
    while (!stop.stop_requested()) {
      const int n = ::epoll_wait(epoll_.fd, events.data(), events.size(), more.empty() ? -1 : 0);
      std::map<std::uint32_t, std::uint32_t> happened;
      for (const std::uint32_t index : more) happened[index] = EPOLLIN;
      for (int i = 0; i < n; ++i)
        if (events[i].data.u32 != kWake) happened[events[i].data.u32] |= events[i].events;
      for (const auto& [index, what] : happened) {
        Connection& connection = *connections_[index];
        connection.advance(what);
        if (connection.has_more())
          more.insert(index);
        else
          more.erase(index);
      }
    }
  }

  CommunicatorOptions options_;
  std::unique_ptr<TlsSecret> tls_;  // outlives the connections
  Descriptor epoll_, wake_;
  std::vector<std::shared_ptr<Connection>> connections_;  // by rank; null: none
  std::jthread thread_;                                   // last: ends first
};

}  // namespace

std::shared_ptr<Channel> make_tcp_channel(const CommunicatorOptions& options, const std::vector<int>& peers,
                                          Store& store) {
  return std::make_shared<TcpChannel>(options, peers, store);
}

}  // namespace millrace
