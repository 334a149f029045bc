// Byte-pair codes: the field's own examples, and the fast ways against the slow one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "data/text/bpe.h"
#include "data/text/bpe_learn.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

std::string applied(const BpeCodes& codes, const std::string& line) {
  BpeCache cache(codes);
  std::string out;
  apply_bpe(cache, line, out);
  return out;
}

BpeCodes codes_of(const std::string& text) {
  Result<BpeCodes> codes = BpeCodes::parse(text, "codes");
  EXPECT_TRUE(codes) << to_string(codes.problems());
  return std::move(*codes);
}

const char* const kMerges = "l o\nlo w</w>\ne r</w>\nlo w\nn e\nne w\ne s\nes t</w>\nx x\n";

TEST(BpeApply, TheExamplesOfSubwordNmt) {
  const BpeCodes codes = codes_of(std::string("#version: 0.2\n") + kMerges);
  EXPECT_EQ(applied(codes, "low lower newer newest xxx xxxx"),
            "low low@@ er new@@ er new@@ est xx@@ x xx@@ x@@ x");
  EXPECT_EQ(applied(codes_of(kMerges), "low lower newest"), "low low@@ e@@ r new@@ es@@ t") << "version 0.1";
}

TEST(BpeApply, SpacesAtTheEndsStay) {
  const BpeCodes codes = codes_of("#version: 0.2\n");
  EXPECT_EQ(applied(codes, "  ab  c \r"), "  a@@ b c \r");
  EXPECT_EQ(applied(codes, ""), "");
  EXPECT_EQ(applied(codes, "   "), "   ");
  EXPECT_EQ(applied(codes, "é中"), "é@@ 中");
}

/// The definition: the lowest rank that is there, all its occurrences from left to right, until none is.
std::vector<std::string> split_slowly(const std::vector<std::pair<std::string, std::string>>& merges,
                                      std::vector<std::string> symbols) {
  for (;;) {
    std::size_t best = merges.size();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = std::find(merges.begin(), merges.end(), std::pair(symbols[i], symbols[i + 1]));
      best = std::min(best, static_cast<std::size_t>(found - merges.begin()));
    }
    if (best == merges.size()) return symbols;
    std::vector<std::string> next;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 < symbols.size() && std::pair(symbols[i], symbols[i + 1]) == merges[best]) {
        next.push_back(symbols[i] + symbols[i + 1]);
        ++i;
      } else {
        next.push_back(symbols[i]);
      }
    }
    symbols = next;
  }
}

// Codes in any order, so that a merge makes pairs of lower rank than its own; words shorter and longer than
// where the queue takes over.
TEST(BpeApply, LongAndShortWordsFollowTheDefinition) {
  RandomStream random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> symbols{"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    std::string text = "#version: 0.2\n";
    for (int k = 0; k < 12; ++k) {
      const std::string& left = symbols[random.below(symbols.size())];
      std::string right = symbols[random.below(symbols.size())];
      if (random.below(4) == 0 && !right.ends_with("</w>")) right += "</w>";
      if (left.ends_with("</w>") ||
          std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end())
        continue;
      merges.emplace_back(left, right);
      symbols.push_back(merges.back().first + merges.back().second);
    }
    for (std::size_t k = merges.size(); k > 1; --k) std::swap(merges[k - 1], merges[random.below(k)]);
    for (const auto& [left, right] : merges) text += left + " " + right + "\n";
    const BpeCodes codes = codes_of(text);
    for (const std::size_t length : {2u, 7u, 47u, 48u, 49u, 200u}) {
      std::string word;
      std::vector<std::string> characters;
      for (std::size_t i = 0; i < length; ++i) {
        word += static_cast<char>('a' + random.below(3));
        characters.push_back(word.substr(i) + (i + 1 == length ? "</w>" : ""));
      }
      std::vector<std::uint32_t> ends, expected;
      codes.split(word, ends);
      std::uint32_t end = 0;
      for (const std::string& symbol : split_slowly(merges, characters))
        expected.push_back(end += static_cast<std::uint32_t>(symbol.size()));
      expected.back() = static_cast<std::uint32_t>(word.size());
      EXPECT_EQ(ends, expected) << text << word;
    }
  }
}

TEST(BpeApply, RarePiecesAreTakenApart) {
  BpeCodes codes = codes_of(std::string("#version: 0.2\n") + kMerges);
  ASSERT_TRUE(codes.restrict_to("low 9\nnew@@ 5\ne@@ 4\nr 4\nlo@@ 4\nw@@ 3\ner 1\n", "v", 2));
  EXPECT_EQ(applied(codes, "low lower newer"), "low lo@@ w@@ e@@ r new@@ e@@ r");
}

TEST(BpeCodes, WrongFilesAreRefusedWithTheirLine) {
  const auto refusal = [](const std::string& text) {
    const Result<BpeCodes> codes = BpeCodes::parse(text, "f");
    return codes ? "" : codes.problems()[0].where;
  };
  EXPECT_EQ(refusal("#version: 0.3\na b\n"), "f:1");
  EXPECT_EQ(refusal("#version: 0.20\na b\n"), "f:1");
  EXPECT_EQ(refusal("#version: 0.2\na b\nabc\n"), "f:3");
  EXPECT_EQ(refusal("#version: 0.2\na b c\n"), "f:2");
  EXPECT_EQ(refusal("#version: 0.2\na b\n\nc d\n"), "f:3");
  EXPECT_EQ(refusal("#version: 0.2\na \xff\n"), "f:2");
  EXPECT_EQ(refusal("#version: 0.2.0\r\na b\r\n"), "");
  EXPECT_EQ(refusal(""), "");
  BpeCodes old = codes_of("a b\n");
  EXPECT_FALSE(old.restrict_to("a 1\n", "v"));
  BpeCodes codes = codes_of("#version: 0.2\na b\n");
  EXPECT_FALSE(codes.restrict_to("a 1\nb\n", "v"));
  EXPECT_FALSE(codes.restrict_to("a 1\n", "v", 2)) << "no piece is left";
}

TEST(BpeLearn, TheExampleOfThePaper) {
  const std::vector<std::pair<std::string, std::int64_t>> words{
      {"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}};
  std::string joined;
  for (const auto& [left, right] : learn_bpe(words, {.merges = 8}))
    joined += (joined.empty() ? "" : "|") + left + " " + right;
  EXPECT_EQ(joined, "s t</w>|e st</w>|l o|w est</w>|n e|ne west</w>|lo w</w>|w i");
}

TEST(BpeLearn, EndsWhereThereIsNothingToMerge) {
  EXPECT_TRUE(learn_bpe({}, {}).empty());
  EXPECT_TRUE(learn_bpe({{"a", 100}, {"é", 5}}, {}).empty());
  EXPECT_EQ(learn_bpe({{"ab", 1}}, {}).size(), 0u) << "rarer than twice";
  EXPECT_EQ(learn_bpe({{"ab", 1}}, {.min_frequency = 1}).size(), 1u);
  EXPECT_EQ(learn_bpe({{"ab", 5}}, {.merges = 0}).size(), 0u);
}

}  // namespace
}  // namespace millrace
