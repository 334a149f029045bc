// Translates with the trained weights of a GNMT of any plan. The encoder runs once, the decoder word by word.
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

/// One batch of sentences in the layers that a translator holds. It is encoded once, then decoded a word at a
/// time. Rows are those of NextWords. When a function is called, `values` must have the tensors from other
/// stages; the function adds those of its own layers, and the attention's probabilities as kGnmtLooks. All
/// functions need no_grad. The translator must outlive the decoder.
class GnmtDecoder {
 public:
  /// `source` is int64 [S, B], padded with 0. Only words below `limit` are ever offered (0: all).
  GnmtDecoder(const GnmtTranslator& of, at::Tensor source, std::int64_t limit);
  /// Encodes the batch. Call it once, before step(). It adds tensors [S, B, features].
  void encode(TensorsByName& values);
  /// Makes all rows read `words`, int64 [R]. It adds tensors [R, features]; the classifier's is [R, limit].
  void step(const at::Tensor& words, TensorsByName& values);
  void reorder(const at::Tensor& from);

 private:
  const GnmtTranslator& of_;
  at::Tensor source_, sentence_;          // int64 [S, B], [R]
  std::optional<BahdanauMemory> memory_;  // set if the translator holds the attention
  LstmStates states_;                     // states of the decoder's LSTMs
  std::vector<at::Tensor> classifier_;    // weight and bias of the words below the limit
};

/// All layers of a GNMT, or those of a stage. Immutable when made; thread-safe.
class GnmtTranslator {
 public:
  /// Reads weights. The tensors determine sizes, layers and whether the embeddings are shared. Problems:
  /// names or shapes that do not fit a GNMT, all at once, each with its file. Tensors of other names are
  /// ignored.
  static Result<GnmtTranslator> from(const WeightFiles& files);
  /// Holds only `layers`, and reads only the headers of the other layers' tensors.
  static Result<GnmtTranslator> from(const WeightFiles& files, const std::vector<std::string>& layers);
  /// Makes a translator of tensors in memory, which it keeps. `whose` names them in messages.
  static Result<GnmtTranslator> from(const NamedTensors& weights, const std::string& whose);
  /// Returns the model, without dropout, that the weights belong to. Problems: those of from().
  static Result<LayeredModel> model_of(const WeightFiles& files);

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t layers() const { return layers_; }  ///< returns the layers of each of encoder and decoder
  std::int64_t hidden() const { return hidden_; }
  std::int64_t bytes() const;  ///< returns the bytes of the weights that it holds
  const LayeredModel& model() const { return model_; }

  /// Encodes sentences, each with its begin and end. The result gives the first words next. The translator
  /// must hold all layers.
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

/// Returns the sentences side by side, int64 [S, B], padded with 0.
at::Tensor gnmt_source(const std::vector<std::vector<std::uint32_t>>& sentences);

}  // namespace millrace
