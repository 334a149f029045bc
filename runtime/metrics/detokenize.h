// Detokenizes a model's output as the GNMT scripts of PipeDream and MLPerf do before scoring. It joins BPE
// pieces, then applies Moses' English detokenizer to any language.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Joins subword units: `new@@ est` becomes `newest`. Removes <s>, <\s>, <pad>, and white space at both ends.
std::string join_subwords(std::string_view words);

/// Converts space-separated words to text. XML entities and ` @-@ ` are decoded. There is no space before `,
/// . ? ! : ; % ) ] }`, nor after `( [ { ¿ ¡` and currency signs. Quotes are paired, contractions joined (`I
/// 'm`). Input and output are UTF-8.
std::string detokenize(std::string_view words);

}  // namespace millrace
