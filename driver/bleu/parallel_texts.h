// Texts of which line k of each belongs together: hypotheses and their references. LibTorch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// Lines end with \n and nothing else; white space at their ends is cut, \r with it. Moved, it keeps its
/// lines.
struct TextLines {
  std::string name;  ///< as given; "-" is stdin
  std::unique_ptr<const std::string> content;
  std::vector<std::string_view> lines;
  bool has_byte_order_mark = false;  ///< it precedes the first line's first word
};

/// Reads a file, or stdin for "-". Problems: unreadable, or not UTF-8 (`file:line`, the byte in it).
Result<TextLines> read_lines(const std::string& path);

/// The references of every sentence.
struct ReferenceSet {
  std::vector<std::vector<std::string_view>> by_sentence;
  int number = 1;  ///< of each; 0: differs
};

/// A stream each. Problem if `streams` differ in length.
Result<ReferenceSet> references_of(const std::vector<TextLines>& streams);

/// All in one stream, separated by tabs: `number` of each sentence (more tabs belong to the last), or as many
/// as there are for 0; then an empty one is none, unless it is the only one.
Result<ReferenceSet> split_references(const TextLines& stream, int number);

/// Problem: a text has not as many lines as the first.
Problems check_line_counts(const std::vector<const TextLines*>& texts);

}  // namespace millrace
