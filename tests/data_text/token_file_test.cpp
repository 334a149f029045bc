// Token files: what is written is read, and nothing else is.
#include <gtest/gtest.h>

#include "data/text/token_file.h"
#include "runtime/base/random.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

Vocabulary numbered(std::uint32_t size) {
  std::vector<std::string> tokens{"<pad>", "<unk>", "<s>", "<\\s>"};
  for (std::uint32_t i = 4; i < size; ++i) tokens.push_back("w" + std::to_string(i));
  return *Vocabulary::of(std::move(tokens), TokenKind::Bpe, "numbers");
}

using Sentences = std::vector<std::vector<std::uint32_t>>;

Sentences drawn(std::uint32_t vocabulary, std::size_t count, std::uint64_t longest) {
  RandomStream random(vocabulary + count);
  Sentences sentences(count);
  for (auto& sentence : sentences) {
    sentence.resize(random.below(longest + 1));
    for (auto& token : sentence) token = static_cast<std::uint32_t>(random.below(vocabulary));
  }
  return sentences;
}

std::string written(const TemporaryFolder& folder, const Sentences& sentences, const Vocabulary& vocabulary) {
  TokenFileWriter writer(folder.path("t"), vocabulary, 0);
  for (const auto& sentence : sentences) writer.write(sentence);
  writer.commit();
  return folder.path("t");
}

void expect_holds(const TokenFile& file, const Sentences& sentences) {
  ASSERT_EQ(file.size(), static_cast<std::int64_t>(sentences.size()));
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i);
    ASSERT_EQ(file.length(k), static_cast<std::int64_t>(sentences[i].size()));
    ASSERT_EQ(file.tokens(k), sentences[i]);
  }
}

TEST(TokenFile, HoldsWhatWasWritten) {
  const TemporaryFolder folder;
  for (const std::uint32_t size : {5u, 65536u, 65537u, 70000u}) {
    const Vocabulary vocabulary = numbered(size);
    for (const std::size_t count : {0u, 1u, 3u, 5000u}) {
      Sentences sentences = drawn(size, count, 40);
      if (count > 1) sentences[1] = {size - 1};
      const Result<TokenFile> file = TokenFile::open(written(folder, sentences, vocabulary));
      ASSERT_TRUE(file) << to_string(file.problems());
      expect_holds(*file, sentences);
      EXPECT_EQ(file->info().bytes_per_token, size <= 65536 ? 2u : 4u);
      EXPECT_TRUE(file->belongs_to(vocabulary, "v"));
      EXPECT_FALSE(file->belongs_to(numbered(6), "v"));
    }
  }
}

TEST(TokenFile, LargerThanItsBlocks) {
  const TemporaryFolder folder;
  const Sentences sentences = drawn(300, 200'000, 20);
  const Result<TokenFile> file = TokenFile::open(written(folder, sentences, numbered(300)));
  ASSERT_TRUE(file) << to_string(file.problems());
  expect_holds(*file, sentences);
}

TEST(TokenFile, EveryDamageIsSeen) {
  const TemporaryFolder folder;
  const Sentences sentences = drawn(50, 12, 9);
  written(folder, sentences, numbered(50));
  const std::string good = folder.read("t");
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    const Result<TokenFile> file = TokenFile::open(folder.write("bad", bad));
    ASSERT_FALSE(file) << "byte " << i;
    EXPECT_FALSE(file.problems()[0].what.empty());
    EXPECT_EQ(file.problems()[0].where, folder.path("bad"));
  }
  for (std::size_t length = 0; length < good.size(); ++length)
    ASSERT_FALSE(TokenFile::open(folder.write("bad", good.substr(0, length))))
        << "first " << length << " bytes";
  EXPECT_FALSE(TokenFile::open(folder.write("bad", good + "x")));
  EXPECT_FALSE(
      TokenFile::open(folder.write("bad", "a text file, and no short one either: " + std::string(500, 'x'))));
  EXPECT_FALSE(TokenFile::open(folder.path()));
  EXPECT_FALSE(TokenFile::open(folder.path("absent")));
}

TEST(TokenFile, SaysWhereItIsDamaged) {
  const TemporaryFolder folder;
  written(folder, drawn(300, 200'000, 20), numbered(300));
  std::string bytes = folder.read("t");
  bytes[(2 << 20) + 500] ^= 1;
  const std::string path = folder.write("bad", bytes);
  const Result<TokenFile> file = TokenFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.problems()[0].what, "is damaged between bytes 2097280 and 3145856");
  const Result<TokenFile> index_only = TokenFile::open(path, TokenCheck::Index);
  EXPECT_TRUE(index_only) << "numbers were not asked for";
}

TEST(TokenFile, AnInterruptedWriterLeavesNothing) {
  const TemporaryFolder folder;
  {
    TokenFileWriter writer(folder.path("t"), numbered(50), 0);
    writer.write(std::vector<std::uint32_t>{1, 2, 3});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace millrace
