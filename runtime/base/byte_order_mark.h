// The byte-order mark that some editors write at the start of UTF-8 text.
#pragma once

#include <string_view>

namespace millrace {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Returns `text` without a leading byte-order mark. Every reader of user-written text files calls this:
/// codes, vocabularies, class names and weights, tables, JSON, host files, graph.txt, point clouds. yaml-cpp
/// does it itself. `millrace bleu` keeps the mark, as sacreBLEU does, and reports it.
inline std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

}  // namespace millrace
