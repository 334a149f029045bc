// Provenance: a short stable hash of a text.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// 64-bit FNV-1a as 16 hex digits.
std::string fingerprint_of(std::string_view text);

}  // namespace millrace
