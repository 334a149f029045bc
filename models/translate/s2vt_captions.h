// Makes captions with S2VT. A video's frames are read once, then words are generated one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/translate/beam_search.h"
#include "models/translate/decoding_layers.h"

namespace millrace {

/// The trained layers of an S2VT. Immutable when made; thread-safe.
class S2vtCaptioner {
 public:
  /// Reads weights. The tensors determine the sizes. Problems: names or shapes that do not fit an S2VT, all
  /// at once, each with its file. Tensors of other names are ignored.
  static Result<S2vtCaptioner> from(const WeightFiles& files);

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t frame_features() const { return frame_features_; }

  /// Reads videos, float32 [frames, frame_features] each. The result gives the first words next. Only words
  /// below `limit` are ever offered (0: all). There is no attention: it is [R, 0].
  std::unique_ptr<NextWords> begin(const std::vector<at::Tensor>& videos, std::int64_t limit = 0) const;

 private:
  class Speaker;
  S2vtCaptioner() = default;
  std::int64_t vocabulary_ = 0, frame_features_ = 0;
  std::vector<HeldLayer> layers_;
};

}  // namespace millrace
