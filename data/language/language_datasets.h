// Data sets of text: what each model over tokens reads. Fields of a form (SampleForm) are found by name.
#pragma once

#include "data/language/token_source.h"
#include "data/language/video_source.h"
#include "data/loading/dataset.h"

namespace millrace {

/// Numbers of GNMT's vocabulary files.
struct TranslationTokens {
  std::int64_t begin = 2, end = 3;
};
/// The special tokens of BERT's vocabularies.
struct BertTokens {
  std::int64_t begin = 101, separator = 102, mask = 103, first_word = 104;
};

struct LanguageOptions {
  std::vector<FieldSpec> fields;     ///< of the model
  std::int64_t longest = INT64_MAX;  ///< tokens of a sample, with begin and end
  std::uint64_t seed = 0;
  bool train = true;            ///< else nothing is left out
  int length_buckets = 0;       ///< of parallel text: MLPerf v0.6's sampler; 0: PipeDream's
  bool random_windows = false;  ///< of running text in training: windows of drawn lengths
};

/// Pairs of sentences. Fields source (begin, tokens, end), target (begin, tokens), labels (tokens, end);
/// lengths (source, target), count: labels. Pairs of which a side is too long are left out of training.
/// Ordered by `bucketed_order`, key: both lengths, or by `length_bucket_order`; evaluation longest first.
Result<std::shared_ptr<const Dataset>> parallel_text(TokenSourcePtr source, TokenSourcePtr target,
                                                     const LanguageOptions& options);

/// The whole text as one row of tokens, cut into `columns` rows of equal length (what is left over is
/// dropped), each cut into windows of `longest` tokens, the last of which may be shorter: PyTorch's batchify.
/// Sample w * columns + c is window w of row c: a step of `columns` samples reads all rows side by side.
/// Fields tokens, labels (the tokens after). Never shuffled. `end`: appended to each sentence, or -1.
///
/// LanguageOptions::random_windows: lengths are max(5, int(N(b, 5))), b `longest`, or half of it in 5 % of
/// all draws (arXiv 1708.02182, section 5), other ones in each epoch, from the seed. Every epoch has as many
/// windows as would cover a row on average: an epoch's lengths are drawn anew until so many do, cutting the
/// last one only.
Result<std::shared_ptr<const Dataset>> running_text(TokenSourcePtr text, std::int64_t columns,
                                                    std::int64_t end, const LanguageOptions& options);

/// BERT's pairs of segments, of documents that are separated by empty sentences: made once from the seed as
/// create_pretraining_data does, masked when read, from (seed, epoch, index): 15 % of the tokens, of these
/// 80 % [MASK], 10 % as they are, 10 % random. Fields input_ids, token_type_ids, masked_positions,
/// masked_labels, next_sentence; lengths (tokens, masked), count: masked.
Result<std::shared_ptr<const Dataset>> bert_pairs(TokenSourcePtr text, const BertTokens& tokens,
                                                  const LanguageOptions& options);

/// BERT's instances as TFRecord files, which MLPerf's and the DLIO kit's generators write: int64 input_ids,
/// input_mask, segment_ids, masked_lm_positions, masked_lm_ids, next_sentence_labels, float
/// masked_lm_weights, padded with zeros, which are cut off here. Masking is that of the files. Fields and
/// counts as bert_pairs'. Every file is read once when it is opened: sums of frames and payloads, features,
/// numbers. Problems: with file and byte.
Result<std::shared_ptr<const Dataset>> bert_records(const std::vector<std::string>& files,
                                                    const LanguageOptions& options);
/// All files of FOLDER/SPLIT/, or those of FOLDER named SPLIT*.tfrecord*, by name.
std::vector<std::string> record_files(const std::string& folder, const std::string& split);

/// The captions of videos: sentence i describes video[i].
struct Captions {
  TokenSourcePtr text;
  std::vector<std::int64_t> video;
  std::string vocabulary = {};          ///< its fingerprint; empty: there is none
  std::vector<std::string> notes = {};  ///< Dataset::notes
};
/// A sample is a caption and its video, one step after another: frames, then words. Fields frames (as many as
/// `longest` leaves beside the caption, the first ones), tokens (0 for each frame, begin, words), labels (0
/// for each frame, words, end); length: all steps; count: words and end. Captions that leave no frame are
/// left out of training. Ordered as pairs of sentences by their steps.
Result<std::shared_ptr<const Dataset>> captioned_videos(VideoSourcePtr videos, Captions captions,
                                                        const LanguageOptions& options);
/// FOLDER/SPLIT.captions (lines: video, tab, caption), vocabulary.txt (a word a line), features/VIDEO.npy.
/// Null: no such split. Problems: with file and line.
Result<std::shared_ptr<const Dataset>> captions_in_folder(const std::string& folder, DataSplit split,
                                                          const LanguageOptions& options);
/// `size` videos with a caption each, from the seed.
Result<std::shared_ptr<const Dataset>> made_up_captions(std::int64_t size, const LanguageOptions& options);

/// A test split is also called val or valid.
std::vector<std::string> split_names(DataSplit split);

/// Whether the fields are of a form of text: what a model says, not what its fields are called.
bool reads_text(const std::vector<FieldSpec>& fields);
/// The data set of a model over tokens for `--data`: see docs/language.md. Null where there is no such split.
/// Only where reads_text.
Result<std::shared_ptr<const Dataset>> make_language_dataset(const DatasetOptions& options);

}  // namespace millrace
