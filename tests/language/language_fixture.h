// Small models over tokens on made-up text, through the real data sets and the real loader.
#pragma once

#include "data/language/language_datasets.h"
#include "data/loading/dataset.h"
#include "models/language_models.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {

constexpr std::int64_t kVocabulary = 37, kLength = 12;

inline LayeredModel small_gnmt(double dropout, Embeddings embeddings = Embeddings::Separate,
                               GnmtForm form = GnmtForm::PipeDream) {
  return gnmt_model({.layers = 2,
                     .hidden = 8,
                     .vocabulary = kVocabulary,
                     .dropout = dropout,
                     .embeddings = embeddings,
                     .form = form,
                     .nominal_length = kLength});
}

inline LayeredModel small_bert(double dropout) {
  return bert_model({.layers = 2,
                     .hidden = 8,
                     .heads = 2,
                     .feed_forward = 16,
                     .vocabulary = kVocabulary,
                     .positions = 24,
                     .dropout = dropout,
                     .nominal_length = 20});
}

/// Two clusters.
inline AdaptiveSoftmax small_clusters() {
  return {.cutoffs = {9, 20}, .divisor = 2};
}

inline LayeredModel small_lm(double dropout, Embeddings embeddings = Embeddings::Separate,
                             AdaptiveSoftmax softmax = {}) {
  return transformer_lm_model({.layers = 2,
                               .features = 8,
                               .heads = 2,
                               .feed_forward = 16,
                               .vocabulary = kVocabulary,
                               .dropout = dropout,
                               .embeddings = embeddings,
                               .softmax = std::move(softmax),
                               .nominal_length = 7});
}

/// `dropout`: of every kind.
inline LayeredModel small_awd(double dropout, Embeddings embeddings = Embeddings::Shared,
                              AdaptiveSoftmax softmax = {}) {
  return awd_lstm_model({.layers = 3,
                         .features = 8,
                         .hidden = 12,
                         .vocabulary = kVocabulary,
                         .dropout = dropout,
                         .hidden_dropout = dropout,
                         .input_dropout = dropout,
                         .embedding_dropout = dropout,
                         .weight_drop = dropout,
                         .embeddings = embeddings,
                         .softmax = std::move(softmax),
                         .nominal_length = 7});
}

inline LayeredModel small_s2vt(double dropout) {
  return s2vt_model({.frame_features = 6,
                     .features = 8,
                     .hidden = 10,
                     .vocabulary = kVocabulary,
                     .dropout = dropout,
                     .nominal_length = 20});
}

inline std::unique_ptr<BatchSource> text_batches(const LayeredModel& model, int microbatch,
                                                 int microbatches) {
  const std::int64_t per_step = std::int64_t{microbatch} * microbatches;
  const auto data = *make_dataset({.path = "synthetic:90",
                                   .fields = model.fields,
                                   .seed = 5,
                                   .dimensions = model.dimensions,
                                   .per_step = per_step});
  LoaderOptions options{
      .microbatch = microbatch, .microbatches_per_step = microbatches, .seed = 5, .workers = 0};
  options.read_for(model);
  return std::move(*make_loader(data, options));
}

}  // namespace millrace
