// The data sets of text for each model over tokens. Fields of a form (SampleForm) are found by name.
#pragma once

#include "data/files/left_out.h"
#include "data/language/token_source.h"
#include "data/language/video_source.h"
#include "data/loading/dataset.h"

namespace millrace {

/// The special tokens of GNMT's vocabularies.
struct TranslationTokens {
  std::int64_t begin = 2, end = 3;
};
/// The special tokens of BERT's vocabularies.
struct BertTokens {
  std::int64_t begin = 101, separator = 102, mask = 103, first_word = 104;
};

struct LanguageOptions {
  std::vector<FieldSpec> fields;     ///< fields of the model
  std::int64_t longest = INT64_MAX;  ///< tokens of a sample, with begin and end
  std::uint64_t seed = 0;
  bool train = true;            ///< false: no sample is left out
  int length_buckets = 0;       ///< parallel text: buckets of MLPerf v0.6's sampler; 0: PipeDream's sampler
  bool random_windows = false;  ///< running text in training: windows have random lengths
};

/// Makes a data set of pairs of sentences. Its fields are source (begin, tokens, end), target (begin, tokens)
/// and labels (tokens, end). It measures the lengths of source and target, and counts labels. Training leaves
/// out pairs with a side that is too long. Training is ordered by `bucketed_order` with both lengths as the
/// key, or by `length_bucket_order`. Evaluation begins with the longest pairs.
Result<std::shared_ptr<const Dataset>> parallel_text(TokenSourcePtr source, TokenSourcePtr target,
                                                     const LanguageOptions& options);

/// Makes a data set of running text, as PyTorch's batchify does. The whole text is one row of tokens. It is
/// cut into `columns` rows of equal length; tokens that are left over are dropped. Each row is cut into
/// windows of `longest` tokens; the last may be shorter. Sample w * columns + c is window w of row c, so a
/// step of `columns` samples reads all rows side by side. The fields are tokens and labels (the next tokens).
/// It is never shuffled. `end` is a token appended to each sentence, or -1 for none.
///
/// With LanguageOptions::random_windows a length is max(5, int(N(b, 5))), where b is `longest`, or half of it
/// in 5 % of all draws (arXiv 1708.02182, section 5). Each epoch has lengths of its own, drawn from the seed.
/// Every epoch has the number of windows that would cover a row on average. An epoch's lengths are drawn anew
/// until so many windows cover the row if only the last one is cut.
Result<std::shared_ptr<const Dataset>> running_text(TokenSourcePtr text, std::int64_t columns,
                                                    std::int64_t end, const LanguageOptions& options);

/// Makes a data set of BERT's pairs of segments. Empty sentences separate the documents. The pairs are made
/// once from the seed as create_pretraining_data does. They are masked when they are read, from (seed, epoch,
/// index). 15 % of the tokens are masked: 80 % of them become [MASK], 10 % stay, 10 % become random tokens.
/// The fields are input_ids, token_type_ids, masked_positions, masked_labels and next_sentence. It measures
/// the lengths of tokens and masked tokens, and counts masked tokens.
Result<std::shared_ptr<const Dataset>> bert_pairs(TokenSourcePtr text, const BertTokens& tokens,
                                                  const LanguageOptions& options);

/// The files of a split of BERT's records, and entries of its folder that are no records.
struct RecordFiles {
  std::vector<std::string> paths;
  LeftOut left_out;
};
/// Makes a data set of BERT's instances in TFRecord files, which MLPerf's and the DLIO kit's generators
/// write. Their features are int64 input_ids, input_mask, segment_ids, masked_lm_positions, masked_lm_ids,
/// next_sentence_labels and float masked_lm_weights. They are padded with zeros, which are cut off here, and
/// are masked already. Fields and counts are those of bert_pairs(). Every file is read once when it is
/// opened, which checks the sums of frames and payloads, the features and the numbers. Records whose mask is
/// all zeros are left out. Problems name file and byte.
Result<std::shared_ptr<const Dataset>> bert_records(const RecordFiles& files, const LanguageOptions& options);
/// Returns all files of FOLDER/SPLIT/, or those of FOLDER named SPLIT*.tfrecord*, sorted by name. Training
/// takes part-NNNNN-of-NNNNN in FOLDER where there are none of these.
RecordFiles record_files(const std::string& folder, const std::string& split);

/// Returns the words of FOLDER/SPLIT.txt between spaces, for running text. The vocabulary has the most
/// frequent words of train.txt, numbered as `millrace data text vocab` numbers them, and at most `limit`
/// tokens; a note counts the words that it lacks. Null: there is no such file. Throws DataError.
Result<TokenSourcePtr> words_in_folder(const std::string& folder, DataSplit split, std::int64_t limit);

/// The captions of videos: sentence i describes video[i].
struct Captions {
  TokenSourcePtr text;
  std::vector<std::int64_t> video;
  std::string vocabulary = {};          ///< fingerprint of the vocabulary; empty: there is none
  std::vector<std::string> notes = {};  ///< Dataset::notes
};
/// Makes a data set of captions and their videos. A sample is a row of steps: frames, then words. The fields
/// are frames (the first ones, as many as `longest` leaves beside the caption), tokens (0 for each frame,
/// begin, words) and labels (0 for each frame, words, end). It measures the number of steps, and counts words
/// and end. Training leaves out captions that leave no room for a frame. Samples are ordered by their steps
/// as pairs of sentences are.
Result<std::shared_ptr<const Dataset>> captioned_videos(VideoSourcePtr videos, Captions captions,
                                                        const LanguageOptions& options);
/// Makes a data set of FOLDER/SPLIT.captions (lines of video, tab, caption), FOLDER/vocabulary.txt (a word in
/// each line) and FOLDER/features/VIDEO.npy. Returns null if there is no such split. Problems name file and
/// line.
Result<std::shared_ptr<const Dataset>> captions_in_folder(const std::string& folder, DataSplit split,
                                                          const LanguageOptions& options);
/// Makes `size` videos with a caption each from the seed.
Result<std::shared_ptr<const Dataset>> made_up_captions(std::int64_t size, const LanguageOptions& options);

/// Returns the names that files use for a split. A test split is also called val or valid.
std::vector<std::string> split_names(DataSplit split);

/// Returns whether the fields have a form of text (SampleForm). The form is what the model declares; the
/// names of the fields do not matter.
bool reads_text(const std::vector<FieldSpec>& fields);
/// Makes the data set of a model over tokens for `--data`: see docs/language.md. Returns null if there is no
/// such split. reads_text() must be true of the fields.
Result<std::shared_ptr<const Dataset>> make_language_dataset(const DatasetOptions& options);

}  // namespace millrace
