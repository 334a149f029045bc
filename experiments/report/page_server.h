// A small HTTP server on 127.0.0.1, for pages that are made when a browser asks for them. LibTorch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "runtime/base/result.h"

namespace millrace {

struct PageServerOptions {
  std::uint16_t port = 0;  ///< 0: a free one
  /// for a request to arrive, and then for its answer to leave; after it the connection is closed
  std::chrono::milliseconds deadline{30'000};
  std::function<void(std::uint16_t port)> listening{};  ///< is called once, when the server can be reached
  std::stop_token stop{};                               ///< ends it at once
};

/// Returns the HTML page at `path` ("/", "/a/report.html"; decoded, without a query); nothing: there is none.
/// Called by one thread, a page at a time.
using PageAt = std::function<std::optional<std::string>(const std::string& path)>;

/// Answers GET and HEAD until it is stopped. It opens no file: what `page` does not know is not there. A
/// request must name this machine as its host (127.0.0.1, localhost), so that no other site's name leads a
/// browser here. One connection is one request, at most 32 are open at a time. Problems: a port that is
/// taken; a build without Boost.Beast.
Status serve_pages(const PageServerOptions& options, const PageAt& page);

}  // namespace millrace
