// Turns a line of text into the numbers of its tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/bpe.h"
#include "data/text/vocabulary.h"

namespace millrace {

/// One for each thread: it may remember words.
class Segmenter {
 public:
  virtual ~Segmenter() = default;
  /// Appends the tokens of a line of valid UTF-8, without begin and end.
  virtual void segment(std::string_view line, std::vector<std::uint32_t>& numbers) = 0;
};

/// Makes one more; what its products share is immutable and outlives them.
using SegmenterMaker = std::function<std::unique_ptr<Segmenter>()>;

/// Words between spaces, split by the codes, or as they are where `codes` is null (they then have their
/// "@@").
SegmenterMaker bpe_segmenter(std::shared_ptr<const BpeCodes> codes,
                             std::shared_ptr<const Vocabulary> vocabulary);

/// Letters of a line for WordPiece. Uncased models are fed lower-case letters without accents.
enum class Casing { Uncased, Cased };

struct WordPieceOptions {
  Casing casing = Casing::Uncased;
  std::int64_t longest_word = 100;   ///< in characters; a longer one is [UNK] (MLPerf: 200)
  bool keep_special_tokens = false;  ///< "[MASK]" in the text is the token (NVIDIA), not three words (MLPerf)
};

/// BERT's: control characters away, spaces around Chinese characters, accents and case away where uncased,
/// words at white space and punctuation, then from the left the longest token of each word, "##" inside.
/// Source: Devlin et al., NAACL 2019, tokenization.py; in details as the package `tokenizers`.
SegmenterMaker wordpiece_segmenter(std::shared_ptr<const Vocabulary> vocabulary, WordPieceOptions options);

/// The words of a line as BERT has them before they are cut into pieces.
std::vector<std::string> basic_words(std::string_view line, Casing casing);

/// U+FFED, as OpenNMT's tokenizer has it: where two words of split text stood side by side.
inline constexpr std::string_view kJoiner = "\xEF\xBF\xAD";
enum class Joiners { No, Yes };
/// Spaces in front of and behind each punctuation character: "a, b" -> "a , b". With joiners "a ￭, b": the
/// text can be put together again as it was (Vocabulary::text, but for runs of white space).
std::string split_punctuation(std::string_view line, Joiners joiners = Joiners::No);
/// Takes out joiners at the ends of words, and the spaces beside them.
std::string without_joiners(std::string_view text);

}  // namespace millrace
