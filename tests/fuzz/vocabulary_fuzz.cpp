// Vocabularies of all kinds, and text from their numbers.
#include "data/text/vocabulary.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  for (const TokenKind kind : {TokenKind::Bpe, TokenKind::WordPiece, TokenKind::SentencePiece}) {
    const Result<Vocabulary> vocabulary = Vocabulary::parse(text_of(data, size), kind, "fuzz");
    if (!vocabulary) {
      require_explained(vocabulary);
      continue;
    }
    std::vector<std::uint32_t> all(vocabulary->size());
    for (std::uint32_t i = 0; i < vocabulary->size(); ++i) {
      require(vocabulary->number(vocabulary->token(i)) == i);
      all[i] = i;
    }
    vocabulary->text(all);
  }
  return 0;
}
