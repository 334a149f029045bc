// The tokenisers of BLEU. Each is the sequence of substitutions that defines it, pass by pass: what a
// substitution has consumed is not looked at again by the same pass.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"

namespace millrace {

enum class BleuTokens {
  Mteval13a,      ///< "13a": mteval-v13a's, for ASCII punctuation; the default of WMT
  International,  ///< "intl": mteval-v14's, by Unicode categories
  Characters,     ///< "char": every character that is no white space
  None,           ///< "none": words as they stand
};
constexpr auto names_of(BleuTokens) {
  return std::to_array<std::string_view>({"13a", "intl", "char", "none"});
}

/// The program whose rules hold where programs differ.
enum class TokenRules {
  Sacrebleu2,     ///< numbers are \p{N}
  Sacrebleu1210,  ///< intl: numbers are \d, and a backslash is no punctuation
  MultiBleu,      ///< white space is ASCII's (Perl on bytes)
};

/// Keeps its buffers from text to text. One for each thread.
class BleuTokenizer {
 public:
  explicit BleuTokenizer(BleuTokens tokens, TokenRules rules = TokenRules::Sacrebleu2)
      : tokens_(tokens), rules_(rules) {}

  /// The tokens of one segment, valid UTF-8, in order. They are valid until the next call, and as long as
  /// `segment` is.
  const std::vector<std::string_view>& operator()(std::string_view segment);

 private:
  void split(std::string_view text);

  BleuTokens tokens_;
  TokenRules rules_;
  std::string text_, next_;  // what the last pass made, what the next one makes
  std::vector<std::string_view> words_;
};

}  // namespace millrace
