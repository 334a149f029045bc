#include "data/text/word_counts.h"

#include <algorithm>

namespace millrace {

void WordCounts::add(std::string_view word, std::int64_t count) {
  const auto found = places_.find(word);
  if (found != places_.end()) {
    words_[found->second].second += count;
    return;
  }
  places_.emplace(word, static_cast<std::uint32_t>(words_.size()));
  words_.emplace_back(word, count);
}

void WordCounts::add_line(std::string_view line) {
  for_each_word(line, [&](std::string_view word) { add(word); });
}

void WordCounts::add(const WordCounts& more) {
  for (const auto& [word, count] : more.words_) add(word, count);
}

void WordCounts::clear() {
  places_.clear();
  words_.clear();
}

std::vector<std::pair<std::string, std::int64_t>> WordCounts::by_count() const {
  std::vector<std::pair<std::string, std::int64_t>> sorted = words_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}

std::string_view without_blank_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of("\r\n") + 1);
}

std::string_view stripped_line(std::string_view line) {
  const std::size_t begin = line.find_first_not_of("\r\n ");
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of("\r\n ") - begin + 1);
}

}  // namespace millrace
