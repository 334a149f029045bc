// Turns a model's words into text as PipeDream's and MLPerf's GNMT scripts do before they score: join BPE's
// pieces, then Moses' detokenizer with its rules for English, on any language.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Words of subword units: `new@@ est` is `newest`; <s>, <\s> and <pad> go, white space at both ends too.
std::string join_subwords(std::string_view words);

/// Words between spaces as written text: XML's entities and ` @-@ ` decoded, no space before `, . ? ! : ; % )
/// ] }`, nor after `( [ { ¿ ¡` and currency signs, quotes in pairs, contractions joined (`I 'm`). UTF-8 in,
/// UTF-8 out.
std::string detokenize(std::string_view words);

}  // namespace millrace
