#include "runtime/metrics/characters.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <utf8proc.h>

#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;
constexpr char32_t kSigma = 0x3a3;
constexpr std::string_view kSmallSigma = "\u03c3", kFinalSigma = "\u03c2";
constexpr char32_t kDottedI = 0x130;
constexpr std::string_view kSmallDottedI = "i\u0307";

/// Case-ignorable by Unicode's Word_Break, and not by category.
constexpr std::u32string_view kIgnorablePunctuation =
    U"'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a";
/// Lower case without an upper one, and not by category (Other_Lowercase).
constexpr std::u32string_view kLettersWithoutMapping = U"\u00aa\u00ba";

/// Returns the CharacterClass bits of a code point.
std::uint16_t classes_of(utf8proc_int32_t code) {
  const utf8proc_property_t& of = *utf8proc_get_property(code);
  const auto category = static_cast<utf8proc_category_t>(of.category);
  const auto bidi = static_cast<utf8proc_bidi_class_t>(of.bidi_class);
  const auto within = [&](utf8proc_category_t first, utf8proc_category_t last) {
    return category >= first && category <= last;
  };
  const auto is_among = [&](std::u32string_view all) {
    return all.find(static_cast<char32_t>(code)) != std::u32string_view::npos;
  };
  const bool has_lower = utf8proc_tolower(code) != code;
  const bool ignorable = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME ||
                         category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_LM ||
                         category == UTF8PROC_CATEGORY_SK || is_among(kIgnorablePunctuation);
  const bool cased =
      within(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LT) || has_lower || utf8proc_toupper(code) != code ||
      is_among(kLettersWithoutMapping) ||
      (code >= 0x1f130 && code < 0x1f190 && (code - 0x1f130) % 32 < 26);  // Other_Uppercase: in squares
  std::uint16_t classes = 0;
  const auto add = [&](bool is, CharacterClass one) { classes |= is ? one : 0; };
  add(within(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO), kPunctuation);
  add(within(UTF8PROC_CATEGORY_SM, UTF8PROC_CATEGORY_SO), kSymbol);
  add(within(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO), kNumber);
  add(category == UTF8PROC_CATEGORY_ND, kDigit);
  add(category == UTF8PROC_CATEGORY_ZS || bidi == UTF8PROC_BIDI_CLASS_WS || bidi == UTF8PROC_BIDI_CLASS_B ||
          bidi == UTF8PROC_BIDI_CLASS_S,
      kSpace);
  add(cased && !ignorable, kCased);
  add(ignorable, kCaseIgnorable);
  add(has_lower, kHasLower);
  add(within(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO) || category == UTF8PROC_CATEGORY_NL, kAlphabetic);
  add(category == UTF8PROC_CATEGORY_SC, kCurrency);
  return classes;
}

/// Returns two bytes for each code point, made on the first call.
const std::uint16_t* classes_of_all() {
  static const std::vector<std::uint16_t> classes = [] {
    std::vector<std::uint16_t> all(kNumCodePoints);
    for (std::size_t code = 0; code < all.size(); ++code)
      all[code] = classes_of(static_cast<utf8proc_int32_t>(code));
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

/// Unicode's Final_Sigma: a cased character before it and none after it, ignoring case-ignorable ones.
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
      append_utf8(result,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))));
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
