// Connections between processes of one job. Each begins with both ends proving that they know the job's token
// (handshake.h); a process that does not know it gets nothing and holds up nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/comm/handshake.h"
#include "runtime/comm/socket.h"

namespace millrace {

/// Limits for connections that have not shown yet who they are.
struct StrangerLimits {
  static constexpr std::size_t kAtOnce = 64;  ///< beyond it and the job's ranks, the oldest of the address
                                              ///< with the most of them goes
  static constexpr std::chrono::seconds kHandshake{5};  ///< they have this long
  static constexpr std::size_t kNamed = 16;             ///< addresses of strangers in the log
};

struct ListenerOptions {
  SocketAddress address;  ///< port 0: any free one
  std::string name{};     ///< of the address, for messages
  int size = 1;           ///< ranks of the job
  int expected = 1;       ///< connections after which nobody listens any more
  std::string token{};
  /// Connections are encrypted with this secret; null: in clear. It must outlive the sockets.
  const TlsSecret* tls = nullptr;
  /// Returns why a rank that knows the token must not join; empty: it may.
  std::function<std::string(const Hello&)> refusal{};
  /// Takes a rank that has joined. Called by the listener's thread, one call at a time.
  std::function<void(const Hello&, Socket)> joined{};
  Clock& clock = steady_clock();
};

/// Takes connections in a thread of its own until all expected ranks have joined. All handshakes run side by
/// side. The constructor throws ConfigError if it cannot listen.
class AuthenticatedListener {
 public:
  explicit AuthenticatedListener(ListenerOptions options);
  ~AuthenticatedListener();  ///< ends within 0.1 s
  AuthenticatedListener(const AuthenticatedListener&) = delete;
  AuthenticatedListener& operator=(const AuthenticatedListener&) = delete;

  int port() const { return port_; }

 private:
  void run(const std::stop_token& stop, Socket listener);

  ListenerOptions options_;
  int port_ = 0;
  std::jthread thread_;  // last: ends first
};

/// A rank on its way to a listener.
struct Introduction {
  std::string address;
  int port = 0;
  int rank = 0;
  int size = 1;
  std::string job{};  ///< what it wants to join; the listener compares it
  std::string token{};
  const TlsSecret* tls = nullptr;  ///< as in ListenerOptions
  std::string what{};              ///< who should be there, for messages: "rank 0 of a job"
  std::chrono::milliseconds deadline{60'000};
  Clock& clock = steady_clock();
};

/// Connects and introduces itself, again and again until the deadline if nobody listens or the listener hangs
/// up. Throws ConfigError if this rank is refused, PeerError at the deadline or if somebody else listens
/// there.
Socket connect_authenticated(const Introduction& introduction);

}  // namespace millrace
