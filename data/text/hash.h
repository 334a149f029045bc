// Hashes by XXH3. The functions of libxxhash are compiled in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

std::uint64_t xxh3_64(std::string_view bytes);

/// An XXH3-128 hash, such as a vocabulary's. Messages show it as 32 hexadecimal digits.
struct Fingerprint {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Fingerprint&) const = default;
  std::string hex() const;
};
Fingerprint xxh3_128(std::string_view bytes);

}  // namespace millrace
