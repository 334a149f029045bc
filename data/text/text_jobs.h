// Passes over whole files of text: cleaning, counting, learning, splitting, encoding, decoding. Files are
// read in blocks of a MiB. A thread holds one block of each of the files that are read in step, and the
// results of that block. Besides, memory holds the different words (counting, learning), or 64 MiB of
// remembered words a thread (splitting, encoding). Results are the same for any number of threads. All
// throw DataError for an error in a file, with its line, and ConfigError for outputs that exist;
// then no output is made.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text/bpe.h"
#include "data/text/segmenter.h"
#include "data/text/token_file.h"
#include "data/text/unicode.h"
#include "data/text/vocabulary.h"
#include "runtime/base/choices.h"

namespace millrace {

/// The treatment of a line with bytes that are no UTF-8.
enum class InvalidUtf8 {
  Refuse,   ///< throws DataError with the place of the byte
  Replace,  ///< each such byte becomes U+FFFD
  Drop,     ///< the line is left out, in all files that are read in step
};
constexpr auto names_of(InvalidUtf8) {
  return std::to_array<std::string_view>({"refuse", "replace", "drop"});
}

/// The first changes to a line, in this order.
struct TextRules {
  InvalidUtf8 invalid = InvalidUtf8::Refuse;
  NormalForm form = NormalForm::None;
  bool lower_case = false;
  bool split_punctuation = false;
  bool joiners = false;  ///< with split_punctuation: marks places at which there was no space
};

/// Returns the line after the changes of `rules`, or nothing if it must be left out. The result may lie in
/// `buffer`. Adds the number of replaced bytes to `replaced`. Throws DataError with `path` and `line_number`.
std::optional<std::string_view> prepared(std::string_view line, const TextRules& rules,
                                         const std::string& path, std::uint64_t line_number,
                                         std::string& buffer, std::uint64_t& replaced);

/// Called now and then with the bytes of the inputs that are done.
using BytesDone = std::function<void(Bytes)>;

struct TextRun {
  std::vector<std::string> inputs;
  TextRules rules;
  int threads = 1;
  BytesDone progress;        ///< may be empty
  Bytes block_bytes = kMiB;  ///< bytes of text in a block, up to a line more
};

enum class Existing { Refused, Replaced };  ///< the treatment of output files that exist already

/// Why lines were left out. With files read in step, the first reason that holds for any side counts once.
enum class DropReason { Invalid, Empty, Short, Long, Ratio, LongWord, NotLatin1 };
inline constexpr std::size_t kNumDropped = 7;
const char* to_string(DropReason reason);  ///< "invalid UTF-8", "empty", ...

struct TextReport {
  std::uint64_t lines = 0, kept = 0;
  std::uint64_t bytes = 0;  ///< bytes of unpacked text of all inputs
  std::array<std::uint64_t, kNumDropped> dropped{};
  std::uint64_t replaced_bytes = 0;    ///< bytes that InvalidUtf8::Replace replaced
  std::vector<TokenFileInfo> files;    ///< encode: the header of each output
  std::vector<std::uint64_t> unknown;  ///< encode: tokens of each output that are not in the vocabulary
  void add(const TextReport& more);
};

/// Filters lines as Moses' clean-corpus-n.perl and MLPerf's GNMT filter do. White space becomes single
/// spaces. A line is left out if a side is empty, has fewer than `min_words` or more than `max_words` words
/// or a word above `longest_word` characters, or if a side has more than `ratio` times the words of another.
struct CleanOptions {
  std::int64_t min_words = 1, max_words = 80;
  double ratio = 9;
  std::int64_t longest_word = 1000;
  bool latin1 = false;  ///< leaves out lines with characters above U+00FF too
};
TextReport clean_files(const TextRun& run, const CleanOptions& options,
                       const std::vector<std::string>& outputs, Existing existing);

/// Counts the words between spaces of all inputs, one file after the other.
WordCounts count_words(const TextRun& run, TextReport& report);

/// Splits the words of each input and writes them to an output of its own.
TextReport apply_bpe_to_files(const TextRun& run, const BpeCodes& codes,
                              const std::vector<std::string>& outputs, Existing existing);

/// Options of encode_files(), which writes inputs in step to token files. A line is left out if a side has
/// fewer than `min_tokens` or more than `max_tokens` tokens (begin and end not counted).
struct EncodeOptions {
  std::int64_t min_tokens = 0, max_tokens = INT64_MAX;
  std::int64_t vocabulary_padding = 0;  ///< written to the header
};
struct EncodedSide {
  SegmenterMaker segmenter;
  std::shared_ptr<const Vocabulary> vocabulary;
};
TextReport encode_files(const TextRun& run, const EncodeOptions& options,
                        const std::vector<EncodedSide>& sides, const std::vector<std::string>& outputs,
                        Existing existing);

/// Calls `write` with the sentences as text in their order, one in each line.
void decode_file(const TokenFile& file, const Vocabulary& vocabulary, int threads,
                 const std::function<void(std::string_view)>& write);

/// Writes one text file that appears whole or not at all.
void write_text_output(const std::string& path, std::string_view text, Existing existing);

}  // namespace millrace
