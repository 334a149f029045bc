// Translates lines of text, whatever the source of weights and lines: for `millrace translate` and for the
// BLEU of a training.
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

/// Applies the preset after parsing. Problems: values that are out of range or contradict each other.
Problems complete(const Arguments& arguments, TranslateFlags& flags);

struct Languages {
  std::shared_ptr<const Vocabulary> source, target;
  SegmenterMaker segmenter;
};
/// Reads the files of --vocabulary and --codes. Problems: those of the files.
Result<Languages> read_languages(const TranslateFlags& flags);

/// A model's vocabulary: its size, and the settings that its training recorded, if any.
struct TrainedVocabulary {
  std::string model;  ///< the model's source, for messages
  std::int64_t size = 0;
  Settings settings;
};
/// Returns a Problem for each vocabulary that differs from the one recorded at training. Without a record it
/// compares the sizes only.
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
  std::vector<std::uint32_t> source;  // with the begin and end tokens
  VideoSourcePtr video;               // for a caption: the video that the line names
  std::int64_t frames = 0;            // the number of frames that the model reads
  std::vector<Hypothesis> hypotheses;

  std::int64_t length() const { return frames + std::ssize(source); }  ///< 0: nothing to translate
};
/// Sentences that the model computes as one batch. The composition of a batch changes the last bits of its
/// scores. So it depends on the lines and --batch only, and not on threads or ranks.
using SentenceBatch = std::vector<SourceLine*>;

class Translation {
 public:
  /// `flags` and `languages` must outlive it. `frame_features` is the number of features of a video's frame;
  /// 0: the input is text.
  Translation(const TranslateFlags& flags, const Languages& languages, std::int64_t frame_features = 0);

  /// Reads the next lines in the order of the input: a window, from which batches are made. Empty: end of
  /// input.
  std::vector<SourceLine> read_window(InputLines& input);
  /// Returns batches of sentences of similar length, the longest first, without the empty lines.
  std::vector<SentenceBatch> batches(std::vector<SourceLine>& window) const;
  /// Translates the batches with `threads` threads, each on one core and with one batch at a time. Throws the
  /// first error of a thread.
  void translate(const GnmtTranslator& translator, std::span<const SentenceBatch> batches, int threads) const;
  /// Translates videos to captions in the same way.
  void translate(const S2vtCaptioner& captioner, std::span<const SentenceBatch> batches, int threads) const;
  /// Translates over the stages of a pipeline; this rank holds the stage `mine`. Each of `lanes` is a
  /// communicator over all its ranks, used by one thread. Collective. Only the last stage gets the
  /// hypotheses.
  void translate(const GnmtTranslator& mine, const GnmtStages& stages, std::span<const SentenceBatch> batches,
                 std::span<const std::unique_ptr<Communicator>> lanes) const;
  /// Returns the output line and counts it. Throws NumericError if its score is not finite.
  std::string written(const SourceLine& line);

  const TranslationCounts& counts() const { return counts_; }
  /// Returns "3 sentences of more than 80 tokens are cut ...", or an empty text if none was cut.
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
/// Exchanges the hypotheses that each pipeline of `stages` consecutive ranks found for its share. Afterwards
/// all ranks have the `keep` best of each sentence. Collective over `world`.
void exchange_hypotheses(Communicator& world, std::span<const SentenceBatch> batches, std::size_t keep,
                         int stages = 1);

}  // namespace millrace
