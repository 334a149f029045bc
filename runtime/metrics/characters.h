// Characters of UTF-8 text as Python's str and regular expressions see them: classes, lower case, white
// space. Thread-safe. Invalid UTF-8 bytes have no class and are copied unchanged. Callers that must reject
// them check first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

/// Bit flags of a character's classes, by the Unicode version of utf8proc.
enum CharacterClass : std::uint16_t {
  kPunctuation = 1,  ///< general category P*
  kSymbol = 2,       ///< S*
  kNumber = 4,       ///< N*
  kDigit = 8,        ///< Nd
  kSpace = 16,       ///< separators of str.split(): includes U+00A0 and U+3000, not U+200B
  kCased = 32,       ///< and not case-ignorable
  kCaseIgnorable = 64,
  kHasLower = 128,
  kAlphabetic = 256,
  kCurrency = 512,  ///< Sc
};

struct Character {
  char32_t code = 0;
  std::size_t bytes = 1;
  std::uint16_t classes = 0;  ///< CharacterClass flags
};

/// Returns the character that starts at `i` < text.size().
Character character_at(std::string_view text, std::size_t i);

/// Python's str.lower(): U+0130 becomes two characters, and a sigma at the end of a word becomes a final
/// sigma.
std::string to_lower(std::string_view text);

/// Lower-cases A to Z only, as Perl does on bytes.
std::string to_lower_ascii(std::string_view text);

/// Returns `text` without trailing white space (str.rstrip()).
std::string_view without_trailing_space(std::string_view text);

/// Returns the offset of the first invalid UTF-8 byte (overlong forms and surrogates are invalid), if any.
std::optional<std::size_t> first_invalid_byte(std::string_view text);

}  // namespace millrace
