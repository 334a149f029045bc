// One connection a pair of ranks that talk. A message is {tag, bytes} and its content. Whoever posts a send
// writes as much of it as the kernel takes at once; one thread a rank writes the rest and reads what comes. A
// message that comes before its receive is posted is kept.
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
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/open_files.h"
#include "runtime/base/text.h"
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

/// The addresses at which all ranks listen, and what only they know.
struct Addresses {
  std::vector<std::string> of_rank;
  /// The job's token, which a stranger does not have, and a secret of the store, which makes each meeting
  /// another one.
  std::string secret;
};

/// "10.0.0.1:40001 40002": a host's addresses, or those of several hosts. An address without a host has that
/// of the one before it.
std::string short_addresses(const std::vector<std::string>& all) {
  std::string text, last;
  for (const std::string& address : all) {
    const std::size_t colon = address.rfind(':');
    const std::string host = address.substr(0, colon + 1);
    text += (text.empty() ? "" : " ") + (host == last ? address.substr(colon + 1) : address);
    last = host;
  }
  return text;
}

/// Collective. Each host sets one value, and all ranks read one.
Addresses share_addresses(const CommunicatorOptions& options, const std::vector<int>& hosts, Store& store,
                          const std::string& own) {
  const int rank = options.rank.value;
  std::vector<int> local, leaders;
  for (int r = 0; r < options.size; ++r) {
    if (hosts[r] == hosts[rank]) local.push_back(r);
    if (hosts[r] == r) leaders.push_back(r);
  }
  const auto agreed = [&](const char* key, const std::vector<int>& ranks, const std::string& says,
                          const auto& decide) {
    return agree(store, key, ranks, rank, says, options.rendezvous_deadline, options.clock, decide);
  };
  const std::string of_host = local.size() > 1 ? agreed("tcp", local, own, short_addresses) : own;
  const std::string of_all = agreed("tcp/hosts", leaders, of_host, [](const std::vector<std::string>& each) {
    std::string all = random_token();
    for (const std::string& one : each) all += " " + one;
    return all;
  });
  std::vector<std::string> words = split(of_all, ' ');
  std::vector<std::pair<int, int>> order;  // host, rank
  for (int r = 0; r < options.size; ++r) order.emplace_back(hosts[r], r);
  std::ranges::sort(order);
  if (words.size() != 1 + order.size())
    throw PeerError("rendezvous: " + std::to_string(order.size()) + " ranks gave " +
                    std::to_string(words.size() - 1) + " addresses");
  Addresses addresses{.of_rank = std::vector<std::string>(hosts.size()),
                      .secret = options.token + ":" + words.front()};
  std::string host;
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::string& word = words[1 + i];
    if (const std::size_t colon = word.rfind(':'); colon != std::string::npos)
      host = word.substr(0, colon + 1);
    else
      word.insert(0, host);
    addresses.of_rank[static_cast<std::size_t>(order[i].second)] = std::move(word);
  }
  return addresses;
}

/// The rank that posts the first message makes a connection; a pair that never talks has none. If both
/// ends do so at once, the lower rank's is refused and takes the higher one's.
class TcpChannel final : public Channel {
 public:
  TcpChannel(const CommunicatorOptions& options, const std::vector<int>& hosts, Store& store)
      : options_(options),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        peers_(static_cast<std::size_t>(options.size)) {
    if (epoll_.fd < 0 || wake_.fd < 0) throw_no_open_files("rank " + std::to_string(rank()));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = kWake;
    ::epoll_ctl(epoll_.fd, EPOLL_CTL_ADD, wake_.fd, &event);
    // Nobody comes before the addresses are shared, but the secret is part of what a listener needs.
    Socket listener = listen_on(resolve(options.interface_address, 0), options.clock);
    addresses_ =
        share_addresses(options, hosts, store, host_and_port(options.interface_address, port_of(listener)));
    if (options.encrypt) tls_ = std::make_unique<TlsSecret>(addresses_.secret);
    log_info("listens on " + addresses_.of_rank[static_cast<std::size_t>(rank())] +
             " for messages of ranks that it has not met");
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    listener_ = std::make_unique<AuthenticatedListener>(
        ListenerOptions{
            .name = addresses_.of_rank[static_cast<std::size_t>(rank())],
            .size = options.size,
            .token = addresses_.secret,
            .tls = tls_.get(),
            .refusal = [this](const Hello& hello) { return refusal(hello); },
            .logs_refusals = false,  // calls that cross are no news
            .joined = [this](const Hello& hello, Socket socket) { add(hello.rank, std::move(socket)); },
            .clock = options.clock},
        std::move(listener));
  }
  ~TcpChannel() override {
    listener_.reset();
    thread_.request_stop();
    ::eventfd_write(wake_.fd, 1);
  }

