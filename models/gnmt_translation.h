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

#include "models/beam_search.h"
#include "runtime/checkpoint/initial_weights.h"
#include "runtime/stage/layered_model.h"

namespace millrace {

/// Immutable when made; thread-safe.
class GnmtTranslator {
 public:
  /// Sizes, layers and whether the embeddings are shared are those of the tensors. Problems: names or shapes
  /// that are no GNMT's, all at once, each with its file; tensors that GNMT has not are not looked at.
  static Result<GnmtTranslator> from(const WeightFiles& files);
  /// Of tensors in memory, which it keeps; `whose` names them in messages.
  static Result<GnmtTranslator> from(const NamedTensors& weights, const std::string& whose);

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t layers() const { return layers_; }
  std::int64_t hidden() const { return hidden_; }

  /// Encodes sentences, each with its begin and end, and stands before their first words. Only words
  /// below `limit` are ever offered (0: all).
  std::unique_ptr<NextWords> begin(const std::vector<std::vector<std::uint32_t>>& sentences,
                                   std::int64_t limit = 0) const;

 private:
  class Decoder;
  GnmtTranslator() = default;
  struct Weight;
  using FindWeight = std::function<std::optional<Weight>(const std::string& name)>;
  static Result<GnmtTranslator> from(const FindWeight& find, const std::string& first);
  std::vector<at::Tensor> parameters_of(const NamedLayer& layer) const;
  std::vector<at::Tensor> parameters_of(const std::string& layer) const;
  at::Tensor encode(const at::Tensor& source) const;

  std::int64_t vocabulary_ = 0, layers_ = 0, hidden_ = 0;
  LayeredModel model_;
  std::map<std::string, at::Tensor> weights_;  // float32
};

}  // namespace millrace
