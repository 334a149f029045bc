#include "runtime/comm/authenticated_socket.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/open_files.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

// How often a listener looks whether it has to end, and how long it waits when no connection can be taken.
constexpr milliseconds kPause{100};
constexpr int kTakenAtOnce = 256;

enum Answer : char { kOk = 'o', kRefused = 'r' };

/// A connection whose other end has not shown yet that it belongs to the job.
struct Stranger {
  Socket socket;
  std::string address;
  TimePoint deadline;
  std::string challenge = random_bytes(kNonceBytes);
  std::string outgoing{};  ///< what has not gone out yet
  std::string incoming{};
  short events = POLLIN;
};

enum class Progress { Waits, Ended, Joined };

/// The strangers of one listener, and the rules for them.
class Strangers {
 public:
  explicit Strangers(const ListenerOptions& options)
      : options_(options), most_(StrangerLimits::kAtOnce + static_cast<std::size_t>(options.size)) {}

  void take(Socket socket, const std::string& address) {
    if (all_.size() >= most_) drop_one();
    const TimePoint deadline = socket.after(StrangerLimits::kHandshake);
    if (options_.tls) socket.encrypt(*options_.tls, true);
    socket.send_at_once();
    Stranger& stranger = all_.emplace_back(Stranger{std::move(socket), address, deadline});
    stranger.outgoing = kGreeting + stranger.challenge;
    stranger.events = POLLIN | POLLOUT;
  }

  void descriptors(std::vector<pollfd>& to) const {
    for (const Stranger& stranger : all_) to.push_back({stranger.socket.fd(), stranger.events, 0});
  }

  /// Goes on with all handshakes. Returns how many ranks have joined. `states`: of descriptors().
  int advance(const pollfd* states, std::size_t count) {
    int joined = 0;
    std::size_t i = 0;
    const TimePoint now = options_.clock.now();
    for (auto stranger = all_.begin(); stranger != all_.end(); ++i) {
      // Those that have come since the poll() are looked at too.
      const bool ready = i >= count || states[i].revents != 0;
      Progress progress = ready ? advance(*stranger) : Progress::Waits;
      if (progress == Progress::Waits && now >= stranger->deadline) {
        warn(stranger->address, "did not show that it knows the job's token");
        progress = Progress::Ended;
      }
      joined += progress == Progress::Joined;
      stranger = progress == Progress::Waits ? std::next(stranger) : all_.erase(stranger);
    }
    return joined;
  }

 private:
  /// Room for one more: the oldest connection of the address that has the most goes.
  void drop_one() {
    std::map<std::string, int> count;
    for (const Stranger& stranger : all_) ++count[stranger.address];
    const auto most = std::ranges::max_element(count, {}, [](const auto& entry) { return entry.second; });
    warn(most->first, "has many connections that do not show that they know the job's token");
    all_.erase(std::ranges::find(all_, most->first, &Stranger::address));
  }

  void warn(const std::string& address, const std::string& what) {
    if (named_.size() >= StrangerLimits::kNamed || !named_.insert(address).second) return;
    log_warning("a connection from " + address + " to " + options_.name + " " + what +
                ": closed (said once for each address)");
  }

  static bool flush(Stranger& stranger) {
    while (!stranger.outgoing.empty()) {
      const ssize_t n = stranger.socket.write_some(stranger.outgoing);
      if (n < 0) return false;
      if (n == 0) break;
      stranger.outgoing.erase(0, static_cast<std::size_t>(n));
    }
    return true;
  }

  Progress advance(Stranger& stranger) {
    if (!flush(stranger)) return lost(stranger);
    stranger.events = stranger.outgoing.empty() ? short{POLLIN} : stranger.socket.wanted(POLLOUT);
    if (!stranger.outgoing.empty()) return Progress::Waits;
    for (;;) {
      // Not a byte more than the message: what follows belongs to whoever gets the socket.
      std::uint32_t length = 0;
      std::size_t want = sizeof length;
      if (stranger.incoming.size() >= sizeof length) {
        std::memcpy(&length, stranger.incoming.data(), sizeof length);
        length = ntohl(length);
        if (length > kMostHelloBytes) return sent_away(stranger, "does not speak this program's protocol");
        want += length;
        if (stranger.incoming.size() == want) return answer(stranger);
      }
      char bytes[kMostHelloBytes + sizeof length];
      const ssize_t n = stranger.socket.read_some(bytes, want - stranger.incoming.size());
      if (n < 0) return lost(stranger);
      if (n == 0) {
        stranger.events = stranger.socket.wanted(POLLIN);
        return Progress::Waits;
      }
      stranger.incoming.append(bytes, static_cast<std::size_t>(n));
    }
  }

