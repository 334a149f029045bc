// Vocabularies map tokens to numbers, and numbers back to text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/hash.h"
#include "data/text/word_counts.h"
#include "runtime/base/result.h"

namespace millrace {

/// How tokens are joined to words. Token files contain these numbers.
enum class TokenKind : std::uint32_t {
  Bpe = 1,            ///< "new@@ er": "@@" ends a token that another continues
  WordPiece = 2,      ///< "new ##er": "##" begins a token that continues another
  SentencePiece = 3,  ///< "▁new er": U+2581 stands for a space
};
const char* to_string(TokenKind kind);

/// The tokens of a text by number. Immutable when made; thread-safe.
class Vocabulary {
 public:
  /// Makes a vocabulary without tokens, to which another can be assigned.
  Vocabulary() = default;

  /// Makes a vocabulary of tokens; a token's number is its index. Problems: a token twice, no token for
  /// unknown words (kind WordPiece: [UNK], else <unk>).
  static Result<Vocabulary> of(std::vector<std::string> tokens, TokenKind kind, const std::string& name);

  /// Reads a file of `kind`:
  /// - Bpe: a token a line, as in vocab.bpe.32000, or a token and its count. Numbers 0 to 3 are <pad> <unk>
  /// <s>
  ///   <\s> (with the backslash of GNMT's code), then the lines; then madeupword0000, madeupword0001, ... up
  ///   to a multiple of `pad_to` (as in PipeDream a whole `pad_to` where it is one already), none if that is
  ///   0.
  /// - WordPiece: a token a line, numbers are lines (vocab.txt). `pad_to` is not used.
  /// - SentencePiece: piece, tab, score (the model's .vocab file). `pad_to` is not used.
  static Result<Vocabulary> parse(std::string_view text, TokenKind kind, const std::string& name,
                                  std::int64_t pad_to = 8);

  std::uint32_t size() const { return static_cast<std::uint32_t>(tokens_.size()); }
  TokenKind kind() const { return kind_; }
  std::optional<std::uint32_t> find(std::string_view token) const;
  std::uint32_t number(std::string_view token) const { return find(token).value_or(unk_); }
  const std::string& token(std::uint32_t number) const { return tokens_.at(number); }

  std::uint32_t unk() const { return unk_; }
  std::optional<std::uint32_t> pad() const { return pad_; }
  std::optional<std::uint32_t> bos() const { return bos_; }  ///< <s>, [CLS]
  std::optional<std::uint32_t> eos() const { return eos_; }  ///< <\s> or </s>, [SEP]

  /// Returns a fingerprint of the kind and the tokens, which is equal only for equal vocabularies.
  Fingerprint fingerprint() const { return fingerprint_; }

  /// Returns the text of the numbers: tokens joined to words, words by single spaces; padding, begin and
  /// end left out. A number outside of the vocabulary is a failed check.
  std::string text(std::span<const std::uint32_t> numbers) const;

 private:
  std::string joined_words(std::span<const std::uint32_t> numbers) const;
  std::string joined_pieces(std::span<const std::uint32_t> numbers) const;
  bool is_silent(std::uint32_t number) const { return number == pad_ || number == bos_ || number == eos_; }

  TokenKind kind_ = TokenKind::Bpe;
  std::vector<std::string> tokens_;
  TextMap<std::uint32_t> numbers_;
  std::uint32_t unk_ = 0;
  std::optional<std::uint32_t> pad_, bos_, eos_;
  Fingerprint fingerprint_;
};

}  // namespace millrace
