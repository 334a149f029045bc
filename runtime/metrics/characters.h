// Characters of UTF-8 text as Python's str and regular expressions see them: classes, lower case, white
// space. Thread-safe. Bytes that are no UTF-8 have no class and stay as they are: callers that must not meet
// them look for them first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// Bits of a character's classes, by the Unicode version of utf8proc.
enum CharacterClass : std::uint16_t {
  kPunctuation = 1,  ///< general category P*
  kSymbol = 2,       ///< S*
  kNumber = 4,       ///< N*
  kDigit = 8,        ///< Nd
  kSpace = 16,       ///< what str.split() splits at: U+00A0 and U+3000 too, U+200B not
  kCased = 32,       ///< and not case-ignorable
  kCaseIgnorable = 64,
  kHasLower = 128,
  kAlphabetic = 256,
  kCurrency = 512,  ///< Sc
};

struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  std::uint16_t classes = 0;  ///< CharacterClass
};

/// The character that starts at `i` < text.size().
Character character_at(std::string_view text, std::size_t i);

/// Python's str.lower(): U+0130 becomes two characters, a sigma that ends a word the final one.
std::string to_lower(std::string_view text);

/// Changes A to Z only, as Perl does on bytes.
std::string to_lower_ascii(std::string_view text);

/// Returns `text` without white space at the end (str.rstrip()).
std::string_view without_trailing_space(std::string_view text);

/// The place of the first byte that is no UTF-8 (overlong forms and surrogates are none), if there is one.
std::optional<std::size_t> first_invalid_byte(std::string_view text);

}  // namespace millrace