  /// A rank that looks for another job here, or a probe of the port, hangs up by itself: not worth a line.
  /// Under TLS one that does not know the secret ends so too.
  Progress lost(const Stranger& stranger) {
    if (options_.tls) warn(stranger.address, "does not know the job's token");
    return Progress::Ended;
  }
  Progress sent_away(const Stranger& stranger, const std::string& why) {
    warn(stranger.address, why);
    return Progress::Ended;
  }

  Progress answer(Stranger& stranger) {
    const auto hello = parse_hello(stranger.incoming.substr(sizeof(std::uint32_t)));
    if (!hello) return sent_away(stranger, "does not speak this program's protocol");
    const bool belongs = is_proof(hello->proof, client_proof(options_.token, stranger.challenge, *hello));
    const std::string why = belongs ? options_.refusal(*hello) : "its token is another one (MILLRACE_TOKEN)";
    // The socket's buffer is empty but for the greeting: the answer has room.
    const TimePoint soon = stranger.socket.after(kPause);
    if (!why.empty()) {
      stranger.socket.send(std::string(1, kRefused) + text_bytes(why), soon);
      return belongs && !options_.logs_refusals ? Progress::Ended
                                                : sent_away(stranger, "was refused: " + why);
    }
    // Even if it is gone already: its number is taken, and who gets the socket sees its end.
    stranger.socket.send(
        std::string(1, kOk) + text_bytes(server_proof(options_.token, stranger.challenge, *hello)), soon);
    options_.joined(*hello, std::move(stranger.socket));
    return Progress::Joined;
  }

  const ListenerOptions& options_;
  std::size_t most_;
  std::list<Stranger> all_;  // oldest first
  std::set<std::string> named_;
};

}  // namespace

AuthenticatedListener::AuthenticatedListener(ListenerOptions options, Socket listener)
    : options_(std::move(options)), listener_(std::move(listener)) {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    run(stop);
    listener_ = Socket(options_.clock);  // nobody listens any more
  });
}

AuthenticatedListener::~AuthenticatedListener() = default;

void AuthenticatedListener::run(const std::stop_token& stop) {
  // A rank listens as long as it lives, so the thread sleeps until somebody comes. The end wakes it.
  const std::stop_callback wake(stop, [this] { listener_.shut(); });
  bool warned = false;
  Strangers strangers(options_);
  std::vector<pollfd> states;
  int joined = 0;
  while (!stop.stop_requested() && joined < options_.expected) {
    states.assign(1, {listener_.fd(), POLLIN, 0});
    strangers.descriptors(states);
    ::poll(states.data(), states.size(), states.size() == 1 ? -1 : static_cast<int>(kPause.count()));
    joined += strangers.advance(states.data() + 1, states.size() - 1);
    if (states[0].revents == 0) continue;
    // Ranks come by the thousand: a queue that overflows costs them seconds until they ask again.
    for (int taken = 0; taken < kTakenAtOnce; ++taken) {
      SocketAddress from;
      from.size = sizeof from.bytes;
      Socket socket(options_.clock, ::accept4(listener_.fd(), reinterpret_cast<sockaddr*>(&from.bytes),
                                              &from.size, SOCK_CLOEXEC));
      if (socket.fd() < 0) {
        // Nothing to take after all, or no descriptors: the connection stays in the queue.
        if (errno == EMFILE && !std::exchange(warned, true))
          log_warning("a connection to " + options_.name + " waits: this process may open no more files" +
                      " (ulimit -n)");
        if (taken == 0 && !stop.stop_requested()) options_.clock.sleep_until(listener_.after(kPause));
        break;
      }
      strangers.take(std::move(socket), from.text());
    }
  }
}

