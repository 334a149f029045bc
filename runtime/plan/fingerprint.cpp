#include "runtime/plan/fingerprint.h"

#include <cstdint>
#include <cstdio>

#include "runtime/base/text.h"

namespace millrace {

std::string fingerprint_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return printed("%016llx", static_cast<unsigned long long>(hash));
}

}  // namespace millrace
