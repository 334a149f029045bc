// Random corpora, scored by sacreBLEU itself (tests/reference/score_corpora.py) and by us: scores, precisions
// and penalties to 1e-9, counts, lengths and signatures as they are; every character's class and lower case.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/metrics/bleu_signature.h"
#include "runtime/metrics/characters.h"
#include "runtime/metrics/significance.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

constexpr int kCorpora = 2400;
constexpr double kTolerance = 1e-9;

std::vector<Json> lines_of(const std::string& path) {
  const Result<std::string> text = read_file(path);
  EXPECT_TRUE(text) << path;
  std::vector<Json> lines;
  for (std::size_t start = 0; text && start < text->size();) {
    const std::size_t end = text->find('\n', start);
    const Result<Json> line = parse_json(std::string_view(*text).substr(start, end - start), path);
    EXPECT_TRUE(line) << (line ? "" : to_string(line.problems()));
    if (line) lines.push_back(*line);
    start = end + 1;
  }
  return lines;
}

std::vector<std::string> texts_of(const Json& array) {
  std::vector<std::string> texts;
  for (const Json& text : array.items()) texts.push_back(text.as_string());
  return texts;
}

std::vector<std::vector<std::string>> references_of(const Json& line) {
  std::vector<std::vector<std::string>> references;
  for (const Json& texts : line.find("references")->items()) references.push_back(texts_of(texts));
  return references;
}

BleuOptions options_of(const Json& json) {
  BleuOptions options;
  const std::string tokens = json.find("tokenize")->as_string(),
                    smooth = json.find("smooth_method")->as_string();
  for (const BleuTokens kind :
       {BleuTokens::Mteval13a, BleuTokens::International, BleuTokens::Characters, BleuTokens::None})
    if (to_string(kind) == tokens) options.tokens = kind;
  for (const Smoothing kind : {Smoothing::Exponential, Smoothing::Floor, Smoothing::AddK, Smoothing::None})
    if (to_string(kind) == smooth) options.smoothing = kind;
  if (!json.find("smooth_value")->is_null()) options.smooth_value = json.find("smooth_value")->as_double();
  if (json.find("lowercase")->as_bool()) options.letters = LetterCase::Lower;
  options.max_order = static_cast<int>(json.find("max_ngram_order")->as_int());
  if (json.find("effective_order")->as_bool()) options.orders = Orders::Effective;
  return options;
}

/// The number of references that the signature names.
int number_of(const std::vector<std::vector<std::string>>& references) {
  for (const std::vector<std::string>& texts : references)
    if (texts.size() != references[0].size()) return 0;
  return static_cast<int>(references[0].size());
}

std::string without_implementation(const std::string& signature) {
  return signature.substr(0, signature.rfind('|'));
}

/// The Python, or nothing to compare with.
const char* python() {
  return std::getenv("MILLRACE_REFERENCE_PYTHON");
}

class Reference : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!python()) return;
    folder_ = new TemporaryFolder;
    const std::string here = std::string(MILLRACE_SOURCE_DIR) + "/tests/reference/score_corpora.py ";
    const std::filesystem::path old =
        std::filesystem::path(python()).parent_path().parent_path() / "sacrebleu-1.2.10/sacrebleu.py";
    ASSERT_EQ(std::system((std::string(python()) + " " + here + folder_->path() + " " +
                           std::to_string(kCorpora) + " 1 " + old.string())
                              .c_str()),
              0);
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override {
    if (!python()) GTEST_SKIP() << "tests/reference/install makes it";
  }

  /// Everything that sacreBLEU says of a corpus, beside ours.
  static void expect_equal(const Json& line, const BleuOptions& options) {
    SCOPED_TRACE(line.dump());
    const Result<Bleu> bleu = corpus_bleu(texts_of(*line.find("hypotheses")), references_of(line), options);
    ASSERT_TRUE(bleu) << to_string(bleu.problems());
    EXPECT_NEAR(bleu->score, line.find("score")->as_double(), kTolerance);
    EXPECT_NEAR(bleu->bp, line.find("bp")->as_double(), kTolerance);
    EXPECT_EQ(bleu->statistics.hyp_len, line.find("sys_len")->as_int());
    EXPECT_EQ(bleu->statistics.ref_len, line.find("ref_len")->as_int());
    const Json::Array& counts = line.find("counts")->items();
    const Json::Array& totals = line.find("totals")->items();
    const Json::Array& precisions = line.find("precisions")->items();
    ASSERT_EQ(static_cast<int>(precisions.size()), options.max_order);
    // With add-k, sacrebleu's precisions include k up to the order at which it stopped, unless nothing
    // matched.
    const bool matched = bleu->statistics.correct[0] > 0;
    for (std::size_t n = 0; n < precisions.size(); ++n) {
      const bool added = options.smoothing == Smoothing::AddK && n > 0 && matched;
      const double k = added ? options.smooth_value.value_or(1) : 0;
      EXPECT_NEAR(static_cast<double>(bleu->statistics.correct[n]) + k, counts[n].as_double(), kTolerance)
          << n;
      EXPECT_NEAR(static_cast<double>(bleu->statistics.total[n]) + k, totals[n].as_double(), kTolerance) << n;
      EXPECT_NEAR(bleu->precisions[n], precisions[n].as_double(), kTolerance) << n;
    }
    if (line.find("verbose")->as_string().empty()) return;
    EXPECT_EQ(verbose_score(*bleu), line.find("verbose")->as_string());
  }

  static TemporaryFolder* folder_;
};
TemporaryFolder* Reference::folder_ = nullptr;

