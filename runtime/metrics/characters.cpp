#include "runtime/metrics/characters.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/text.h"
#include "runtime/metrics/unicode_tables.h"

namespace millrace {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;
constexpr char32_t kSigma = 0x3a3;
constexpr std::string_view kSmallSigma = "\u03c3", kFinalSigma = "\u03c2";
constexpr char32_t kDottedI = 0x130;
constexpr std::string_view kSmallDottedI = "i\u0307";

/// The runs spread out: two bytes for each code point, made when first asked for.
const std::uint16_t* classes_of_all() {
  static const std::vector<std::uint16_t> classes = [] {
    std::vector<std::uint16_t> all(kNumCodePoints);
    for (std::size_t run = 0; run < kNumClassRuns; ++run) {
      const std::size_t end = run + 1 < kNumClassRuns ? kClassRuns[run + 1].first : kNumCodePoints;
      std::fill(all.begin() + kClassRuns[run].first, all.begin() + static_cast<std::ptrdiff_t>(end),
                kClassRuns[run].flags);
    }
    return all;
  }();
  return classes.data();
}

char32_t decoded(std::string_view text, std::size_t i, std::size_t length) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[i + k]); };
  if (length == 2) return (byte(0) & 0x1Fu) << 6 | (byte(1) & 0x3Fu);
  if (length == 3) return (byte(0) & 0xFu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
  return (byte(0) & 7u) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
}

void append_utf8(std::string& text, char32_t code) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6), tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12), tail(6), tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0);
  }
}

char32_t lower_of(char32_t code) {
  const LowerRun* const end = kLowerRuns + kNumLowerRuns;
  const LowerRun* run =
      std::upper_bound(kLowerRuns, end, code, [](char32_t c, const LowerRun& r) { return c < r.first; });
  // Runs of every other code point may interleave, by two at most.
  for (int back = 0; back < 2 && run != kLowerRuns; ++back) {
    --run;
    if (code <= run->last && (code - run->first) % run->step == 0)
      return static_cast<char32_t>(static_cast<std::int64_t>(code) + run->delta);
  }
  return code;
}

/// Unicode's Final_Sigma: something cased before it and nothing cased after it, skipping what is
/// case-ignorable.
bool ends_a_word(std::string_view text, std::size_t sigma) {
  std::uint16_t before = 0;
  for (std::size_t i = sigma; i > 0;) {
    do --i;
    while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80);
    before = character_at(text, i).classes;
    if (!(before & kCaseIgnorable)) break;
  }
  if ((before & (kCased | kCaseIgnorable)) != kCased) return false;
  for (std::size_t i = sigma + character_at(text, sigma).bytes; i < text.size();) {
    const Character after = character_at(text, i);
    if (!(after.classes & kCaseIgnorable)) return !(after.classes & kCased);
    i += after.bytes;
  }
  return true;
}

}  // namespace

Character character_at(std::string_view text, std::size_t i) {
  static const std::uint16_t* const classes = classes_of_all();
  const auto byte = static_cast<unsigned char>(text[i]);
  if (byte < 0x80) return {byte, 1, classes[byte]};
  const std::size_t length = utf8_length(text, i);
  if (length == 0) return {0xFFFD, 1, 0};
  const char32_t code = decoded(text, i, length);
  return {code, length, classes[code]};
}

std::string to_lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      result += static_cast<char>(byte >= 'A' && byte <= 'Z' ? byte + ('a' - 'A') : byte);
      ++i;
      continue;
    }
    const Character character = character_at(text, i);
    if (!(character.classes & kHasLower)) {
      result += text.substr(i, character.bytes);
    } else if (character.code == kSigma) {
      result += ends_a_word(text, i) ? kFinalSigma : kSmallSigma;
    } else if (character.code == kDottedI) {
      result += kSmallDottedI;
    } else {
      append_utf8(result, lower_of(character.code));
    }
    i += character.bytes;
  }
  return result;
}

std::string to_lower_ascii(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  return result;
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    std::size_t i = text.size() - 1;
    while (i > 0 && text.size() - i < 4 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
    const Character last = character_at(text, i);
    if (!(last.classes & kSpace) || i + last.bytes != text.size()) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

std::optional<std::size_t> first_invalid_byte(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    std::uint64_t eight = 0;
    if (text.size() - i >= sizeof eight) {
      std::memcpy(&eight, text.data() + i, sizeof eight);
      if (!(eight & 0x8080808080808080u)) {
        i += sizeof eight;
        continue;
      }
    }
    const std::size_t length = utf8_length(text, i);
    if (length == 0) return i;
    i += length;
  }
  return std::nullopt;
}

}  // namespace millrace
