// The models over tokens, with their sizes. What the command line calls them: registry.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/layers/basic_layers.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// Two uses of one matrix: one parameter, or one each.
enum class Embeddings { Separate, Shared };

/// A decoder by clusters (adaptive_log_softmax): without cutoffs a matrix and a softmax of all tokens.
struct AdaptiveSoftmax {
  std::vector<std::int64_t> cutoffs;
  double divisor = 4;
};

/// Initial values and places of dropout.
enum class GnmtForm {
  PipeDream,  ///< PyTorch's values; dropout before LSTMs only, not on the context
  MLPerf,     ///< all uniform in +-0.1; dropout also on both embeddings and on the context
};

struct GnmtOptions {
  std::string name = "gnmt";
  std::int64_t layers = 4;  ///< of the encoder, and of the decoder; at least 2
  std::int64_t hidden = 1024;
  std::int64_t vocabulary = 32'320;  ///< of both languages
  double dropout = 0.2;
  double smoothing = 0.1;                        ///< of the labels
  Embeddings embeddings = Embeddings::Separate;  ///< of source and target
  GnmtForm form = GnmtForm::PipeDream;
  std::int64_t nominal_length = 50;  ///< of source and target in a profile
};
/// GNMT as MLPerf and PipeDream have it (arXiv 1609.08144): names and shapes of their state_dict. Fields,
/// time-major, padded with 0: source [S, B], target [T, B] (begins with BOS), labels [T, B] (ends in EOS).
/// Head: cross-entropy over the labels that are no padding; count "tokens".
LayeredModel gnmt_model(const GnmtOptions& options);

struct BertOptions {
  std::string name = "bert_base";
  std::int64_t layers = 12, hidden = 768, heads = 12, feed_forward = 3072;
  std::int64_t vocabulary = 30'522, positions = 512;
  double dropout = 0.1;
  GeluForm gelu = GeluForm::Erf;
  std::int64_t nominal_length = 128;
};
/// BERT for pre-training (arXiv 1810.04805): names and shapes of Hugging Face's BertForPreTraining. The
/// decoder of masked tokens is the word embedding. Fields, padded with 0: input_ids, token_type_ids [B, T],
/// masked_positions, masked_labels [B, P], next_sentence [B] (1: the second part is not what followed).
/// Heads: mlm (over masked labels that are not 0; count "masked") and nsp, added.
LayeredModel bert_model(const BertOptions& options);

struct TransformerLmOptions {
  std::string name = "transformer_lm";
  std::int64_t layers = 2, features = 128, heads = 2, feed_forward = 128;
  std::int64_t vocabulary = 33'278;
  double dropout = 0.2;
  Embeddings embeddings = Embeddings::Separate;  ///< the decoder's matrix
  double max_norm = 0;                           ///< of the rows of separate embeddings; 0: none
  AdaptiveSoftmax softmax = {};                  ///< with separate embeddings
  std::int64_t nominal_length = 32;
};
/// A causal language model of post-norm encoder layers, as PyTorch's word_language_model example: names and
/// shapes of its state_dict. Fields: tokens [B, T], labels [B, T] (the tokens after; -100: none).
LayeredModel transformer_lm_model(const TransformerLmOptions& options);

struct AwdLstmOptions {
  std::string name = "awd_lstm";
  std::int64_t layers = 3, features = 400, hidden = 1150;  ///< of the embedding; of all LSTMs but the last
  std::int64_t vocabulary = 33'278;
  double dropout = 0.4;                               ///< of the last LSTM's output
  double hidden_dropout = 0.25;                       ///< between LSTMs
  double input_dropout = 0.4;                         ///< of what the first LSTM reads
  double embedding_dropout = 0.1;                     ///< of whole rows of the embedding
  double weight_drop = 0.5;                           ///< of weight_hh
  double activation_penalty = 2, change_penalty = 1;  ///< AR and TAR; both 0: no second head
  Embeddings embeddings = Embeddings::Shared;         ///< the decoder's matrix; shared: the last LSTM has
                                                      ///< `features` units, else `hidden`
  double max_norm = 0;                                ///< of the rows of separate embeddings; 0: none
  AdaptiveSoftmax softmax = {};                       ///< with separate embeddings
  std::int64_t nominal_length = 70;
};
/// AWD-LSTM (arXiv 1708.02182) over text that runs on: names and shapes of salesforce/awd-lstm-lm's
/// state_dict as it is with weight drop. States go on from window to window. Fields, time-major: tokens
/// [T, B], labels [T, B] (the tokens after; -100: none). Heads: tokens, and activations (AR and TAR), added.
LayeredModel awd_lstm_model(const AwdLstmOptions& options);

struct S2vtOptions {
  std::string name = "s2vt";
  std::int64_t frame_features = 4096;  ///< of a frame as the data have it: VGG's fc7
  std::int64_t features = 500;         ///< of a frame and of a word as the LSTMs read them
  std::int64_t hidden = 1000;          ///< of both LSTMs
  std::int64_t vocabulary = 46'168;
  double dropout = 0;  ///< of frames, of embedded words and of what both LSTMs give
  std::int64_t nominal_length = 80;
};
/// Captions of videos (arXiv 1505.00487) as its authors' Caffe network has it: an LSTM over frames, one over
/// what the first gives beside the word before. Layers have that network's names, parameters PyTorch's.
/// Fields, time-major, one step after another: frames [T, B, frame_features] (then zeros), tokens [T, B]
/// (padding 0 on frames, then BOS and the words), labels [T, B] (0 on frames, then the words and EOS). Head:
/// cross-entropy over the labels that are no padding; count "tokens".
LayeredModel s2vt_model(const S2vtOptions& options);

}  // namespace millrace
