// GNMT as a translator: the trained weights of any plan, an encoder that runs once and a decoder that goes on
// word by word.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/translate/beam_search.h"
#include "models/translate/decoding_layers.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/model/layered_model.h"

namespace millrace {

class GnmtTranslator;

/// One batch of sentences in the layers that a translator holds: encoded once, then a word at a time. Rows
/// are NextWords'. What layers of other stages have made is in `values` at a call; what these make is added,
/// the attention's probabilities as kGnmtLooks.
/// All functions need no_grad. The translator outlives it.
class GnmtDecoder {
 public:
  /// `source` int64 [S, B], padded with 0. Only words below `limit` are ever offered (0: all).
  GnmtDecoder(const GnmtTranslator& of, at::Tensor source, std::int64_t limit);
  /// First, once. Tensors [S, B, features].
  void encode(TensorsByName& values);
  /// The rows read `words`, int64 [R]. Tensors [R, features]; of the classifier [R, limit].
  void step(const at::Tensor& words, TensorsByName& values);
  void reorder(const at::Tensor& from);

 private:
  const GnmtTranslator& of_;
  at::Tensor source_, sentence_;          // int64 [S, B], [R]
  std::optional<BahdanauMemory> memory_;  // where the attention is held
  LstmStates states_;                     // of the decoder's LSTMs
  std::vector<at::Tensor> classifier_;    // weight and bias of the words below the limit
};

/// All layers of a GNMT, or those of a stage. Immutable when made; thread-safe.
class GnmtTranslator {
 public:
  /// Sizes, layers and whether the embeddings are shared are those of the tensors. Problems: names or shapes
  /// that are no GNMT's, all at once, each with its file; tensors that GNMT has not are not looked at.
  static Result<GnmtTranslator> from(const WeightFiles& files);
  /// Holds `layers` alone; of the others only headers are read.
  static Result<GnmtTranslator> from(const WeightFiles& files, const std::vector<std::string>& layers);
  /// Makes a translator of tensors in memory, which it keeps. `whose` names them in messages.
  static Result<GnmtTranslator> from(const NamedTensors& weights, const std::string& whose);
  /// The model that they are of, without dropout. Problems as above.
  static Result<LayeredModel> model_of(const WeightFiles& files);

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t layers() const { return layers_; }  ///< of the encoder, and of the decoder
  std::int64_t hidden() const { return hidden_; }
  std::int64_t bytes() const;  ///< of the weights that it holds
  const LayeredModel& model() const { return model_; }

  /// Encodes sentences, each with its begin and end, and stands before their first words. Of all layers.
  std::unique_ptr<NextWords> begin(const std::vector<std::vector<std::uint32_t>>& sentences,
                                   std::int64_t limit = 0) const;

 private:
  friend class GnmtDecoder;
  class Whole;
  GnmtTranslator() = default;
  using Holds = std::function<bool(const std::string& layer)>;
  static Result<GnmtTranslator> from(const FindWeight& find, const std::string& first, const Holds& holds);

  std::int64_t vocabulary_ = 0, layers_ = 0, hidden_ = 0;
  LayeredModel model_;
  std::vector<HeldLayer> encoder_, decoder_;  // in the model's order
};

/// Sentences side by side, int64 [S, B], padded with 0.
at::Tensor gnmt_source(const std::vector<std::vector<std::uint32_t>>& sentences);

}  // namespace millrace
