// Connections between processes of one job. Each begins with both ends proving that they know the job's token
// (handshake.h); a process that does not know it gets nothing and holds up nobody.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
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

/// The listener knows the job's token, and refuses this rank.
class RefusedError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

struct ListenerOptions {
  std::string name;                                ///< of the address, for messages
  int size = 1;                                    ///< ranks of the job
  int expected = std::numeric_limits<int>::max();  ///< connections after which nobody listens any more
  std::string token{};
  /// Connections are encrypted with this secret; null: in clear. It must outlive the sockets.
  const TlsSecret* tls = nullptr;
  /// Returns why a rank that knows the token must not join; empty: it may.
  std::function<std::string(const Hello&)> refusal{};
  bool logs_refusals = true;  ///< those by refusal()
  /// Takes each rank that was not refused. Called by the listener's thread, one call at a time.
  std::function<void(const Hello&, Socket)> joined{};
  Clock& clock = steady_clock();
};

/// Takes connections in a thread of its own until all expected ranks have joined. All handshakes run side by
/// side.
class AuthenticatedListener {
 public:
  AuthenticatedListener(ListenerOptions options, Socket listener);
  ~AuthenticatedListener();
  AuthenticatedListener(const AuthenticatedListener&) = delete;
  AuthenticatedListener& operator=(const AuthenticatedListener&) = delete;

 private:
  void run(const std::stop_token& stop);

  ListenerOptions options_;
  Socket listener_;
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
  bool listens_already = false;    ///< who refuses the connection has ended
  std::stop_token stop{};          ///< gives up
  std::chrono::milliseconds deadline{60'000};
  Clock& clock = steady_clock();
};

/// Connects and introduces itself, again and again until the deadline if nobody listens or the listener hangs
/// up. Throws RefusedError, ConfigError if this process has no file left, and PeerError at the deadline or if
/// somebody else listens there.
Socket connect_authenticated(const Introduction& introduction);

}  // namespace millrace
