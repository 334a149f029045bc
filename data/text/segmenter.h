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

/// Cuts lines into tokens. Not thread-safe, since it may remember words: each thread needs its own.
class Segmenter {
 public:
  virtual ~Segmenter() = default;
  /// Appends the tokens of a line of valid UTF-8, without begin and end.
  virtual void segment(std::string_view line, std::vector<std::uint32_t>& numbers) = 0;
};

/// Makes a segmenter. Segmenters of one maker share immutable data.
using SegmenterMaker = std::function<std::unique_ptr<Segmenter>()>;

/// Returns a maker of segmenters that split the words between spaces by the codes. If `codes` is null, words
/// are taken as they are: the text must have its "@@" already.
SegmenterMaker bpe_segmenter(std::shared_ptr<const BpeCodes> codes,
                             std::shared_ptr<const Vocabulary> vocabulary);

/// The letters that a WordPiece model gets. Uncased models get lower-case letters without accents.
enum class Casing { Uncased, Cased };

struct WordPieceOptions {
  Casing casing = Casing::Uncased;
  std::int64_t longest_word = 100;   ///< in characters; a longer word becomes [UNK] (MLPerf: 200)
  bool keep_special_tokens = false;  ///< "[MASK]" in the text is the token (NVIDIA), not three words (MLPerf)
};

/// Returns a maker of BERT's segmenters. They remove control characters and put spaces around Chinese
/// characters. If uncased, they remove accents and case. They cut words at white space and punctuation. Then
/// they take the longest tokens of each word from the left, with "##" inside a word. Source: Devlin et al.,
/// NAACL 2019, tokenization.py; details follow the package `tokenizers`.
SegmenterMaker wordpiece_segmenter(std::shared_ptr<const Vocabulary> vocabulary, WordPieceOptions options);

/// Returns the words of a line as BERT has them before they are cut into pieces.
std::vector<std::string> basic_words(std::string_view line, Casing casing);

/// U+FFED, OpenNMT's joiner: it marks a place of split text at which there was no space.
inline constexpr std::string_view kJoiner = "\xEF\xBF\xAD";
enum class Joiners { No, Yes };
/// Puts spaces before and after each punctuation character: "a, b" -> "a , b". With joiners the result
/// is "a ￭, b". Then Vocabulary::text can restore the text, except for runs of white space.
std::string split_punctuation(std::string_view line, Joiners joiners = Joiners::No);
/// Removes joiners at the ends of words, and the spaces next to them.
std::string without_joiners(std::string_view text);

}  // namespace millrace
