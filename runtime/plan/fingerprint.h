// Provenance: a short stable hash of a text.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Returns the 64-bit FNV-1a hash of `text` as 16 hexadecimal digits.
std::string fingerprint_of(std::string_view text);

}  // namespace millrace
