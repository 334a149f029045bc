// How a rank and the server of its job's store show each other that they belong together: each proves with an
// HMAC of the other's challenge that it knows the job's token. The token itself never travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace millrace {

inline constexpr const char* kGreeting = "millrace-store-2\n";
inline constexpr std::size_t kNonceBytes = 16;
inline constexpr std::size_t kMostJobBytes = 256;
inline constexpr std::uint32_t kMostHelloBytes = 1024;

/// The facts that a rank sends about itself.
struct Hello {
  int rank = 0;
  int size = 1;
  std::string job;
  std::string nonce;  ///< the server's challenge, kNonceBytes
  std::string proof;  ///< client_proof
};

std::string to_bytes(const Hello& hello);
/// Reads a Hello; empty if the bytes are none, or one of another version.
std::optional<Hello> parse_hello(const std::string& bytes);

/// HMAC-SHA256 over both challenges and what the rank says of itself.
std::string client_proof(const std::string& token, const std::string& challenge, const Hello& hello);
std::string server_proof(const std::string& token, const std::string& challenge, const Hello& hello);
/// Compares two proofs in constant time.
bool is_proof(const std::string& given, const std::string& expected);

/// Returns random bytes from the kernel.
std::string random_bytes(std::size_t count);
/// Returns a new token for a job: 32 hexadecimal digits.
std::string random_token();
/// Returns another process's text without the characters on which a terminal would act.
std::string printable(std::string text);

}  // namespace millrace
