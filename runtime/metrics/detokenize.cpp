#include "runtime/metrics/detokenize.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/metrics/characters.h"
#include "runtime/metrics/replace_all.h"

namespace millrace {
namespace {

// & is last, so that its result is not decoded again.
constexpr std::pair<std::string_view, std::string_view> kEntities[] = {
    {"&bar;", "|"},   {"&#124;", "|"}, {"&lt;", "<"},  {"&gt;", ">"},  {"&bra;", "["}, {"&ket;", "]"},
    {"&quot;", "\""}, {"&apos;", "'"}, {"&#91;", "["}, {"&#93;", "]"}, {"&amp;", "&"}};

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

template <class Predicate>
bool consists_of(std::string_view word, Predicate wanted) {
  for (std::size_t i = 0; i < word.size();) {
    const Character c = character_at(word, i);
    if (!wanted(c)) return false;
    i += c.bytes;
  }
  return true;
}

bool is_one_of(const Character& c, std::u32string_view set) {
  return set.find(c.code) != std::u32string_view::npos;
}
bool opens(const Character& c) {
  return (c.classes & kCurrency) || is_one_of(c, U"([{¿¡");
}
bool closes(const Character& c) {
  return is_one_of(c, U",.?!:;\\%}])");
}
bool is_quote(const Character& c) {
  return is_one_of(c, U"'\"„“`");
}
bool is_double_quote(const Character& c) {
  return is_one_of(c, U"„“");
}

/// Han, kana, Hangul and similar scripts have no space between their words.
bool is_cjk(const Character& c) {
  constexpr std::pair<char32_t, char32_t> kBlocks[] = {{0x1100, 0x11FF}, {0x2E80, 0xA4CF},  {0xA840, 0xA87F},
                                                       {0xAC00, 0xD7AF}, {0xF900, 0xFAFF},  {0xFE30, 0xFE4F},
                                                       {0xFF65, 0xFFDC}, {0x20000, 0x2FFFF}};
  return std::ranges::any_of(
      kBlocks, [&](const auto& block) { return block.first <= c.code && c.code <= block.second; });
}

Character last_of(std::string_view word) {
  std::size_t i = word.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(word[i]) & 0xC0) == 0x80) --i;
  return character_at(word, i);
}

/// Returns whether the word is a contraction such as `'m` after a word.
bool is_contraction(std::string_view word, std::string_view before) {
  return word.size() > 1 && word[0] == '\'' && (character_at(word, 1).classes & kAlphabetic) &&
         !before.empty() && (last_of(before).classes & (kAlphabetic | kDigit));
}

/// The sides on which a word has spaces.
enum class Space { Both, NotAfter, NotBefore };

/// Pairs quotes: the first of a kind opens, the next one closes.
class QuotePairs {
 public:
  Space space_of(std::string_view quote, std::string_view before) {
    int& seen = seen_[consists_of(quote, is_double_quote) ? "\"" : std::string(quote)];
    if (seen % 2 == 0 && quote == "'" && before.ends_with('s')) return Space::NotBefore;  // the Jones' house
    return seen++ % 2 == 0 ? Space::NotAfter : Space::NotBefore;
  }

 private:
  std::map<std::string, int> seen_;
};

}  // namespace

std::string join_subwords(std::string_view words) {
  std::string text(words);
  for (const char* mark : {"@@ ", "@@", "<s>", "<\\s>", "<pad>"}) replace_all(text, mark, "");
  text = without_trailing_space(text);
  std::size_t start = 0;
  while (start < text.size() && (character_at(text, start).classes & kSpace))
    start += character_at(text, start).bytes;
  return text.substr(start);
}

std::string detokenize(std::string_view words) {
  std::string text = " " + std::string(words) + " ";
  replace_all(text, " @-@ ", "-");
  for (const auto& [entity, character] : kEntities) replace_all(text, entity, character);
  QuotePairs quotes;
  std::string result;
  std::string_view before;
  bool space = false;  // the previous word requests a space
  for (const std::string_view word : words_of(text)) {
    Space own = Space::Both;
    if (is_cjk(character_at(word, 0))) {
      if (!before.empty() && is_cjk(last_of(before))) own = Space::NotBefore;
    } else if (consists_of(word, opens)) {
      own = Space::NotAfter;
    } else if (consists_of(word, closes) || is_contraction(word, before)) {
      own = Space::NotBefore;
    } else if (consists_of(word, is_quote)) {
      own = quotes.space_of(word, before);
    }
    if (space && own != Space::NotBefore) result += ' ';
    result += word;
    space = own != Space::NotAfter;
    before = word;
  }
  return result;
}

}  // namespace millrace
