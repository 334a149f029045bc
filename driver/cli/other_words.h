// Flags of other training tools, and millrace's names for them. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

struct Flag;

/// One word of another tool.
struct OtherWord {
  std::string_view theirs;  ///< without dashes in front, e.g. "batch-size"
  std::string_view here;    ///< the flag's name here; empty: there is no such thing
  std::string_view note;    ///< a sentence more, or empty
};

/// Returns the first row of the table with this word whose flag is among `flags`, or that says that there is
/// no such thing; null: nothing is known of the word.
const OtherWord* other_word(std::string_view theirs, const std::vector<Flag>& flags);

/// "here it is --microbatch: samples per microbatch". `dashes`: "--", or nothing in a job file.
std::string hint_of(const OtherWord& word, std::string_view dashes);

/// The whole table, for its test and for the docs.
std::span<const OtherWord> other_words();

}  // namespace millrace
