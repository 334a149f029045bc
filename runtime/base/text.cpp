#include "runtime/base/text.h"

#include <algorithm>
#include <charconv>

namespace millrace {

void append_number(std::string& to, double value) {
  char text[32];  // the longest number needs 24
  to.append(text, std::to_chars(text, text + sizeof text, value).ptr);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::vector<std::string> words_of(std::string_view text, char separator) {
  std::vector<std::string> words = split(text, separator);
  std::erase(words, "");
  return words;
}

std::size_t utf8_length(std::string_view s, std::size_t i) {
  const auto byte = [&](std::size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
  const auto tail = [&](std::size_t k) { return (byte(k) & 0xC0) == 0x80; };
  const unsigned b = byte(i);
  if (b < 0x80) return 1;
  if (b >= 0xC2 && b <= 0xDF && tail(i + 1)) return 2;
  if (b >= 0xE0 && b <= 0xEF && tail(i + 1) && tail(i + 2)) {
    const unsigned c = (b & 0xF) << 12 | (byte(i + 1) & 0x3F) << 6 | (byte(i + 2) & 0x3F);
    return c >= 0x800 && (c < 0xD800 || c > 0xDFFF) ? 3 : 0;
  }
  if (b >= 0xF0 && b <= 0xF4 && tail(i + 1) && tail(i + 2) && tail(i + 3)) {
    const unsigned c =
        (b & 7) << 18 | (byte(i + 1) & 0x3F) << 12 | (byte(i + 2) & 0x3F) << 6 | (byte(i + 3) & 0x3F);
    return c >= 0x10000 && c <= 0x10FFFF ? 4 : 0;
  }
  return 0;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text, i);
    const bool control = byte < 0x20 || byte == 0x7f ||
                         (byte == 0xc2 && length == 2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (length == 0 || control) {
      for (std::size_t k = 0; k < (length == 0 ? 1 : length); ++k)
        result += printed("\\x%02x", unsigned{static_cast<unsigned char>(text[i + k])});
      i += length == 0 ? 1 : length;
    } else {
      result += text.substr(i, length);
      i += length;
    }
  }
  return result;
}

std::string last_line(std::string_view text) {
  std::string last;
  for (const std::string& line : split(text, '\n')) {
    if (line.find_first_not_of(" \t\r-=*") != std::string::npos) last = line;
  }
  last.erase(last.find_last_not_of(" \t\r") + 1);
  return escaped(last);
}

}  // namespace millrace
