// The models over tokens, with their sizes. registry.h has their names on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/layers/basic_layers.h"
#include "runtime/model/layered_model.h"

namespace millrace {

/// Whether two layers share one embedding matrix or have one each.
enum class Embeddings { Separate, Shared };

/// A decoder by clusters (adaptive_log_softmax). Without cutoffs it is a matrix and a softmax of all tokens.
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
  std::int64_t layers = 4;  ///< layers of the encoder, and of the decoder; at least 2
  std::int64_t hidden = 1024;
  std::int64_t vocabulary = 32'320;  ///< size of each language's vocabulary
  double dropout = 0.2;
  double smoothing = 0.1;                        ///< label smoothing
  Embeddings embeddings = Embeddings::Separate;  ///< whether source and target share one
  GnmtForm form = GnmtForm::PipeDream;
  std::int64_t nominal_length = 50;  ///< length of source and target in a profile
};
/// Makes GNMT (arXiv 1609.08144) with the names and shapes of MLPerf's and PipeDream's state_dict. Its fields
/// are time-major and padded with 0: source [S, B], target [T, B] (begins with BOS) and labels [T, B] (ends
/// in EOS). Its head is cross-entropy over the labels that are no padding, with the count "tokens".
LayeredModel gnmt_model(const GnmtOptions& options);

struct BertOptions {
  std::string name = "bert_base";
  std::int64_t layers = 12, hidden = 768, heads = 12, feed_forward = 3072;
  std::int64_t vocabulary = 30'522, positions = 512;
  double dropout = 0.1;
  GeluForm gelu = GeluForm::Erf;
  std::int64_t nominal_length = 128;
};
/// Makes BERT for pre-training (arXiv 1810.04805) with the names and shapes of Hugging Face's
/// BertForPreTraining. The decoder of masked tokens is the word embedding. Its fields are padded with 0:
/// input_ids and token_type_ids [B, T], masked_positions and masked_labels [B, P], and next_sentence [B] (1:
/// the second part did not follow the first). Its heads are mlm (over masked labels that are not 0; count
/// "masked") and nsp; the loss is their sum.
LayeredModel bert_model(const BertOptions& options);

struct TransformerLmOptions {
  std::string name = "transformer_lm";
  std::int64_t layers = 2, features = 128, heads = 2, feed_forward = 128;
  std::int64_t vocabulary = 33'278;
  double dropout = 0.2;
  Embeddings embeddings = Embeddings::Separate;  ///< whether the decoder has a matrix of its own
  double max_norm = 0;                           ///< largest norm of rows of separate embeddings; 0: none
  AdaptiveSoftmax softmax = {};                  ///< needs separate embeddings
  std::int64_t nominal_length = 32;
};
/// Makes a causal language model of post-norm encoder layers, with the names and shapes of the state_dict of
/// PyTorch's word_language_model example. Its fields are tokens [B, T] and labels [B, T] (the next tokens;
/// -100: none).
LayeredModel transformer_lm_model(const TransformerLmOptions& options);

struct AwdLstmOptions {
  std::string name = "awd_lstm";
  std::int64_t layers = 3, features = 400,
               hidden = 1150;  ///< units of the embedding; of all LSTMs but the last
  std::int64_t vocabulary = 33'278;
  double dropout = 0.4;                               ///< dropout of the last LSTM's output
  double hidden_dropout = 0.25;                       ///< dropout between LSTMs
  double input_dropout = 0.4;                         ///< dropout of the first LSTM's input
  double embedding_dropout = 0.1;                     ///< dropout of whole rows of the embedding
  double weight_drop = 0.5;                           ///< dropout of weight_hh
  double activation_penalty = 2, change_penalty = 1;  ///< AR and TAR; both 0: no second head
  Embeddings embeddings = Embeddings::Shared;         ///< Shared: the decoder uses the embedding, and the
                                                      ///< last LSTM has `features` units, not `hidden`
  double max_norm = 0;           ///< largest norm of rows of separate embeddings; 0: none
  AdaptiveSoftmax softmax = {};  ///< needs separate embeddings
  std::int64_t nominal_length = 70;
};
/// Makes AWD-LSTM (arXiv 1708.02182) over running text, with the names and shapes of salesforce/awd-lstm-lm's
/// state_dict with weight drop. States continue from window to window. Its fields are time-major: tokens
/// [T, B] and labels [T, B] (the next tokens; -100: none). Its heads are tokens and activations (AR and TAR);
/// the loss is their sum.
LayeredModel awd_lstm_model(const AwdLstmOptions& options);

struct S2vtOptions {
  std::string name = "s2vt";
  std::int64_t frame_features = 4096;  ///< features of a frame in the data: VGG's fc7
  std::int64_t features = 500;         ///< features of a frame and of a word as the LSTMs read them
  std::int64_t hidden = 1000;          ///< units of each LSTM
  std::int64_t vocabulary = 46'168;
  double dropout = 0;  ///< dropout of frames, of embedded words and of the outputs of both LSTMs
  std::int64_t nominal_length = 80;
};
/// Makes S2VT (arXiv 1505.00487), which writes captions of videos, like its authors' Caffe network. One LSTM
/// reads frames, the second the first one's output and the word before. Layers have that network's names,
/// parameters PyTorch's. The fields are time-major: frames [T, B, frame_features] (then zeros), tokens [T, B]
/// (0 on frames, then BOS and the words) and labels [T, B] (0 on frames, then the words and EOS). Its head is
/// cross-entropy over the labels that are no padding, with the count "tokens".
LayeredModel s2vt_model(const S2vtOptions& options);

}  // namespace millrace
