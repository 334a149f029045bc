// Addresses of hosts, IPv4 and IPv6: what a name is, and at which address others reach this host.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

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

/// Resolves a name or a literal such as "[::1]". IPv4 wins where the name has both. Throws ConfigError, which
/// calls the name MASTER_ADDR.
SocketAddress resolve(const std::string& host, int port);

/// Returns the wildcard address (every address of this host) of `like`'s family, with `like`'s port.
SocketAddress any_address(const SocketAddress& like);

/// This host's address on its way to `to`; nothing: there is no way.
std::optional<SocketAddress> address_towards(const SocketAddress& to);

/// An address of this host that is not loopback: the one that leads out, else the first of its interfaces.
std::optional<SocketAddress> outward_address();

/// "host:29500", "[::1]:29500".
std::string host_and_port(const std::string& host, int port);

}  // namespace millrace
