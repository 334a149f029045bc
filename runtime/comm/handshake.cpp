#include "runtime/comm/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr std::size_t kProofBytes = 32;

std::string hmac(const std::string& token, const std::string& text) {
  unsigned char result[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  // An empty key must still be a pointer.
  if (!::HMAC(EVP_sha256(), token.c_str(), static_cast<int>(token.size()),
              reinterpret_cast<const unsigned char*>(text.data()), text.size(), result, &size))
    throw InternalError("HMAC-SHA256 failed");
  return {reinterpret_cast<char*>(result), size};
}

/// Every part with its length in front: no two lists of parts give the same bytes.
std::string joined(const std::vector<std::string>& parts) {
  std::string result;
  for (const std::string& part : parts) (result += std::to_string(part.size()) += ':') += part;
  return result;
}

std::optional<std::vector<std::string>> split(const std::string& bytes) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < bytes.size();) {
    std::size_t length = 0;
    const std::size_t first = at;
    for (; at < bytes.size() && at < first + 4 && bytes[at] >= '0' && bytes[at] <= '9'; ++at)
      length = length * 10 + static_cast<std::size_t>(bytes[at] - '0');
    if (at == first || at >= bytes.size() || bytes[at] != ':' || bytes.size() - at - 1 < length)
      return std::nullopt;
    parts.push_back(bytes.substr(at + 1, length));
    at += 1 + length;
  }
  return parts;
}

std::optional<int> number(const std::string& text) {
  if (text.empty() || text.size() > 7 || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoi(text);
}

std::string transcript(const char* who, const std::string& challenge, const Hello& hello) {
  return joined(
      {who, challenge, hello.nonce, std::to_string(hello.rank), std::to_string(hello.size), hello.job});
}

}  // namespace

std::string to_bytes(const Hello& hello) {
  return joined(
      {std::to_string(hello.rank), std::to_string(hello.size), hello.job, hello.nonce, hello.proof});
}

std::optional<Hello> parse_hello(const std::string& bytes) {
  const auto parts = split(bytes);
  if (!parts || parts->size() != 5) return std::nullopt;
  const auto rank = number((*parts)[0]), size = number((*parts)[1]);
  if (!rank || !size || *rank >= *size || (*parts)[3].size() != kNonceBytes) return std::nullopt;
  return Hello{*rank, *size, printable((*parts)[2]), (*parts)[3], (*parts)[4]};
}

std::string client_proof(const std::string& token, const std::string& challenge, const Hello& hello) {
  return hmac(token, transcript("rank", challenge, hello));
}
std::string server_proof(const std::string& token, const std::string& challenge, const Hello& hello) {
  return hmac(token, transcript("server", challenge, hello));
}

bool is_proof(const std::string& given, const std::string& expected) {
  return given.size() == kProofBytes && expected.size() == kProofBytes &&
         ::CRYPTO_memcmp(given.data(), expected.data(), kProofBytes) == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t at = 0; at < count;) {
    const ssize_t n = ::getrandom(bytes.data() + at, count - at, 0);
    if (n < 0 && errno != EINTR) throw InternalError(std::string("getrandom: ") + std::strerror(errno));
    if (n > 0) at += static_cast<std::size_t>(n);
  }
  return bytes;
}

std::string random_token() {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (const char c : random_bytes(16)) {
    const auto byte = static_cast<unsigned char>(c);
    (text += digits[byte >> 4]) += digits[byte & 15];
  }
  return text;
}

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace millrace