namespace {

constexpr milliseconds kAddressAge{1000};  // an address is looked up again after this time
constexpr milliseconds kOneTry{5000};      // connections to an address that nobody has any more end here

/// What came of one try.
enum class Try { Joined, HungUp, SomebodyElse };

Try introduce(Socket& socket, const Introduction& own, TimePoint deadline) {
  const std::string greeting = kGreeting, name = host_and_port(own.address, own.port);
  std::string challenge(greeting.size() + kNonceBytes, '\0');
  if (!socket.receive(challenge.data(), greeting.size(), deadline)) {
    // Nothing at all, or a part of something: only its end tells a listener that was in a hurry.
    return std::string_view(greeting).starts_with(challenge.c_str()) ? Try::HungUp : Try::SomebodyElse;
  }
  if (challenge.rfind(greeting, 0) != 0) return Try::SomebodyElse;
  if (!socket.receive(challenge.data() + greeting.size(), kNonceBytes, deadline)) return Try::HungUp;
  challenge.erase(0, greeting.size());
  Hello hello{.rank = own.rank, .size = own.size, .job = own.job, .nonce = random_bytes(kNonceBytes)};
  hello.proof = client_proof(own.token, challenge, hello);
  char answer = 0;
  std::string text;
  if (!socket.send(text_bytes(to_bytes(hello)), deadline) || !socket.receive(&answer, 1, deadline) ||
      !socket.receive_text(text, kMostHelloBytes, deadline))
    return Try::HungUp;
  const std::string hint =
      "give each job a MASTER_PORT of its own, and all its ranks the same MILLRACE_TOKEN";
  if (answer != kOk)
    throw RefusedError("rendezvous: " + name + " refused this rank: " + printable(text), hint);
  if (!is_proof(text, server_proof(own.token, challenge, hello)))
    throw ConfigError("rendezvous: who listens on " + name + " does not know this job's token", hint);
  return Try::Joined;
}

}  // namespace

Socket connect_authenticated(const Introduction& own) {
  const std::string name = host_and_port(own.address, own.port);
  const TimePoint deadline = own.clock.now() + own.deadline;
  SocketAddress address;
  TimePoint looked_up = TimePoint::min();
  for (auto pause = milliseconds(1);; pause = std::min(pause * 2, milliseconds(50))) {
    // A pod that was started anew has the name of the one before, at another address.
    if (own.clock.now() - kAddressAge >= looked_up) {
      address = await_address(own.address, own.port, deadline, own.clock);
      looked_up = own.clock.now();
    }
    Socket socket(own.clock, -1, own.stop);
    const int error = connect_once(socket, address, std::min(deadline, own.clock.now() + kOneTry), own.clock);
    if (error == EMFILE) throw_no_open_files("a connection with " + own.what);
    Try result = Try::HungUp;
    if (error == 0) {
      if (own.tls) socket.encrypt(*own.tls, false);
      result = introduce(socket, own, deadline);
      if (result == Try::Joined) return socket;
    }
    if (own.stop.stop_requested()) throw PeerError("the connection with " + own.what + " was given up");
    if (error == ECONNREFUSED && own.listens_already)
      throw PeerError("connection lost (" + own.what + " listens no more on " + name + ")",
                      "it has ended, or a firewall is between the hosts; its log says which");
    if (error == 0 && (result == Try::SomebodyElse || own.clock.now() >= deadline)) {
      throw PeerError("rendezvous: " + name + " does not answer as " + own.what,
                      std::string("something else may listen there, or that job's ranks are complete") +
                          (own.tls ? ", or its ranks have another token or no --encrypt" : "") +
                          ": choose another MASTER_PORT");
    }
    if (own.clock.now() >= deadline) {
      throw PeerError("rendezvous: nobody listens on " + name + " after " +
                          std::to_string(own.deadline.count()) + " ms: " + std::strerror(error),
                      "did " + own.what + " start? Are MASTER_ADDR and MASTER_PORT right?");
    }
    own.clock.sleep_until(own.clock.now() + pause);
  }
}

}  // namespace millrace
