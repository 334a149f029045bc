// BLEU's tokenizers. Each is the sequence of substitutions that defines it, pass by pass: a pass does not
// examine text that it has already substituted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"

namespace millrace {

enum class BleuTokens {
  Mteval13a,      ///< "13a": the tokenizer of mteval-v13a, for ASCII punctuation; WMT's default
  International,  ///< "intl": the tokenizer of mteval-v14, by Unicode categories
  Characters,     ///< "char": every character that is not white space
  None,           ///< "none": words unchanged
};
constexpr auto names_of(BleuTokens) {
  return std::to_array<std::string_view>({"13a", "intl", "char", "none"});
}

/// The program whose rules apply where programs differ.
enum class TokenRules {
  Sacrebleu2,     ///< numbers are \p{N}
  Sacrebleu1210,  ///< intl: numbers are \d, and a backslash is not punctuation
  MultiBleu,      ///< white space is ASCII only (Perl on bytes)
};

/// Reuses its buffers between texts. Use one per thread.
class BleuTokenizer {
 public:
  explicit BleuTokenizer(BleuTokens tokens, TokenRules rules = TokenRules::Sacrebleu2)
      : tokens_(tokens), rules_(rules) {}

  /// Returns the tokens of one segment, which is valid UTF-8, in order. They are valid until the next call
  /// and for the lifetime of `segment`.
  const std::vector<std::string_view>& operator()(std::string_view segment);

 private:
  void split(std::string_view text);

  BleuTokens tokens_;
  TokenRules rules_;
  std::string text_, next_;  // result of the last pass, result of the next one
  std::vector<std::string_view> words_;
};

}  // namespace millrace
