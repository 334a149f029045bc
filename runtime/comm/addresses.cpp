#include "runtime/comm/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>

#include "runtime/base/log.h"

namespace millrace {
namespace {

SocketAddress copy_of(const sockaddr* address, socklen_t size) {
  SocketAddress copy{.size = size};
  std::memcpy(&copy.bytes, address, size);
  return copy;
}

sockaddr_in& v4(SocketAddress& address) {
  return reinterpret_cast<sockaddr_in&>(address.bytes);
}
sockaddr_in6& v6(SocketAddress& address) {
  return reinterpret_cast<sockaddr_in6&>(address.bytes);
}

std::string without_brackets(const std::string& host) {
  const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return in_brackets ? host.substr(1, host.size() - 2) : host;
}

constexpr std::chrono::milliseconds kLookUpPause{500};

/// Tells whether the text may become known: it has the characters of a name, and is no address.
bool is_host_name(const std::string& host) {
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  return std::ranges::any_of(host, is_letter) && std::ranges::all_of(host, [](unsigned char c) {
           return std::isalnum(c) || c == '-' || c == '.' || c == '_';
         });
}

}  // namespace

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(bytes).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

std::string SocketAddress::text() const {
  char name[NI_MAXHOST] = {};
  ::getnameinfo(get(), size, name, sizeof name, nullptr, 0, NI_NUMERICHOST);
  return name;
}

int SocketAddress::port() const {
  return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in&>(bytes).sin_port
                                   : reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port);
}

std::string SocketAddress::text_with_port() const {
  return host_and_port(text(), port());
}

SocketAddress resolve(const std::string& host, int port) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(without_brackets(host).c_str(), nullptr, &hints, &found); error != 0) {
    const std::string text = "MASTER_ADDR '" + host + "' cannot be resolved: " + ::gai_strerror(error);
    const char* hint = "give a host name, an IPv4 or an IPv6 address; the port goes into MASTER_PORT";
    if (is_host_name(host)) throw UnknownName(text, hint);
    throw ConfigError(text, hint);
  }
  const addrinfo* chosen = found;
  for (const addrinfo* one = found; one && chosen->ai_family != AF_INET; one = one->ai_next)
    if (one->ai_family == AF_INET) chosen = one;
  SocketAddress address = copy_of(chosen->ai_addr, chosen->ai_addrlen);
  ::freeaddrinfo(found);
  (address.family() == AF_INET ? v4(address).sin_port : v6(address).sin6_port) =
      htons(static_cast<std::uint16_t>(port));
  return address;
}

SocketAddress await_address(const std::string& host, int port, TimePoint deadline, Clock& clock,
                            const std::function<SocketAddress(const std::string&, int)>& look_up) {
  for (bool is_first = true;; is_first = false) {
    try {
      return look_up(host, port);
    } catch (const UnknownName& unknown) {
      if (clock.now() >= deadline)
        throw PeerError(unknown.what() + std::string(" until --timeout"), unknown.hint());
      if (is_first)
        log_warning(std::string(unknown.what()) + ": tries again for " +
                    std::to_string(std::chrono::ceil<std::chrono::seconds>(deadline - clock.now()).count()) +
                    " s (--timeout)");
    }
    clock.sleep_until(std::min(clock.now() + kLookUpPause, deadline));
  }
}

SocketAddress any_address(const SocketAddress& like) {
  SocketAddress address = like;
  if (address.family() == AF_INET)
    v4(address).sin_addr.s_addr = htonl(INADDR_ANY);
  else
    v6(address).sin6_addr = in6addr_any;
  return address;
}

std::optional<SocketAddress> address_towards(const SocketAddress& to) {
  const int fd = ::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  SocketAddress own{.size = sizeof own.bytes};
  // Connecting a datagram socket sends nothing: it asks the routing table.
  const bool routed = ::connect(fd, to.get(), to.size) == 0 &&
                      ::getsockname(fd, reinterpret_cast<sockaddr*>(&own.bytes), &own.size) == 0;
  ::close(fd);
  return routed ? std::optional(own) : std::nullopt;
}

std::optional<SocketAddress> outward_address() {
  // Addresses of documentation (RFC 5737, RFC 3849): whatever way there is leads out.
  for (const char* outside : {"192.0.2.1", "2001:db8::1"}) {
    const auto own = address_towards(resolve(outside, 9));
    if (own && !own->is_loopback()) return own;
  }
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return std::nullopt;
  std::optional<SocketAddress> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = all; one && !found; one = one->ifa_next) {
      if (!one->ifa_addr || one->ifa_addr->sa_family != family || !(one->ifa_flags & IFF_UP)) continue;
      const SocketAddress own =
          copy_of(one->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (!own.is_loopback()) found = own;
    }
  }
  ::freeifaddrs(all);
  return found;
}

std::string host_and_port(const std::string& host, int port) {
  const std::string name = without_brackets(host);
  const bool is_v6 = name.find(':') != std::string::npos;
  return (is_v6 ? "[" + name + "]" : name) + ":" + std::to_string(port);
}

}  // namespace millrace
