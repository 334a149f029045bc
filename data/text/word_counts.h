// Counts how often each word occurs. Words stay in the order in which they were first seen.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace {

struct TransparentHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
/// A map that can be searched by string_view.
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TransparentHash, std::equal_to<>>;

class WordCounts {
 public:
  void add(std::string_view word, std::int64_t count = 1);
  /// Adds the words between spaces. A carriage return at the line's ends is no part of a word.
  void add_line(std::string_view line);
  void add(const WordCounts& more);
  void clear();
  std::size_t size() const { return words_.size(); }
  const std::vector<std::pair<std::string, std::int64_t>>& words() const { return words_; }
  /// Returns the words by falling count. Words of the same count stay in the order in which they were first
  /// seen.
  std::vector<std::pair<std::string, std::int64_t>> by_count() const;

 private:
  TextMap<std::uint32_t> places_;
  std::vector<std::pair<std::string, std::int64_t>> words_;
};

/// Returns `line` without carriage returns, line feeds and spaces at its ends.
std::string_view stripped_line(std::string_view line);
/// Returns `text` without blank lines at its end. Codes, vocabularies and class names may end with them; a
/// blank line elsewhere in such a file is an error.
std::string_view without_blank_end(std::string_view text);

/// Calls `use` with each word between spaces of `line`.
template <class Use>
void for_each_word(std::string_view line, Use use) {
  line = stripped_line(line);
  while (!line.empty()) {
    const std::size_t end = line.find(' ');
    const std::string_view word = line.substr(0, end);
    if (!word.empty()) use(word);
    if (end == std::string_view::npos) return;
    line.remove_prefix(end + 1);
  }
}

}  // namespace millrace
