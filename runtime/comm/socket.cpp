#include "runtime/comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

constexpr const char* kIdentity = "millrace";

// OpenSSL's own BIO for sockets raises SIGPIPE when the peer is gone; this one does not.
int bio_write(BIO* bio, const char* bytes, int count) {
  const ssize_t n = ::send(static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))), bytes,
                           static_cast<std::size_t>(count), MSG_NOSIGNAL);
  BIO_clear_retry_flags(bio);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}
int bio_read(BIO* bio, char* bytes, int count) {
  const ssize_t n = ::recv(static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio))), bytes,
                           static_cast<std::size_t>(count), 0);
  BIO_clear_retry_flags(bio);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}
long bio_control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO_METHOD* socket_methods() {
  static BIO_METHOD* const methods = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "millrace socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return methods;
}

using Key = std::array<unsigned char, 32>;

/// OpenSSL's callbacks find the key of their context here.
int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}
unsigned give_key(SSL* tls, unsigned char* to, unsigned room) {
  const auto* key = static_cast<const Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(tls), key_index()));
  if (!key || room < key->size()) return 0;
  std::memcpy(to, key->data(), key->size());
  return static_cast<unsigned>(key->size());
}
unsigned client_key(SSL* tls, const char*, char* identity, unsigned most, unsigned char* to, unsigned room) {
  if (most < std::strlen(kIdentity) + 1) return 0;
  std::strcpy(identity, kIdentity);
  return give_key(tls, to, room);
}
unsigned server_key(SSL* tls, const char* identity, unsigned char* to, unsigned room) {
  return identity && std::strcmp(identity, kIdentity) == 0 ? give_key(tls, to, room) : 0;
}

}  // namespace

struct TlsSecret::State {
  Key key{};
  SSL_CTX* client = nullptr;
  SSL_CTX* server = nullptr;
  ~State() {
    SSL_CTX_free(client);
    SSL_CTX_free(server);
  }
};

TlsSecret::TlsSecret(const std::string& secret) : state_(std::make_unique<State>()) {
  unsigned size = 0;
  const std::string_view purpose = "millrace TLS key";
  if (!::HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
              reinterpret_cast<const unsigned char*>(purpose.data()), purpose.size(), state_->key.data(),
              &size))
    throw InternalError("HMAC-SHA256 failed");
  state_->client = SSL_CTX_new(TLS_client_method());
  state_->server = SSL_CTX_new(TLS_server_method());
  for (SSL_CTX* context : {state_->client, state_->server}) {
    // A key given by these callbacks goes with SHA-256 suites only.
    if (!context || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1 ||
        SSL_CTX_set_ex_data(context, key_index(), &state_->key) != 1)
      throw InternalError("OpenSSL offers no TLS 1.3");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  }
  SSL_CTX_set_psk_client_callback(state_->client, client_key);
  SSL_CTX_set_psk_server_callback(state_->server, server_key);
}
TlsSecret::~TlsSecret() = default;

struct Socket::Tls {
  SSL* ssl = nullptr;
};
void Socket::TlsDeleter::operator()(Tls* tls) const {
  SSL_free(tls->ssl);
  delete tls;
}

Socket::Socket(Clock& clock, int fd, std::stop_token stop) : clock_(&clock), fd_(fd), stop_(std::move(stop)) {
  if (fd_ >= 0) ::fcntl(fd_, F_SETFL, O_NONBLOCK);
}
Socket::Socket(Socket&& other) noexcept
    : clock_(other.clock_),
      fd_(std::exchange(other.fd_, -1)),
      stop_(std::move(other.stop_)),
      wanted_(other.wanted_),
      tls_(std::move(other.tls_)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(clock_, other.clock_);
  std::swap(fd_, other.fd_);
  std::swap(stop_, other.stop_);
  std::swap(wanted_, other.wanted_);
  std::swap(tls_, other.tls_);
  return *this;
}
Socket::~Socket() {
  tls_.reset();
  if (fd_ >= 0) ::close(fd_);
}

void Socket::shut() const {
  ::shutdown(fd_, SHUT_RDWR);
}
void Socket::finish_sending() const {
  ::shutdown(fd_, SHUT_WR);
}
void Socket::send_at_once() const {
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Socket::encrypt(const TlsSecret& secret, bool as_server) {
  SSL* ssl = SSL_new(as_server ? secret.state_->server : secret.state_->client);
  BIO* bio = BIO_new(socket_methods());
  if (!ssl || !bio) throw InternalError("OpenSSL has no memory for a connection");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd_)));
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  as_server ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
  tls_.reset(new Tls{ssl});
}
bool Socket::has_decrypted() const {
  return tls_ && SSL_pending(tls_->ssl) > 0;
}

