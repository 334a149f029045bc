// Vocabularies, WordPiece, characters.
#include <gtest/gtest.h>

#include "data/text/segmenter.h"
#include "data/text/unicode.h"
#include "data/text/vocabulary.h"

namespace millrace {
namespace {

Vocabulary vocabulary_of(const std::string& text, TokenKind kind, std::int64_t pad_to = 8) {
  Result<Vocabulary> vocabulary = Vocabulary::parse(text, kind, "v", pad_to);
  EXPECT_TRUE(vocabulary) << to_string(vocabulary.problems());
  return std::move(*vocabulary);
}

TEST(Vocabulary, NumbersAreThoseOfGnmt) {
  const Vocabulary vocabulary = vocabulary_of("the\nne@@\nw\n", TokenKind::Bpe);
  EXPECT_EQ(vocabulary.size(), 8u);
  const char* const expected[] = {"<pad>", "<unk>", "<s>", "<\\s>", "the", "ne@@", "w", "madeupword0000"};
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(vocabulary.token(i), expected[i]);
  EXPECT_EQ(*vocabulary.pad(), 0u);
  EXPECT_EQ(vocabulary.unk(), 1u);
  EXPECT_EQ(*vocabulary.bos(), 2u);
  EXPECT_EQ(*vocabulary.eos(), 3u);
  EXPECT_EQ(vocabulary_of("a\nb\nc\nd\n", TokenKind::Bpe).size(), 16u) << "eight already: a whole eight more";
  EXPECT_EQ(vocabulary_of("a\nb\nc\nd\n", TokenKind::Bpe, 0).size(), 8u);
  EXPECT_EQ(vocabulary_of("a 7\nb 5\n", TokenKind::Bpe, 0).token(5), "b") << "counts are left out";
}

TEST(Vocabulary, WrongFilesAreRefused) {
  const auto refused = [](const std::string& text, TokenKind kind = TokenKind::Bpe) {
    return !Vocabulary::parse(text, kind, "v");
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("a\nb\na\n"));
  EXPECT_TRUE(refused("a\n\nb\n"));
  EXPECT_TRUE(refused("a 5\nb\n"));
  EXPECT_TRUE(refused("<unk>\na\n"));
  EXPECT_TRUE(refused("a\n\xff\n"));
  EXPECT_TRUE(refused("a\nb\n", TokenKind::WordPiece)) << "no [UNK]";
  EXPECT_TRUE(refused("<unk> 0\n", TokenKind::SentencePiece)) << "no tab";
}

TEST(Vocabulary, EqualFingerprintsMeanEqualVocabularies) {
  const Vocabulary one = vocabulary_of("a\nb\n", TokenKind::Bpe, 0);
  EXPECT_EQ(one.fingerprint(), vocabulary_of("a 2\nb 1\n", TokenKind::Bpe, 0).fingerprint());
  EXPECT_NE(one.fingerprint(), vocabulary_of("b\na\n", TokenKind::Bpe, 0).fingerprint());
  EXPECT_NE(one.fingerprint(), vocabulary_of("ab\n", TokenKind::Bpe, 0).fingerprint());
  EXPECT_NE(one.fingerprint(), vocabulary_of("a\nb\n", TokenKind::Bpe).fingerprint()) << "padded";
}

std::string text_of(const Vocabulary& vocabulary, std::initializer_list<const char*> tokens) {
  std::vector<std::uint32_t> numbers;
  for (const char* token : tokens) {
    EXPECT_TRUE(vocabulary.find(token)) << token;
    numbers.push_back(vocabulary.number(token));
  }
  return vocabulary.text(numbers);
}

TEST(Vocabulary, JoinsTokensToWords) {
  const Vocabulary bpe = vocabulary_of("ne@@\nw\nthe\na@@b\n@@\n", TokenKind::Bpe);
  EXPECT_EQ(text_of(bpe, {"<s>", "the", "ne@@", "ne@@", "w", "<unk>", "<\\s>", "<pad>"}), "the nenew <unk>");
  EXPECT_EQ(text_of(bpe, {"a@@b", "the"}), "a@@b the") << "only at the end";
  EXPECT_EQ(text_of(bpe, {"the", "ne@@"}), "the ne");
  const Vocabulary bert =
      vocabulary_of("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\nne\n##w\n##\n", TokenKind::WordPiece);
  EXPECT_EQ(text_of(bert, {"[CLS]", "the", "ne", "##w", "##", "[UNK]", "[SEP]"}), "the new ## [UNK]");
  const Vocabulary pieces =
      vocabulary_of("<unk>\t0\n<s>\t0\n</s>\t0\n▁the\t-1\n▁\t-2\nne\t-3\n<0xC3>\t-4\n<0xA9>\t-5\n",
                    TokenKind::SentencePiece);
  EXPECT_EQ(text_of(pieces, {"<s>", "▁the", "▁", "ne", "<0xC3>", "<0xA9>", "</s>"}), "the neé");
}

std::string wordpieces(const std::string& line, WordPieceOptions options = {}) {
  const auto vocabulary = std::make_shared<const Vocabulary>(vocabulary_of(
      "[UNK]\n[MASK]\nun\n##want\n##ed\n,\nrunn\n##ing\nlow\n##er\nnew\nthe\na\ncafe\n##s\n中\n国\n!\n-\nx\n",
      TokenKind::WordPiece));
  std::vector<std::uint32_t> numbers;
  wordpiece_segmenter(vocabulary, options)()->segment(line, numbers);
  std::string pieces;
  for (const std::uint32_t number : numbers)
    pieces += (pieces.empty() ? "" : " ") + vocabulary->token(number);
  return pieces;
}

TEST(WordPiece, TheExamplesOfBert) {
  EXPECT_EQ(wordpieces("UNwantéd,running"), "un ##want ##ed , runn ##ing");
  EXPECT_EQ(wordpieces("CAFÉS"), "cafe ##s");
  EXPECT_EQ(wordpieces("中国 a中a"), "中 国 a 中 a");
  EXPECT_EQ(wordpieces("new-est!"), "new - [UNK] !");
  EXPECT_EQ(wordpieces("low\xE2\x80\x8B"
                       "er"),
            "low ##er");
  EXPECT_EQ(wordpieces("[MASK]the"), "[UNK] [UNK] [UNK] the");
  EXPECT_EQ(wordpieces("[MASK]the", {.keep_special_tokens = true}), "[MASK] the");
  EXPECT_EQ(wordpieces("A a", {.casing = Casing::Cased}), "[UNK] a");
  EXPECT_EQ(wordpieces("lower", {.longest_word = 4}), "[UNK]");
  EXPECT_EQ(wordpieces(std::string("a\0\xEF\xBF\xBD\ta", 7)), "a a");
}

TEST(Unicode, CaseSpacesAndForms) {
  EXPECT_EQ(lower_case("ÄÖ İX ΟΔΟΣ"), "äö i\xCC\x87x οδοσ");
  EXPECT_EQ(single_spaced("\t a\xC2\xA0\xE3\x80\x80 b\r\n"), "a b");
  EXPECT_EQ(split_punctuation("Don't, «ja»!"), "Don ' t , « ja » !");
  EXPECT_EQ(normal_form("e\xCC\x81 ﬁ", NormalForm::Nfc), "é ﬁ");
  EXPECT_EQ(normal_form("e\xCC\x81 ﬁ", NormalForm::Nfkc), "é fi");
  EXPECT_EQ(first_invalid_utf8("0123456789é\xC3"), 12u);
  EXPECT_EQ(first_invalid_utf8("0123456789é"), std::string_view::npos);
  EXPECT_EQ(first_invalid_utf8("\xED\xA0\x80"), 0u) << "a surrogate";
}

}  // namespace
}  // namespace millrace
