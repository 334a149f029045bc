// Text to translations, apart from where weights and lines come from: `millrace translate` and the BLEU of a
// run that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/language/video_source.h"
#include "data/text/line_reader.h"
#include "data/text/segmenter.h"
#include "data/text/text_jobs.h"
#include "driver/flags/translate_spec.h"
#include "models/translate/gnmt_stages.h"
#include "models/translate/gnmt_translation.h"
#include "models/translate/s2vt_captions.h"
#include "runtime/comm/communicator.h"
#include "runtime/saved/settings.h"

namespace millrace {

/// After parsing: applies the preset. Problems: values that do not fit, or not together.
Problems complete(const Arguments& arguments, TranslateFlags& flags);

struct Languages {
  std::shared_ptr<const Vocabulary> source, target;
  SegmenterMaker segmenter;
};
/// Problems: of the files of --vocabulary and --codes.
Result<Languages> read_languages(const TranslateFlags& flags);

/// A model's vocabulary: its size, and what the run that trained it has recorded of it, if anything.
struct TrainedVocabulary {
  std::string model;  ///< for messages: where it is from
  std::int64_t size = 0;
  Settings settings;
};
/// Vocabularies are those with which the model was trained, as far as it says; else of its size.
Problems vocabulary_problems(const TranslateFlags& flags, const Languages& languages,
                             const TrainedVocabulary& trained);

/// A text file's lines, or with "-" those of stdin. Throws DataError.
class InputLines {
 public:
  explicit InputLines(const std::string& path);
  InputLines(const InputLines&) = delete;
  InputLines& operator=(const InputLines&) = delete;
  ~InputLines();
  bool next(std::string_view& line);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<LineReader> file_;
  char* buffer_ = nullptr;
  std::size_t room_ = 0;
  bool begun_ = false;
};

struct TranslationCounts {
  std::int64_t sentences = 0, source_tokens = 0, target_tokens = 0;
  std::int64_t empty = 0, invalid = 0, unknown = 0, cut = 0, unfinished = 0;
  std::uint64_t replaced_bytes = 0;
};

struct SourceLine {
  std::uint64_t number = 0;
  std::vector<std::uint32_t> source;  // with begin and end
  VideoSourcePtr video;               // of a caption: the one that the line names
  std::int64_t frames = 0;            // that are looked at
  std::vector<Hypothesis> hypotheses;

  std::int64_t length() const { return frames + std::ssize(source); }  ///< 0: there is nothing to translate
};
/// Sentences that are multiplied together. Which they are decides the last bits of scores, so it depends on
/// the lines and --batch alone, neither on threads nor on ranks.
using SentenceBatch = std::vector<SourceLine*>;

class Translation {
 public:
  /// `flags` and `languages` outlive it. `frame_features`: of a frame, where captions are said.
  Translation(const TranslateFlags& flags, const Languages& languages, std::int64_t frame_features = 0);

  /// The next lines, in the order of the input: a window, in which batches are made. Empty: there are none.
  std::vector<SourceLine> read_window(InputLines& input);
  /// Batches of sentences of like length, the longest first; empty lines are in none.
  std::vector<SentenceBatch> batches(std::vector<SourceLine>& window) const;
  /// Batches one after the other in each of so many threads, each on one core. Throws what goes wrong.
  void translate(const GnmtTranslator& translator, std::span<const SentenceBatch> batches, int threads) const;
  /// Translates videos to captions in the same way.
  void translate(const S2vtCaptioner& captioner, std::span<const SentenceBatch> batches, int threads) const;
  /// Translates over the stages of a pipeline, of which this rank holds one; each of `lanes` joins its ranks
  /// and is used by a thread of its own. Collective over them. Only the last stage then has the hypotheses.
  void translate(const GnmtTranslator& mine, const GnmtStages& stages, std::span<const SentenceBatch> batches,
                 std::span<const std::unique_ptr<Communicator>> lanes) const;
  /// The line as it is written; counts it. Throws NumericError: its score is not finite.
  std::string written(const SourceLine& line);

  const TranslationCounts& counts() const { return counts_; }
  /// "3 sentences of more than 80 tokens are cut ..."; empty: none was.
  std::string cut_note() const;

 private:
  /// Returns the number of the target's words that the search offers.
  std::int64_t limit() const { return static_cast<std::int64_t>(languages_.target->size()); }
  bool read_line(InputLines& input, std::vector<SourceLine>& window);
  void read_sentence(std::string_view text, SourceLine& line);
  void read_video(std::string_view name, const std::string& path, SourceLine& line);
  void note_cut(std::uint64_t line);
  using Begin = std::function<std::unique_ptr<NextWords>(const SentenceBatch&)>;
  void search_all(const Begin& begin, std::span<const SentenceBatch> batches, int threads) const;
  std::string text_of(const Hypothesis& hypothesis) const;

  const TranslateFlags& f_;
  const Languages& languages_;
  std::unique_ptr<Segmenter> segmenter_;
  BeamOptions search_;
  std::int64_t frame_features_;
  TranslationCounts counts_;
  std::uint64_t line_number_ = 0;
  std::string buffer_, cut_lines_;
};

/// Returns the batches that process `one` of `size` translates. It takes every size-th batch, so that each
/// process has long and short ones.
std::vector<SentenceBatch> share_of(std::span<const SentenceBatch> batches, int one, int size);
/// Collective: what each `stages` ranks in turn have found for their share, on all ranks; the `keep` best of
/// each sentence.
void exchange_hypotheses(Communicator& world, std::span<const SentenceBatch> batches, std::size_t keep,
                         int stages = 1);

}  // namespace millrace
