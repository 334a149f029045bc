// Sources of tokenised sentences: a token file, memory, or made-up ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <optional>

#include "data/text/vocabulary.h"
#include "runtime/base/result.h"

namespace millrace {

using Tokens = std::vector<std::uint32_t>;

/// Sentences of tokens, without begin and end. Implementations are thread-safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::int64_t size() const = 0;
  virtual std::int64_t length(std::int64_t sentence) const = 0;
  virtual void read(std::int64_t sentence, Tokens& tokens) const = 0;
  virtual std::string describe() const = 0;
  /// Returns the fingerprint of the source's vocabulary, in hexadecimal. Empty: it has none.
  virtual std::string vocabulary() const { return {}; }
  /// Returns how the source's words were cut into tokens. Nothing: not known.
  virtual std::optional<TokenKind> kind() const { return std::nullopt; }
  /// Returns the token that ends a sentence in the source's vocabulary. -1: not known.
  virtual std::int64_t end() const { return -1; }
  /// Returns notes for the user about the source: Dataset::notes.
  virtual std::vector<std::string> notes() const { return {}; }
};
using TokenSourcePtr = std::shared_ptr<const TokenSource>;

TokenSourcePtr tokens_in_memory(std::vector<Tokens> sentences);

/// Opens a token file (`millrace data text encode`). Problem: it cannot be read, or its vocabulary is larger
/// than the model's (`limit` tokens).
Result<TokenSourcePtr> tokens_in_file(const std::string& path, std::int64_t limit);

struct MadeUpText {
  std::int64_t sentences = 0;
  std::int64_t shortest = 1, longest = 1;  ///< tokens
  std::int64_t first = 0, limit = 1;       ///< tokens are in [first, limit)
  std::uint64_t seed = 0;
  bool documents = false;  ///< adds an empty sentence after about every fourth one
};
/// Makes sentences of random lengths. Small numbers are frequent, and a token is often its predecessor plus
/// one, so that there is something to learn.
TokenSourcePtr made_up_text(const MadeUpText& options);

/// Returns a fingerprint of all lengths and of some of the sentences. Different text has a different one
/// but for rare cases.
std::string fingerprint_of(const TokenSource& source);

}  // namespace millrace
