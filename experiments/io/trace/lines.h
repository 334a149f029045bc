// Text in lines and columns, without copies. Readers of logs count what they leave out and say why.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/numbers.h"

namespace millrace {

/// Why rows were left out, and how many.
using Dropped = std::map<std::string, std::int64_t>;

inline void add(Dropped& to, const Dropped& more) {
  for (const auto& [why, count] : more) to[why] += count;
}

/// Takes the next line off `rest` (without its end). `whole`: it had an end.
inline std::string_view next_line(std::string_view& rest, bool& whole) {
  const std::size_t end = rest.find('\n');
  whole = end != std::string_view::npos;
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(whole ? end + 1 : rest.size());
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

inline bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/// The words of a line, between blanks and tabs.
inline std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  std::size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && is_blank(line[at])) ++at;
    const std::size_t start = at;
    while (at < line.size() && !is_blank(line[at])) ++at;
    if (at > start) words.push_back(line.substr(start, at - start));
  }
  return words;
}

}  // namespace millrace
