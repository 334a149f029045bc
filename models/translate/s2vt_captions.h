// S2VT as one who says captions: a video's frames are seen once, then a word follows the other.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/translate/beam_search.h"
#include "models/translate/decoding_layers.h"

namespace millrace {

/// Immutable when made; thread-safe.
class S2vtCaptioner {
 public:
  /// Sizes are those of the tensors. Problems: names or shapes that are no S2VT's, all at once, each with its
  /// file; tensors that S2VT has not are not looked at.
  static Result<S2vtCaptioner> from(const WeightFiles& files);

  std::int64_t vocabulary() const { return vocabulary_; }
  std::int64_t frame_features() const { return frame_features_; }

  /// Sees videos, float32 [frames, frame_features] each, and stands before their first words. Only words
  /// below `limit` are ever offered (0: all). Steps look at nothing: attention is [R, 0].
  std::unique_ptr<NextWords> begin(const std::vector<at::Tensor>& videos, std::int64_t limit = 0) const;

 private:
  class Speaker;
  S2vtCaptioner() = default;
  std::int64_t vocabulary_ = 0, frame_features_ = 0;
  std::vector<HeldLayer> layers_;
};

}  // namespace millrace
