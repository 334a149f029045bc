// BLEU against numbers that sacreBLEU 2.6.0 gave, and the rules that the numbers come from.
#include "runtime/metrics/bleu.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/random.h"
#include "runtime/metrics/bleu_signature.h"
#include "runtime/metrics/characters.h"
#include "runtime/metrics/detokenize.h"

namespace millrace {
namespace {

using Texts = std::vector<std::string>;
using References = std::vector<std::vector<std::string>>;

const Texts kDog{"The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."};
const References kDogReferences{{"The dog bit the man.", "The dog had bit the man."},
                                {"It was not unexpected.", "No one was surprised."},
                                {"The man bit him first.", "The man had bitten the dog."}};

Bleu bleu_of(const Texts& hypotheses, const References& references, const BleuOptions& options = {}) {
  const Result<Bleu> bleu = corpus_bleu(hypotheses, references, options);
  EXPECT_TRUE(bleu) << (bleu ? "" : to_string(bleu.problems()));
  return bleu ? *bleu : Bleu{};
}

std::string tokenized(const std::string& text, BleuTokens tokens, TokenRules rules = TokenRules::Sacrebleu2) {
  BleuTokenizer tokenizer(tokens, rules);
  std::string joined;
  for (const std::string_view word : tokenizer(text))
    joined += (joined.empty() ? "" : " ") + std::string(word);
  return joined;
}

// ---- scores

struct DogCase {
  BleuTokens tokens;
  double score;
  std::array<std::int64_t, 4> total;
};

class ThreeSentencesTwoReferences : public testing::TestWithParam<DogCase> {};

TEST_P(ThreeSentencesTwoReferences, ScoreAsSacrebleu) {
  const DogCase& expected = GetParam();
  const Bleu bleu = bleu_of(kDog, kDogReferences, {.tokens = expected.tokens});
  EXPECT_NEAR(bleu.score, expected.score, 1e-9);
  for (std::size_t n = 0; n < 4; ++n) EXPECT_EQ(bleu.statistics.total[n], expected.total[n]);
}

INSTANTIATE_TEST_SUITE_P(Tokens, ThreeSentencesTwoReferences,
                         testing::Values(DogCase{BleuTokens::Mteval13a, 48.530827009929865, {17, 14, 11, 8}},
                                         DogCase{
                                             BleuTokens::International, 43.91623493336995, {19, 16, 13, 10}},
                                         DogCase{BleuTokens::None, 49.19195660047277, {14, 11, 8, 5}}));

TEST(Bleu, CountsPrecisionsAndLengths) {
  const Bleu bleu = bleu_of(kDog, kDogReferences);
  EXPECT_EQ(bleu.statistics.integers(4), (std::vector<std::int64_t>{17, 18, 14, 7, 5, 3, 17, 14, 11, 8}));
  EXPECT_EQ(verbose_score(bleu), "82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)");
}

TEST(Bleu, OrdersOneToSix) {
  const double expected[] = {77.65, 60.50, 53.93, 48.53, 46.14, 43.28};
  for (int order = 1; order <= 6; ++order)
    EXPECT_NEAR(bleu_of(kDog, kDogReferences, {.max_order = order}).score, expected[order - 1], 0.005)
        << order;
}

TEST(Bleu, SmoothsAnOrderWithoutAMatch) {
  const auto score = [](Smoothing smoothing, std::optional<double> value = {}) {
    return bleu_of({"a b c d x"}, {{"a b c y x"}},
                   {.tokens = BleuTokens::None, .smoothing = smoothing, .smooth_value = value})
        .score;
  };
  EXPECT_NEAR(score(Smoothing::Exponential), 42.72870063962342, 1e-9);
  EXPECT_NEAR(score(Smoothing::Floor), 28.57, 0.005);
  EXPECT_NEAR(score(Smoothing::AddK), 53.18, 0.005);
  EXPECT_EQ(score(Smoothing::None), 0);
  EXPECT_EQ(score(Smoothing::Floor, 0), 0);
}

TEST(Bleu, IsZeroWithoutAnNgramOfTheHighestOrder) {
  EXPECT_EQ(bleu_of({"a b c"}, {{"a b c"}}).score, 0);
  EXPECT_NEAR(bleu_of({"a b c"}, {{"a b c"}}, {.orders = Orders::Effective}).score, 100, 1e-9);
}

TEST(Bleu, AnEmptyHypothesisCostsLength) {
  const Bleu bleu = bleu_of({"", "a b c d e f"}, {{"x y"}, {"a b c d e f"}});
  EXPECT_NEAR(bleu.score, 71.65, 0.005);
  EXPECT_NEAR(bleu.bp, 0.717, 0.0005);
  EXPECT_EQ(bleu_of({""}, {{"x y"}}).score, 0);
  EXPECT_EQ(bleu_of({""}, {{""}}).score, 0);
}

TEST(Bleu, LowersLettersOfAllScripts) {
  EXPECT_NEAR(bleu_of({"Straße IST İx", "A\u00a0b c d"}, {{"STRASSE ist i̇x"}, {"a b C D"}},
                      {.tokens = BleuTokens::International, .letters = LetterCase::Lower})
                  .score,
              82.23, 0.005);
}

TEST(Bleu, TakesTheNearestReferenceLengthAndOfTwoTheShorter) {
  const auto ref_len = [](const std::vector<std::string>& references, ReferenceLength how) {
    return bleu_of({"a b c d"}, {references}, {.reference_length = how}).statistics.ref_len;
  };
  EXPECT_EQ(ref_len({"a b c d e f", "a b c d e"}, ReferenceLength::Closest), 5);
  EXPECT_EQ(ref_len({"a b c d e", "a b c"}, ReferenceLength::Closest), 3);
  EXPECT_EQ(ref_len({"a b c", "a b c d e"}, ReferenceLength::Closest), 3);
  EXPECT_EQ(ref_len({"a b c d", "a", "a b c d e"}, ReferenceLength::Shortest), 1);
}

TEST(Bleu, ClipsByTheReferenceThatHasMost) {
  // "the" is twice in one reference, not three times over both.
  const Bleu bleu =
      bleu_of({"the the the the"}, {{"the cat the mat", "the dog"}}, {.tokens = BleuTokens::None});
  EXPECT_EQ(bleu.statistics.correct[0], 2);
  EXPECT_EQ(bleu.statistics.correct[1], 0);
}

TEST(Bleu, ReferencesMayDifferInNumber) {
  const Bleu bleu = bleu_of({"a b c d", "e f g h"}, {{"a b c d", "x"}, {"e f g h"}});
  EXPECT_NEAR(bleu.score, 100, 1e-9);
}

// ---- over ranks

TEST(BleuStatistics, AddUpOverRanksToTheCorpus) {
  RandomStream random(7);
  Texts hypotheses;
  References references;
  const auto sentence = [&] {
    std::string text;
    for (std::uint64_t n = random.below(12); n > 0; --n)
      text += std::string(1, static_cast<char>('a' + random.below(5))) + " ";
    return text;
  };
  for (int s = 0; s < 60; ++s) {
    hypotheses.push_back(sentence());
    references.push_back({sentence()});
    if (random.below(2)) references.back().push_back(sentence());
  }
  const BleuOptions options{.max_order = 5};
  const Result<std::vector<BleuStatistics>> sentences = sentence_statistics(hypotheses, references, options);
  ASSERT_TRUE(sentences);
  for (std::size_t ranks = 1; ranks <= 7; ++ranks) {
    std::vector<std::int64_t> sum(12);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      BleuStatistics own;
      for (std::size_t s = rank; s < sentences->size(); s += ranks) own += (*sentences)[s];
      const std::vector<std::int64_t> sent = own.integers(options.max_order);
      ASSERT_EQ(sent.size(), sum.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += sent[i];
    }
    const Bleu together = score_bleu(BleuStatistics::from_integers(sum), options);
    const Bleu whole = bleu_of(hypotheses, references, options);
    EXPECT_EQ(together.score, whole.score) << ranks;
    EXPECT_EQ(together.statistics, whole.statistics);
  }
}

// A counter's tables hold nothing of the sentence before, also after they have grown.
TEST(BleuCounter, SentencesDoNotLeakIntoEachOther) {
  BleuCounter reused({});
  for (int round = 0; round < 3; ++round) {
    for (const std::size_t words : {2000u, 3u, 700u, 0u, 5u}) {
      std::string hypothesis, reference;
      for (std::size_t i = 0; i < words; ++i) {
        hypothesis += std::to_string(i % 997) + " ";
        reference += std::to_string(i % 991) + " ";
      }
      const std::string_view views[] = {reference};
      BleuCounter fresh({});
      EXPECT_EQ(reused(hypothesis, views), fresh(hypothesis, views)) << words;
    }
  }
}

// ---- wrong input

TEST(Bleu, RefusesWhatIsNoCorpus) {
  EXPECT_FALSE(corpus_bleu({}, {}));
  const Result<Bleu> uneven = corpus_bleu(kDog, References{{"a"}});
  ASSERT_FALSE(uneven);
  EXPECT_NE(to_string(uneven.problems()).find("3 hypotheses, but references of 1 sentences"),
            std::string::npos);
  EXPECT_FALSE(corpus_bleu(Texts{"a"}, References{{}}));
  const Result<Bleu> bytes = corpus_bleu(Texts{"ok", "b\xff"}, References{{"ok"}, {"ok", "\xc3\x28"}});
  ASSERT_FALSE(bytes);
  EXPECT_EQ(
      to_string(bytes.problems()),
      "sentence 2: the hypothesis is not UTF-8 at byte 2\nsentence 2: a reference is not UTF-8 at byte 1");
}

// ---- tokenisers

TEST(Tokens, Of13a) {
  const std::pair<const char*, const char*> cases[] = {
      {"wait... what?!", "wait . . . what ? !"},
      {"x-y 3-4 -5 5-", "x-y 3 - 4 -5 5 -"},
      {"&quot;A&amp;lt;B&apos;C&gt;", "\" A < B & apos ; C >"},
      {"1.,2", "1 . , 2"},
      {"$1,000.-", "$ 1,000 . -"},
      {"U.S.A.", "U . S . A ."},
      {"a_b ~c~ {d}", "a _ b ~ c ~ { d }"},
      {"a<skipped>b", "ab"},
      {"soft-\nware\nis", "software is"},
      {"„Nein“ – 5€", "„Nein“ – 5€"},
      {"", ""},
  };
  for (const auto& [text, words] : cases) EXPECT_EQ(tokenized(text, BleuTokens::Mteval13a), words) << text;
}

TEST(Tokens, OfIntl) {
  const std::pair<const char*, const char*> cases[] = {
      {"don't", "don ' t"},
      {"«Ja» – „Nein“ …", "« Ja » – „ Nein “ …"},
      {"\"1.5\"", "\"1.5\""},
      {"“1,5”", "“1,5”"},
      {"1-2-3", "1-2-3"},
      {"½,a", "½ , a"},
      {"٣.٤", "٣.٤"},
      {"日本語、です。", "日本語 、 です 。"},
      {"1999.", "1999."},
      {"(1.5)", "(1.5)"},
      {"5-", "5-"},
      {"10€", "10 €"},
      {"½.5", "½.5"},
      {"a\\b", "a \\ b"},
      {"", ""},
  };
  for (const auto& [text, words] : cases)
    EXPECT_EQ(tokenized(text, BleuTokens::International), words) << text;
}

TEST(Tokens, OfIntlInRelease1210) {
  EXPECT_EQ(tokenized("½.5", BleuTokens::International, TokenRules::Sacrebleu1210), "½ . 5");
  EXPECT_EQ(tokenized("a\\b.c", BleuTokens::International, TokenRules::Sacrebleu1210), "a\\b . c");
}

TEST(Tokens, OfCharAndNone) {
  EXPECT_EQ(tokenized("ab 日\u3000本", BleuTokens::Characters), "a b 日 本");
  EXPECT_EQ(tokenized(" a\u00a0b\u2028c\u200bd\x1c"
                      "e\u0085",
                      BleuTokens::None),
            "a b c\u200bd e");
  EXPECT_EQ(tokenized("a\u00a0b c\x1c"
                      "d",
                      BleuTokens::None, TokenRules::MultiBleu),
            "a\u00a0b c\x1c"
            "d");
}

TEST(Detokenize, AsMosesDoesForEnglish) {
  const std::pair<const char*, const char*> cases[] = {
      {"Das ist ein &quot; Test &quot; , oder ?", "Das ist ein \"Test\", oder?"},
      {"10 % of 5 $ ( a )", "10% of 5 $(a)"},
      {"I do n&apos;t know .", "I do n't know."},
      {"x &#124; y @-@ z", "x | y-z"},
      {"I &apos;m here", "I'm here"},
      {"( 'm", "('m"},
      {"the Jones ' house", "the Jones' house"},
      {"' a ' b", "'a' b"},
      {"„ a “ b", "„a“ b"},
      {"日本 語 x 語", "日本語 x 語"},
      {"&amp;lt; &#91; a &#93;", "&lt; [a]"},
      {"  a  b ", "a b"},
      {"", ""},
  };
  for (const auto& [words, text] : cases) EXPECT_EQ(detokenize(words), text) << words;
}

TEST(Detokenize, JoinsSubwordsFirst) {
  EXPECT_EQ(join_subwords("<s> new@@ est lo@@ w@@ <\\s> <pad> <pad>"), "newest low");
  EXPECT_EQ(join_subwords("<s>"), "");
}

// ---- letters

TEST(LowerCase, IsPythons) {
  EXPECT_EQ(to_lower("STRASSE İX ŻÓŁĆ Ⅷ Ǆ"), "strasse i̇x żółć ⅷ ǆ");
  EXPECT_EQ(to_lower("ΟΔΥΣΣΕΥΣ"), "οδυσσευς");
  EXPECT_EQ(to_lower("Σ ΑΣ. ΑΣ.Β Α'Σ' ΣΑ"), "σ ας. ασ.β α'ς' σα");
  EXPECT_EQ(to_lower("\xff"
                     "A\xc3"),
            "\xff"
            "a\xc3")
      << "what is no UTF-8 stays";
  EXPECT_EQ(to_lower_ascii("ÄÖ AB"), "ÄÖ ab");
}

// ---- the others' BLEU

TEST(Compat, Release1210ScoresACorpusWithoutAMatch) {
  const BleuOptions old{.compat = BleuCompat::Sacrebleu1210};
  EXPECT_GT(bleu_of({"a b c d e"}, {{"v w x y z"}}, old).score, 0);
  EXPECT_EQ(bleu_of({"a b c d e"}, {{"v w x y z"}}).score, 0);
}

TEST(Compat, MultiBleuSmoothsNothingAndLowersAscii) {
  BleuOptions options = defaults_of(BleuCompat::MultiBleu);
  EXPECT_EQ(bleu_of({"a b c d x"}, {{"a b c y x"}}, options).score, 0);
  EXPECT_EQ(bleu_of({"A , b"}, {{"a , b"}}, options).statistics.correct[0], 2);
  options.letters = LetterCase::Lower;
  EXPECT_EQ(bleu_of({"A Ä c"}, {{"a ä c"}}, options).statistics.correct[0], 2);
}

/// Perl on bytes knows no other white space; Python's str.rstrip() takes these away at a line's end.
TEST(Compat, MultiBleuCountsOtherWhiteSpaceAtALinesEndAsAWord) {
  for (const char* space : {"\u00a0", "\u3000", "\u2028", "\u0085", "\x1c"}) {
    const std::string line = std::string("a b ") + space;
    EXPECT_EQ(bleu_of({line}, {{"a b"}}, defaults_of(BleuCompat::MultiBleu)).statistics.hyp_len, 3);
    EXPECT_EQ(bleu_of({line}, {{"a b"}}).statistics.hyp_len, 2);
  }
}

TEST(Compat, MtevalTakesAMissingOrderForRight) {
  const BleuOptions options = defaults_of(BleuCompat::Mteval);
  EXPECT_NEAR(bleu_of({"A b"}, {{"a b"}}, options).score, 100, 1e-9);
  // One word of two is right, no pair of one is: (1/2 * 1/2 * 1 * 1)^(1/4).
  EXPECT_NEAR(bleu_of({"a c"}, {{"a b"}}, options).score, 100 * std::pow(0.25, 0.25), 1e-9);
  EXPECT_GT(bleu_of({"x y"}, {{"a b"}}, options).score, 0);
}

// ---- signatures

TEST(Signature, IsSacrebleusWithoutItsVersion) {
  const SignatureFacts facts{.implementation = "millrace-1"};
  EXPECT_EQ(bleu_signature({}, facts), "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|impl:millrace-1");
  BleuOptions options{
      .tokens = BleuTokens::International, .letters = LetterCase::Lower, .smoothing = Smoothing::Floor};
  EXPECT_EQ(bleu_signature(options, {0, 1000, 0, 12345, "m-1"}, SignatureLength::Short),
            "#:var|bs:1000|rs:12345|c:lc|e:no|tok:intl|s:floor[0.10]|impl:m-1");
  options.smoothing = Smoothing::AddK;
  options.orders = Orders::Effective;
  EXPECT_EQ(bleu_signature(options, {2, 0, 50, 3, "m-1"}),
            "nrefs:2|ar:50|seed:3|case:lc|eff:yes|tok:intl|smooth:add-k[1.00]|impl:m-1");
  EXPECT_EQ(bleu_signature({.compat = BleuCompat::Sacrebleu1210}, facts),
            "case.mixed+numrefs.1+smooth.exp+tok.13a+impl.millrace-1-as-1.2.10");
}

}  // namespace
}  // namespace millrace