TEST_F(Reference, SacrebleuScoresTheSame) {
  int lines = 0, perfect = 0, zero = 0;
  for (const Json& line : lines_of(folder_->path("corpora.jsonl"))) {
    const BleuOptions options = options_of(*line.find("options"));
    expect_equal(line, options);
    SignatureFacts facts{.num_references = number_of(references_of(line)), .implementation = "x"};
    std::string signature = without_implementation(bleu_signature(options, facts));
    // Ours names an order other than 4.
    if (const std::size_t order = signature.find("|order:"); order != std::string::npos)
      signature.resize(order);
    EXPECT_EQ(signature, without_implementation(line.find("signature")->as_string()));
    ++lines;
    perfect += line.find("score")->as_double() > 99;
    zero += line.find("score")->as_double() == 0;
    if (HasFailure()) break;
  }
  EXPECT_EQ(lines, kCorpora);
  EXPECT_LT(perfect + zero, kCorpora * 3 / 4) << "corpora that tell little";
}

TEST_F(Reference, Sacrebleu1210ScoresTheSame) {
  int lines = 0;
  for (const Json& line : lines_of(folder_->path("old.jsonl"))) {
    BleuOptions options = options_of(*line.find("options"));
    options.compat = BleuCompat::Sacrebleu1210;
    expect_equal(line, options);
    ++lines;
    if (HasFailure()) break;
  }
  EXPECT_EQ(lines, kCorpora / 2);
}

bool is_plain_ascii(const std::string& text) {
  return std::ranges::none_of(
      text, [](char c) { return static_cast<unsigned char>(c) >= 0x80 || (c >= '\x1c' && c <= '\x1f'); });
}

// The Perl scripts are sacreBLEU with other defaults: multi-bleu.perl on ASCII, mteval-v13a.pl where no order
// is missing.
TEST_F(Reference, PerlScriptsAreSacrebleuWhereTheyMeet) {
  int multi_bleu = 0, mteval = 0;
  for (const Json& line : lines_of(folder_->path("corpora.jsonl"))) {
    const std::vector<std::string> hypotheses = texts_of(*line.find("hypotheses"));
    const std::vector<std::vector<std::string>> references = references_of(line);
    const auto score = [&](const BleuOptions& options) {
      return corpus_bleu(hypotheses, references, options)->score;
    };
    const BleuOptions two{.max_order = 2};
    const BleuStatistics statistics = corpus_bleu(hypotheses, references, two)->statistics;
    if (statistics.correct[0] > 0 && statistics.total[1] > 0) {
      BleuOptions script = defaults_of(BleuCompat::Mteval);
      script.letters = LetterCase::Mixed;
      script.max_order = 2;
      EXPECT_NEAR(score(script), score(two), kTolerance);
      ++mteval;
    }
    bool ascii = std::ranges::all_of(hypotheses, is_plain_ascii);
    for (const std::vector<std::string>& texts : references)
      ascii = ascii && std::ranges::all_of(texts, is_plain_ascii);
    if (!ascii) continue;
    BleuOptions script = defaults_of(BleuCompat::MultiBleu), plain;
    plain.tokens = BleuTokens::None;
    plain.smoothing = Smoothing::None;
    script.letters = plain.letters = LetterCase::Lower;
    EXPECT_EQ(score(script), score(plain));
    ++multi_bleu;
  }
  EXPECT_GT(mteval, kCorpora / 4);
  EXPECT_GT(multi_bleu, 20);
}

