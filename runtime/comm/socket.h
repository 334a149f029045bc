// A TCP connection whose every transfer has a deadline, in clear or under TLS.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/comm/addresses.h"

namespace millrace {

/// TLS 1.3 whose two ends know one secret (a pre-shared key, RFC 8446, 2.2). No certificates are needed: who
/// does not know the secret cannot complete the handshake. Immutable, so one may serve many sockets.
class TlsSecret {
 public:
  /// Throws InternalError if OpenSSL cannot do it.
  explicit TlsSecret(const std::string& secret);
  ~TlsSecret();
  TlsSecret(const TlsSecret&) = delete;
  TlsSecret& operator=(const TlsSecret&) = delete;

 private:
  friend class Socket;
  struct State;
  std::unique_ptr<State> state_;
};

/// One socket. It never blocks by itself: every transfer has a deadline, or says that nothing goes now.
/// Not thread-safe, but in clear one thread may read while another writes.
class Socket {
 public:
  /// Waits end as at their deadline once `stop` is requested.
  explicit Socket(Clock& clock, int fd = -1, std::stop_token stop = {});
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  int fd() const { return fd_; }
  const std::stop_token& stop() const { return stop_; }
  TimePoint after(std::chrono::milliseconds time) const { return clock_->now() + time; }
  void shut() const;
  /// Tells the other end that nothing more comes from here. What it sends is still read.
  void finish_sending() const;
  /// Sends small messages at once (TCP_NODELAY).
  void send_at_once() const;

  /// From now on all bytes go through TLS. The handshake runs with the first transfers. `secret` must outlive
  /// the socket.
  void encrypt(const TlsSecret& secret, bool as_server);
  bool is_encrypted() const { return tls_ != nullptr; }
  /// Returns whether bytes have been decrypted that nobody has read yet: no poll() tells of them.
  bool has_decrypted() const;

  /// Returns how many bytes came or went; 0: none now (see wanted()); -1: the connection has ended. Without
  /// TLS one thread may read while another writes.
  ssize_t read_some(char* bytes, std::size_t count);
  ssize_t write_some(std::string_view bytes);
  /// Returns what to poll() for after a transfer of 0 bytes, in whose direction `plain` is: TLS may want the
  /// other one of POLLIN and POLLOUT.
  short wanted(short plain) const { return tls_ ? wanted_ : plain; }

  /// Waits until one of `events`, an error or the deadline. False: the deadline.
  bool await(short events, TimePoint deadline) const;
  bool send(std::string_view bytes, TimePoint deadline);
  bool receive(char* bytes, std::size_t count, TimePoint deadline);
  bool receive_number(std::uint32_t& number, TimePoint deadline);
  /// False also if the text is longer than `limit`: it is none of ours.
  bool receive_text(std::string& text, std::uint32_t limit, TimePoint deadline);

 private:
  struct Tls;
  struct TlsDeleter {
    void operator()(Tls* tls) const;
  };
  ssize_t after_tls(int result);

  Clock* clock_;
  int fd_;
  std::stop_token stop_;
  short wanted_ = 0;  ///< by TLS
  std::unique_ptr<Tls, TlsDeleter> tls_;
};

/// Numbers and texts as Socket::receive_number() and receive_text() read them: 32 bits in network order, and
/// a length before the text.
std::string number_bytes(std::uint32_t number);
std::string text_bytes(const std::string& text);

/// Connects once. Returns 0, or the error of connect(); ETIMEDOUT at the deadline.
int connect_once(Socket& socket, const SocketAddress& address, TimePoint deadline, Clock& clock);

/// Returns a listening socket on `address`, at any free port if its port is 0. Throws ConfigError.
Socket listen_on(const SocketAddress& address, Clock& clock);

/// Returns the port at which a socket listens.
int port_of(const Socket& socket);

}  // namespace millrace
