#include "runtime/metrics/tokenize.h"

#include <array>
#include <utility>

#include "runtime/metrics/characters.h"
#include "runtime/metrics/replace_all.h"

namespace millrace {
namespace {

// ---- 13a: on bytes. It searches for ASCII only, and bytes of other characters are never ASCII.

constexpr std::array<bool, 256> split_off_by_13a() {
  std::array<bool, 256> table{};
  for (const char c : std::string_view("{|}~[\\]^_` !\"#$%&()*+:;<=>?@/"))
    table[static_cast<unsigned char>(c)] = true;
  return table;
}
constexpr std::array<bool, 256> kSplitOff = split_off_by_13a();

bool is_ascii_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_dot_or_comma(char c) {
  return c == '.' || c == ',';
}

void split_off_punctuation(const std::string& text, std::string& out) {
  out.clear();
  for (const char c : text) {
    if (!kSplitOff[static_cast<unsigned char>(c)]) {
      out += c;
    } else {
      const char padded[] = {' ', c, ' '};
      out.append(padded, 3);
    }
  }
}

/// Writes each pair of neighbours for which `found` is true as "A B " (`After`) or " A B" (`Before`).
enum class Pad { Before, After };
template <Pad kPad, class Found>
void pad_pairs(const std::string& text, std::string& out, Found found) {
  out.clear();
  std::size_t i = 0;
  for (; i + 1 < text.size(); ++i) {
    if (!found(text[i], text[i + 1])) {
      out += text[i];
      continue;
    }
    if (kPad == Pad::Before) out += ' ';
    out += text[i];
    out += ' ';
    out += text[++i];
    if (kPad == Pad::After) out += ' ';
  }
  if (i < text.size()) out += text[i];
}

void tokenize_13a(std::string_view segment, std::string& text, std::string& next) {
  next.assign(segment);
  replace_all(next, "<skipped>", "");
  replace_all(next, "-\n", "");
  replace_all(next, "\n", " ");
  if (next.find('&') != std::string::npos) {
    replace_all(next, "&quot;", "\"");
    replace_all(next, "&amp;", "&");
    replace_all(next, "&lt;", "<");
    replace_all(next, "&gt;", ">");
  }
  next.insert(0, 1, ' ').push_back(' ');
  split_off_punctuation(next, text);
  if (text.find_first_of(".,") != std::string::npos) {
    pad_pairs<Pad::After>(text, next,
                          [](char a, char b) { return !is_ascii_digit(a) && is_dot_or_comma(b); });
    pad_pairs<Pad::Before>(next, text,
                           [](char a, char b) { return is_dot_or_comma(a) && !is_ascii_digit(b); });
  }
  if (text.find('-') != std::string::npos) {
    pad_pairs<Pad::After>(text, next, [](char a, char b) { return is_ascii_digit(a) && b == '-'; });
    text.swap(next);
  }
}

// ---- intl: on characters

/// Does the same as pad_pairs, on characters.
template <Pad kPad, class Found>
void pad_characters(std::string_view text, std::string& out, Found found) {
  out.clear();
  if (text.empty()) return;
  std::size_t i = 0;
  Character first = character_at(text, 0);
  while (i + first.bytes < text.size()) {
    const std::size_t at = i + first.bytes;
    const Character second = character_at(text, at);
    if (!found(first, second)) {
      out.append(text, i, first.bytes);
      i = at;
      first = second;
      continue;
    }
    if (kPad == Pad::Before) out += ' ';
    out.append(text, i, first.bytes);
    out += ' ';
    out.append(text, at, second.bytes);
    if (kPad == Pad::After) out += ' ';
    i = at + second.bytes;
    if (i == text.size()) return;
    first = character_at(text, i);
  }
  out.append(text, i, first.bytes);
}

void tokenize_international(std::string_view segment, TokenRules rules, std::string& text,
                            std::string& next) {
  const bool old = rules == TokenRules::Sacrebleu1210;
  const auto is_number = [=](const Character& c) { return (c.classes & (old ? kDigit : kNumber)) != 0; };
  // 1.2.10 lists its punctuation in a bracket expression, in which the backslash escapes the next character.
  const auto is_punctuation = [=](const Character& c) {
    return (c.classes & kPunctuation) && !(old && c.code == '\\');
  };
  pad_characters<Pad::After>(segment, next, [&](const Character& a, const Character& b) {
    return !is_number(a) && is_punctuation(b);
  });
  pad_characters<Pad::Before>(
      next, text, [&](const Character& a, const Character& b) { return is_punctuation(a) && !is_number(b); });
  next.clear();
  for (std::size_t i = 0; i < text.size();) {
    const Character c = character_at(text, i);
    if (c.classes & kSymbol) next += ' ';
    next.append(text, i, c.bytes);
    if (c.classes & kSymbol) next += ' ';
    i += c.bytes;
  }
  text.swap(next);
}

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace

void BleuTokenizer::split(std::string_view text) {
  const bool ascii = rules_ == TokenRules::MultiBleu;
  std::size_t start = 0, i = 0;
  const auto end_word = [&] {
    if (i > start) words_.push_back(text.substr(start, i - start));
  };
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // White space starts with one of these bytes; other bytes need no lookup.
    const bool maybe = byte <= ' ' || byte == 0xC2 || (byte >= 0xE1 && byte <= 0xE3);
    if (!maybe) {
      ++i;
      continue;
    }
    Character c{byte, 1, 0};
    if (!ascii) {
      c = character_at(text, i);
    } else if (is_ascii_space(text[i])) {
      c.classes = kSpace;
    }
    if (c.classes & kSpace) {
      end_word();
      start = i + c.bytes;
    }
    i += c.bytes;
  }
  end_word();
}

const std::vector<std::string_view>& BleuTokenizer::operator()(std::string_view segment) {
  words_.clear();
  switch (tokens_) {
    case BleuTokens::None:
      split(segment);
      break;
    case BleuTokens::Characters:
      for (std::size_t i = 0; i < segment.size();) {
        const Character c = character_at(segment, i);
        if (!(c.classes & kSpace)) words_.push_back(segment.substr(i, c.bytes));
        i += c.bytes;
      }
      break;
    case BleuTokens::Mteval13a:
      tokenize_13a(segment, text_, next_);
      split(text_);
      break;
    case BleuTokens::International:
      tokenize_international(segment, rules_, text_, next_);
      split(text_);
      break;
  }
  return words_;
}

}  // namespace millrace
