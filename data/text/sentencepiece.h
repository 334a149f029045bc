// SentencePiece models (Kudo and Richardson, EMNLP 2018) by their own library. The library has a protobuf of
// its own and is therefore linked by programs without LibTorch only.
#pragma once

#include <string>

#include "data/text/segmenter.h"
#include "runtime/base/result.h"

namespace millrace {

struct SentencePieceModel {
  std::shared_ptr<const Vocabulary> vocabulary;
  SegmenterMaker segmenter;
};

/// Reads a .model file. Problems: no such file, not a model, pieces that a vocabulary cannot have.
Result<SentencePieceModel> read_sentencepiece_model(const std::string& path);

}  // namespace millrace
