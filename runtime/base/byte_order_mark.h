// The mark that some editors put in front of UTF-8 text.
#pragma once

#include <string_view>

namespace millrace {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Returns `text` without a byte-order mark in front. Every reader of text files that users write begins so:
/// codes, vocabularies, class names and weights, tables, JSON, host files, graph.txt, clouds of points.
/// yaml-cpp does it itself. `millrace bleu` keeps the mark, as sacreBLEU does, and says so.
inline std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

}  // namespace millrace