  int rank() const override { return options_.rank.value; }
  int size() const override { return options_.size; }
  milliseconds deadline() const override { return options_.deadline; }
  Clock& clock() const override { return options_.clock; }
  bool buffers_sends() const override { return false; }
  int connections() const override {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(
        std::ranges::count_if(peers_, [](const Peer& peer) { return peer.connection != nullptr; }));
  }

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.tensor.nbytes() == 0) return std::make_unique<NothingPending>();
    return std::make_unique<TcpPending>(options_, connection_for(transfer), transfer);
  }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (aborted_.empty()) aborted_ = kAborted + (reason.empty() ? "a rank failed" : reason);
    stop_.request_stop();
    for (const Peer& peer : peers_)
      if (peer.connection) peer.connection->abort(aborted_);
    options_.clock.notify_all(changed_);
  }

 private:
  static constexpr std::uint32_t kWake = 0xffffffff;
  static constexpr const char* kAborted = "aborted: ";
  static constexpr const char* kCrossing = "its own connection is on its way";

  struct Descriptor {
    int fd;
    explicit Descriptor(int f) : fd(f) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
      if (fd >= 0) ::close(fd);
    }
  };

  enum class Way { None, Calls, Comes };  ///< of a connection that is not there yet
  struct Peer {
    Way way = Way::None;
    std::shared_ptr<Connection> connection{};
  };

  static std::string purpose(int server) { return "messages with rank " + std::to_string(server); }

  /// Called by the listener's thread. From its answer on the connection comes from the peer.
  std::string refusal(const Hello& hello) {
    if (hello.job != purpose(rank()) || hello.size != size() || hello.rank < 0 || hello.rank >= size() ||
        hello.rank == rank())
      return "it looks for another rank";
    const std::lock_guard lock(mutex_);
    if (!aborted_.empty()) return aborted_;
    Peer& peer = peers_[static_cast<std::size_t>(hello.rank)];
    if (peer.connection || peer.way == Way::Comes) return "there is a connection with that rank";
    if (peer.way == Way::Calls && hello.rank < rank()) return kCrossing;
    peer.way = Way::Comes;
    return "";
  }

  void add(int rank, Socket socket) {
    auto connection = std::make_shared<Connection>(std::move(socket), options_.clock);
    const std::lock_guard lock(mutex_);
    connection->watch(epoll_.fd, static_cast<std::uint32_t>(rank));
    if (!aborted_.empty()) connection->abort(aborted_);
    peers_[static_cast<std::size_t>(rank)].connection = std::move(connection);
    options_.clock.notify_all(changed_);
  }

  /// Returns the connection over which `transfer` goes, and makes it if there is none.
  std::shared_ptr<Connection> connection_for(const Transfer& transfer) {
    const int number = transfer.peer.value;
    const TimePoint start = options_.clock.now(), deadline = start + options_.deadline;
    const auto fail = [&](const std::string& what, const std::string& hint) {
      throw PeerError(wait_message(rank(), transfer, options_.clock, start, what), hint);
    };
    std::unique_lock lock(mutex_);
    Peer& peer = peers_.at(static_cast<std::size_t>(number));
    if (!peer.connection && peer.way == Way::None && aborted_.empty()) {
      peer.way = Way::Calls;
      lock.unlock();
      try {
        add(number, call(number));
        lock.lock();
      } catch (const Error& error) {
        lock.lock();
        const std::string_view why = error.what();
        const auto says = [&](const char* words) { return why.find(words) != std::string_view::npos; };
        // The peer's connection comes, or came meanwhile: this rank only waits for it.
        if (!says(kCrossing) && peer.way != Way::Comes) {
          peer.way = Way::None;
          options_.clock.notify_all(changed_);
          if (!aborted_.empty()) fail(aborted_, "");
          if (error.code() == ExitCode::Usage && !says(kAborted)) throw;
          fail(std::string(why), error.hint());
        }
      }
    }
    const bool in_time = options_.clock.wait_until(lock, changed_, deadline, [&] {
      return peer.connection || !aborted_.empty() || peer.way == Way::None;
    });
    if (peer.connection) return peer.connection;
    if (!aborted_.empty()) fail(aborted_, "");
    fail(in_time ? "the connection failed" : "no connection came", kLateHint);
    return nullptr;
  }

  Socket call(int number) {
    const std::string& at = addresses_.of_rank[static_cast<std::size_t>(number)];
    const std::size_t colon = at.rfind(':');
    const auto port = number_of<int>(at.substr(colon + 1));
    if (colon == std::string::npos || !port)
      throw PeerError("rank " + std::to_string(number) + " says that it listens on '" + at + "'");
    return connect_authenticated({.address = at.substr(0, colon),
                                  .port = *port,
                                  .rank = rank(),
                                  .size = size(),
                                  .job = purpose(number),
                                  .token = addresses_.secret,
                                  .tls = tls_.get(),
                                  .what = "rank " + std::to_string(number),
                                  .listens_already = true,
                                  .stop = stop_.get_token(),
                                  .deadline = options_.deadline,
                                  .clock = options_.clock});
  }

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
        const std::shared_ptr<Connection> connection = connection_with(index);
        connection->advance(what);
        if (connection->has_more())
          more.insert(index);
        else
          more.erase(index);
      }
    }
  }

  std::shared_ptr<Connection> connection_with(std::uint32_t rank) const {
    const std::lock_guard lock(mutex_);
    return peers_[rank].connection;
  }

  CommunicatorOptions options_;
  Descriptor epoll_, wake_;
  Addresses addresses_;
  std::unique_ptr<TlsSecret> tls_;  // outlives the connections
  std::stop_source stop_;           // of calls
  mutable std::mutex mutex_;        // guards what follows
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // by rank
  std::string aborted_;
  std::jthread thread_;                              // joined before what it uses goes
  std::unique_ptr<AuthenticatedListener> listener_;  // last: ends first
};

}  // namespace

std::shared_ptr<Channel> make_tcp_channel(const CommunicatorOptions& options, const std::vector<int>& hosts,
                                          Store& store) {
  return std::make_shared<TcpChannel>(options, hosts, store);
}

}  // namespace millrace
