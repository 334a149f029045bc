// Substitution of fixed text.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Replaces every occurrence of `from`, left to right. Replacements are not searched again. `from` must not
/// be empty.
inline void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string result;
  std::size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = result.append(text, done);
}

}  // namespace millrace
