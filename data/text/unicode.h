// Characters as text files have them: UTF-8, classes, case and normal forms. Classes and forms are those of
// the Unicode version that libutf8proc knows.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

/// The place of the first byte that is no part of a UTF-8 sequence; npos: there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// The code point at text[i], and i behind it. `text` is valid UTF-8.
char32_t next_code_point(std::string_view text, std::size_t& i);
void append_utf8(std::string& text, char32_t c);

/// Unicode's White_Space: what a regular expression's \s finds.
bool is_white_space(char32_t c);
/// General category P*, or one of ASCII's punctuation and symbols: what BERT splits off.
bool is_punctuation(char32_t c);
/// Control, format and private-use characters, except tab, line feed and carriage return.
bool is_control(char32_t c);
bool is_nonspacing_mark(char32_t c);  ///< Mn

/// Character by character: a capital sigma becomes σ wherever it stands, İ an i and U+0307.
std::string lower_case(std::string_view text);

enum class NormalForm { None, Nfc, Nfd, Nfkc };
std::string normal_form(std::string_view text, NormalForm form);

/// Runs of white space as one space, none at the ends.
std::string single_spaced(std::string_view text);

/// Returns the version of the tables: "15.0.0".
std::string unicode_version();

}  // namespace millrace
