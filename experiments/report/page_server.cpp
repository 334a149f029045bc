#include "experiments/report/page_server.h"

#if __has_include(<boost/beast/http.hpp>)

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <memory>
#include <string_view>
#include <utility>

namespace millrace {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr int kMostVisits = 32;
constexpr std::uint32_t kLongestHead = 16 << 10;  // bytes of a request, which has no body

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/// Returns the path of a request's target: without its query, and with "%20" as a space.
std::string path_of(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const int high = target[i] == '%' && i + 2 < target.size() ? digit_of(target[i + 1]) : -1;
    const int low = high >= 0 ? digit_of(target[i + 2]) : -1;
    path += low >= 0 ? static_cast<char>(high * 16 + low) : target[i];
    if (low >= 0) i += 2;
  }
  return path;
}

/// Returns whether the Host of a request is this machine. A tunnel (ssh -L) may have another port.
bool is_here(std::string_view host) {
  const std::string_view name = host.substr(0, host.rfind(':'));
  return host.empty() || name == "127.0.0.1" || name == "localhost";
}

std::string_view view_of(beast::string_view text) {
  return {text.data(), text.size()};
}

struct Server {
  const PageServerOptions& options;
  const PageAt& page;
  int visits = 0;
};

/// One connection, from the request to the end of the answer. It lives as long as one of its handlers.
class Visit : public std::enable_shared_from_this<Visit> {
 public:
  Visit(tcp::socket socket, Server& server) : server_(server), stream_(std::move(socket)) {
    ++server_.visits;
    parser_.header_limit(kLongestHead);
  }
  ~Visit() { --server_.visits; }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  void begin() {
    stream_.expires_after(server_.options.deadline);
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](beast::error_code error, std::size_t) {
                       if (!error) self->answer();
                     });
  }

 private:
  void answer() {
    const auto& request = parser_.get();
    const bool asks = request.method() == http::verb::get || request.method() == http::verb::head;
    std::optional<std::string> page;
    if (!asks) {
      response_.result(http::status::method_not_allowed);
      response_.set(http::field::allow, "GET, HEAD");
    } else if (!is_here(view_of(request[http::field::host]))) {
      response_.result(http::status::misdirected_request);
    } else if (page = server_.page(path_of(view_of(request.target()))); !page) {
      response_.result(http::status::not_found);
    }
    response_.set(http::field::content_type, page ? "text/html; charset=utf-8" : "text/plain; charset=utf-8");
    response_.set(http::field::cache_control, "no-store");
    response_.set(http::field::x_frame_options, "DENY");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.keep_alive(false);
    const std::string body = page ? *std::move(page) : std::string(view_of(response_.reason())) + "\n";
    response_.content_length(body.size());
    if (request.method() != http::verb::head) response_.body() = body;
    stream_.expires_after(server_.options.deadline);
    serializer_.emplace(response_);
    http::async_write(stream_, *serializer_, [self = shared_from_this()](beast::error_code, std::size_t) {
      beast::error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    });
  }

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kLongestHead};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
};

/// Takes the next connection, again and again. `broken` is set where no more can be taken.
void accept_next(tcp::acceptor& acceptor, Server& server, beast::error_code& broken) {
  acceptor.async_accept([&](beast::error_code error, tcp::socket socket) {
    if (error && error != asio::error::connection_aborted) {
      broken = error;
      return;  // nothing is left to wait for: the context ends
    }
    if (!error && server.visits < kMostVisits) std::make_shared<Visit>(std::move(socket), server)->begin();
    accept_next(acceptor, server, broken);
  });
}

}  // namespace

Status serve_pages(const PageServerOptions& options, const PageAt& page) {
  Server server{options, page};  // outlives the context, whose end destroys what it still waits for
  beast::error_code error;
  asio::io_context context(1);
  tcp::acceptor acceptor(context);
  const tcp::endpoint place(asio::ip::address_v4::loopback(), options.port);
  acceptor.open(place.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(place, error);
  if (!error) acceptor.listen(kMostVisits, error);
  if (error)
    return Problem{"127.0.0.1:" + std::to_string(options.port), "cannot be listened at: " + error.message(),
                   "give another --port, 0 for a free one"};
  accept_next(acceptor, server, error);
  const std::stop_callback stop(options.stop, [&] { context.stop(); });
  if (options.listening) options.listening(acceptor.local_endpoint().port());
  context.run();
  if (error) return Problem{"127.0.0.1", "no more connections: " + error.message(), "start it again"};
  return Ok{};
}

}  // namespace millrace

#else

namespace millrace {

Status serve_pages(const PageServerOptions&, const PageAt&) {
  return Problem{"--serve", "this build has no HTTP server, because Boost.Beast was not here",
                 "scripts/bootstrap installs it, then build again; or use --follow, which writes the page"};
}

}  // namespace millrace

#endif