/// The meaning of what SSL_read or SSL_write returned.
ssize_t Socket::after_tls(int result) {
  if (result > 0) return result;
  const int error = SSL_get_error(tls_->ssl, result);
  if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return -1;
  wanted_ = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
  return 0;
}

ssize_t Socket::read_some(char* bytes, std::size_t count) {
  constexpr std::size_t kMost = 1 << 30;
  if (tls_) {
    ERR_clear_error();
    return after_tls(SSL_read(tls_->ssl, bytes, static_cast<int>(std::min(count, kMost))));
  }
  ssize_t n;
  do n = ::recv(fd_, bytes, std::min(count, kMost), 0);
  while (n < 0 && errno == EINTR);
  return n > 0 ? n : n < 0 && errno == EAGAIN ? 0 : -1;
}

ssize_t Socket::write_some(std::string_view bytes) {
  constexpr std::size_t kMost = 1 << 30;
  if (tls_) {
    ERR_clear_error();
    return after_tls(SSL_write(tls_->ssl, bytes.data(), static_cast<int>(std::min(bytes.size(), kMost))));
  }
  ssize_t n;
  do n = ::send(fd_, bytes.data(), std::min(bytes.size(), kMost), MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  return n > 0 ? n : n < 0 && errno == EAGAIN ? 0 : -1;
}

bool Socket::await(short events, TimePoint deadline) const {
  const std::int64_t longest = stop_.stop_possible() ? 100 : 1 << 30;  // ms until it looks whether to stop
  while (!stop_.stop_requested()) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - clock_->now()).count();
    pollfd state{fd_, events, 0};
    const int n = ::poll(&state, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, longest)));
    if (n > 0) return true;
    if (n == 0 ? left <= longest : errno != EINTR) return false;
  }
  return false;
}

bool Socket::send(std::string_view bytes, TimePoint deadline) {
  while (!bytes.empty()) {
    const ssize_t n = write_some(bytes);
    if (n < 0 || (n == 0 && !await(wanted(POLLOUT), deadline))) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool Socket::receive(char* bytes, std::size_t count, TimePoint deadline) {
  while (count) {
    const ssize_t n = read_some(bytes, count);
    if (n < 0 || (n == 0 && !await(wanted(POLLIN), deadline))) return false;
    bytes += n;
    count -= static_cast<std::size_t>(n);
  }
  return true;
}

bool Socket::receive_number(std::uint32_t& number, TimePoint deadline) {
  if (!receive(reinterpret_cast<char*>(&number), sizeof number, deadline)) return false;
  number = ntohl(number);
  return true;
}

bool Socket::receive_text(std::string& text, std::uint32_t limit, TimePoint deadline) {
  std::uint32_t length = 0;
  if (!receive_number(length, deadline) || length > limit) return false;
  text.resize(length);
  return receive(text.data(), length, deadline);
}

std::string number_bytes(std::uint32_t number) {
  number = htonl(number);
  return {reinterpret_cast<const char*>(&number), sizeof number};
}
std::string text_bytes(const std::string& text) {
  return number_bytes(static_cast<std::uint32_t>(text.size())) + text;
}

int connect_once(Socket& socket, const SocketAddress& address, TimePoint deadline, Clock& clock) {
  Socket made(clock, ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0), socket.stop());
  if (made.fd() < 0) return errno;
  if (::connect(made.fd(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) return errno;
    if (!made.await(POLLOUT, deadline)) return ETIMEDOUT;
    int error = 0;
    socklen_t size = sizeof error;
    if (::getsockopt(made.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
    if (error != 0) return error;
  }
  made.send_at_once();
  socket = std::move(made);
  return 0;
}

Socket listen_on(const SocketAddress& address, Clock& clock) {
  Socket listener(clock, ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(listener.fd(), address.get(), address.size) != 0 || ::listen(listener.fd(), 4096) != 0) {
    const std::string reason = std::strerror(errno);
    throw ConfigError("cannot listen on " + address.text_with_port() + ": " + reason,
                      "another job may hold the port: choose another MASTER_PORT");
  }
  return listener;
}

int port_of(const Socket& socket) {
  SocketAddress address;
  address.size = sizeof address.bytes;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0) return 0;
  return address.port();
}

}  // namespace millrace
