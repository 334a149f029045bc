#include "data/text/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/text.h"

namespace millrace {

std::uint64_t xxh3_64(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

Fingerprint xxh3_128(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

std::string Fingerprint::hex() const {
  return printed("%016llx%016llx", static_cast<unsigned long long>(high),
                 static_cast<unsigned long long>(low));
}

}  // namespace millrace
