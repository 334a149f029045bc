#include "data/text/sentencepiece.h"

#include <sentencepiece_processor.h>

#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

using Processor = sentencepiece::SentencePieceProcessor;

class SentencePieceSegmenter : public Segmenter {
 public:
  explicit SentencePieceSegmenter(std::shared_ptr<const Processor> processor)
      : processor_(std::move(processor)) {}

  void segment(std::string_view line, std::vector<std::uint32_t>& numbers) override {
    const sentencepiece::util::Status status = processor_->Encode({line.data(), line.size()}, &pieces_);
    if (!status.ok()) throw DataError("SentencePiece cannot encode a line: " + status.ToString());
    for (const int piece : pieces_) numbers.push_back(static_cast<std::uint32_t>(piece));
  }

 private:
  std::shared_ptr<const Processor> processor_;
  std::vector<int> pieces_;
};

}  // namespace

Result<SentencePieceModel> read_sentencepiece_model(const std::string& path) {
  const Result<std::string> bytes = read_regular_file(path);
  if (!bytes) return bytes.problems();
  auto processor = std::make_shared<Processor>();
  const sentencepiece::util::Status status =
      processor->LoadFromSerializedProto({bytes->data(), bytes->size()});
  if (bytes->empty() || !status.ok())
    return Problem{path, "is no SentencePiece model", "a .model file of spm_train"};
  std::vector<std::string> pieces;
  for (int i = 0; i < processor->GetPieceSize(); ++i) pieces.push_back(processor->IdToPiece(i));
  Result<Vocabulary> vocabulary = Vocabulary::of(std::move(pieces), TokenKind::SentencePiece, path);
  if (!vocabulary) return vocabulary.problems();
  return SentencePieceModel{std::make_shared<const Vocabulary>(std::move(*vocabulary)),
                            [processor] { return std::make_unique<SentencePieceSegmenter>(processor); }};
}

}  // namespace millrace