TEST_F(Reference, IntervalsAndPairedTestsAreSacrebleus) {
  int lines = 0;
  for (const Json& line : lines_of(folder_->path("systems.jsonl"))) {
    SCOPED_TRACE(line.find("options")->dump());
    const BleuOptions options = options_of(*line.find("options"));
    const std::vector<std::vector<std::string>> references = references_of(line);
    std::vector<std::vector<BleuStatistics>> systems;
    for (const Json& texts : line.find("systems")->items())
      systems.push_back(sentence_statistics(texts_of(texts), references, options).value());
    const ResamplingOptions resampling{.samples = static_cast<int>(line.find("samples")->as_int())};
    if (const Json* interval = line.find("interval")) {
      const ConfidenceInterval own = bootstrap_interval(systems[0], options, resampling);
      EXPECT_NEAR(own.mean, interval->items()[0].as_double(), kTolerance);
      EXPECT_NEAR(own.half_width, interval->items()[1].as_double(), kTolerance);
    }
    const auto compare = [&](const std::vector<SystemResult>& results, const Json& expected) {
      for (std::size_t i = 0; i < results.size(); ++i) {
        const Json& other = expected.items()[i];
        EXPECT_NEAR(results[i].score, other.find("score")->as_double(), kTolerance);
        ASSERT_EQ(results[i].p_value.has_value(), !other.find("p_value")->is_null());
        if (results[i].p_value) {
          EXPECT_EQ(*results[i].p_value, other.find("p_value")->as_double());
        }
        ASSERT_EQ(results[i].interval.has_value(), !other.find("mean")->is_null());
        if (!results[i].interval) continue;
        EXPECT_NEAR(results[i].interval->mean, other.find("mean")->as_double(), kTolerance);
        EXPECT_NEAR(results[i].interval->half_width, other.find("ci")->as_double(), kTolerance);
      }
    };
    compare(paired_bootstrap(systems, options, resampling), *line.find("bs"));
    compare(paired_randomization(systems, options, resampling), *line.find("ar"));
    if (options.max_order == 4) {
      const int n = number_of(references);
      EXPECT_EQ(
          without_implementation(bleu_signature(options, {n, resampling.samples, 0, resampling.seed, "x"})),
          without_implementation(line.find("bs_signature")->as_string()));
      EXPECT_EQ(
          without_implementation(bleu_signature(options, {n, 0, resampling.samples, resampling.seed, "x"})),
          without_implementation(line.find("ar_signature")->as_string()));
    }
    ++lines;
  }
  EXPECT_EQ(lines, 24);
}

std::string utf8(char32_t code) {
  const auto byte = [](char32_t bits) { return static_cast<char>(bits); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xC0 | code >> 6), byte(0x80 | (code & 0x3F))};
  if (code < 0x10000)
    return {byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F))};
  return {byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 0x3F)), byte(0x80 | (code >> 6 & 0x3F)),
          byte(0x80 | (code & 0x3F))};
}

TEST_F(Reference, EveryCharacterIsWhatPythonTakesItFor) {
  const std::string classes = *read_file(folder_->path("characters.bin"));
  ASSERT_EQ(classes.size(), 0x110000u);
  const std::vector<Json> lower = lines_of(folder_->path("lower.jsonl"));
  std::size_t changed = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = utf8(code);
    const Character own = character_at(text, 0);
    ASSERT_EQ(own.code, code);
    ASSERT_EQ(own.bytes, text.size());
    const int found = (own.classes & (kPunctuation | kSymbol | kNumber)) | (own.classes & kSpace ? 8 : 0) |
                      (to_lower(text + "Σ").ends_with("ς") ? 16 : 0) |
                      (to_lower("a" + text + "Σ").ends_with("ς") ? 32 : 0) |
                      (to_lower("aΣ" + text).substr(1, 2) == "ς" ? 64 : 0);
    const int facts = static_cast<unsigned char>(classes[code]);
    if (facts & 128) continue;  // unassigned in the interpreter's Unicode
    ASSERT_EQ(found, facts) << std::hex << std::uint32_t{code};
    changed += to_lower(text) != text;
  }
  EXPECT_EQ(changed, lower.size() - 1);
  for (std::size_t i = 1; i < lower.size(); ++i)
    EXPECT_EQ(to_lower(lower[i].find("text")->as_string()), lower[i].find("lower")->as_string());
}

}  // namespace
}  // namespace millrace
