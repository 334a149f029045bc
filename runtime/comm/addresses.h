// Addresses of hosts, IPv4 and IPv6: what a name is, and at which address others reach this host.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

namespace millrace {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  int family() const { return bytes.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  bool is_loopback() const;
  int port() const;
  std::string text() const;            ///< "10.0.0.7", "fe80::1%eth0"; without port
  std::string text_with_port() const;  ///< "10.0.0.7:29500", "[fe80::1%eth0]:29500"
};

/// A well-formed name that no resolver knows now. Names of pods appear after their pods have started.
class UnknownName final : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// Resolves a name or a literal such as "[::1]". IPv4 wins where the name has both. Throws ConfigError, which
/// calls the name MASTER_ADDR, and UnknownName for a name.
SocketAddress resolve(const std::string& host, int port);

/// Resolves like resolve(), and tries an unknown name again until `deadline`, when it throws PeerError. Logs
/// one warning when it starts to wait. One lookup may outlast the deadline by the system resolver's own
/// limit.
SocketAddress await_address(const std::string& host, int port, TimePoint deadline, Clock& clock,
                            const std::function<SocketAddress(const std::string&, int)>& look_up = resolve);

/// Returns the wildcard address (every address of this host) of `like`'s family, with `like`'s port.
SocketAddress any_address(const SocketAddress& like);

/// This host's address on its way to `to`; nothing: there is no way.
std::optional<SocketAddress> address_towards(const SocketAddress& to);

/// An address of this host that is not loopback: the one that leads out, else the first of its interfaces.
std::optional<SocketAddress> outward_address();

/// "host:29500", "[::1]:29500".
std::string host_and_port(const std::string& host, int port);

}  // namespace millrace
