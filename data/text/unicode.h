// Characters of text files: UTF-8, classes, case and normal forms. Classes and forms are those of the Unicode
// version that libutf8proc knows.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// Returns the index of the first byte that is no part of a UTF-8 sequence; npos: there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// Returns the code point at text[i] and moves i past it. `text` must be valid UTF-8.
char32_t next_code_point(std::string_view text, std::size_t& i);
void append_utf8(std::string& text, char32_t c);

/// Returns whether the character is in Unicode's White_Space, which a regular expression's \s finds.
bool is_white_space(char32_t c);
/// Returns whether BERT splits the character off: general category P*, or ASCII punctuation and symbols.
bool is_punctuation(char32_t c);
/// Returns true for control, format and private-use characters, except tab, line feed and carriage return.
bool is_control(char32_t c);
bool is_nonspacing_mark(char32_t c);  ///< general category Mn

/// Converts each character by itself: a capital sigma always becomes σ, and İ becomes i and U+0307.
std::string lower_case(std::string_view text);

enum class NormalForm { None, Nfc, Nfd, Nfkc };
std::string normal_form(std::string_view text, NormalForm form);

/// Replaces each run of white space by one space, and removes white space at the ends.
std::string single_spaced(std::string_view text);

}  // namespace millrace
