// BLEU (Papineni et al., ACL 2002) of a corpus or a sentence, as sacreBLEU 2.x, sacreBLEU 1.2.10,
// multi-bleu.perl or mteval-v13a.pl compute it. docs/bleu.md has the equations. LibTorch-free.
//   Result<Bleu> bleu = corpus_bleu(hypotheses, references, {.letters = LetterCase::Lower});
// Over ranks: each adds up the statistics of its own sentences (each sentence on one rank only), the integers
// are summed, and `score` turns the sum into the corpus's BLEU. A mean of ranks' or sentences' scores is not
// BLEU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"
#include "runtime/metrics/ngram_matcher.h"
#include "runtime/metrics/tokenize.h"

namespace millrace {

inline constexpr int kMostBleuOrder = 16;

enum class Smoothing {
  Exponential,  ///< the k-th order without a match counts as 1/2^k of one (NIST)
  Floor,        ///< an order without a match counts as `smooth_value` of one
  AddK,         ///< `smooth_value` more matches and n-grams of every order above 1
  None,
};
constexpr auto names_of(Smoothing) {
  return std::to_array<std::string_view>({"exp", "floor", "add-k", "none"});
}
enum class LetterCase { Mixed, Lower };
/// The program whose BLEU is computed.
enum class BleuCompat { Sacrebleu2, Sacrebleu1210, MultiBleu, Mteval };
constexpr auto names_of(BleuCompat) {
  return std::to_array<std::string_view>({"2.x", "1.2.10", "multi-bleu", "mteval"});
}
/// The reference whose length the brevity penalty takes: nearest to the hypothesis, of two the shorter; or
/// the shortest.
enum class ReferenceLength { Closest, Shortest };
constexpr auto names_of(ReferenceLength) {
  return std::to_array<std::string_view>({"closest", "shortest"});
}
/// Orders that the geometric mean is over: all, or up to the highest one that the hypothesis has n-grams of.
enum class Orders { All, Effective };

struct BleuOptions {
  BleuCompat compat = BleuCompat::Sacrebleu2;
  BleuTokens tokens = BleuTokens::Mteval13a;
  LetterCase letters = LetterCase::Mixed;
  Smoothing smoothing = Smoothing::Exponential;
  std::optional<double> smooth_value;  ///< Floor and AddK; absent: `default_smooth_value`
  int max_order = 4;                   ///< 1 to kMostBleuOrder
  Orders orders = Orders::All;         ///< Effective for single sentences
  ReferenceLength reference_length = ReferenceLength::Closest;
};

/// Returns the options that the original takes by default: multi-bleu.perl takes words as they stand and
/// smooths nothing, mteval-v13a.pl lower-cases ASCII.
BleuOptions defaults_of(BleuCompat compat);

/// Returns 0.1 for Floor (0 in sacreBLEU 1.2.10), 1 for AddK, and nothing for the others.
std::optional<double> default_smooth_value(const BleuOptions& options);

/// The counts from which BLEU is computed: sums over sentences. Index 0 is order 1; orders above the options'
/// stay 0.
struct BleuStatistics {
  std::int64_t hyp_len = 0;  ///< tokens
  std::int64_t ref_len = 0;  ///< of the reference that `ReferenceLength` picks for each sentence
  std::array<std::int64_t, kMostBleuOrder>
      correct{};  ///< n-grams of the hypothesis that a reference has, clipped
  std::array<std::int64_t, kMostBleuOrder> total{};

  BleuStatistics& operator+=(const BleuStatistics& more);
  bool operator==(const BleuStatistics&) const = default;

  /// hyp_len, ref_len, correct, total as 2 + 2 max_order integers, to be summed over ranks.
  std::vector<std::int64_t> integers(int max_order) const;
  static BleuStatistics from_integers(std::span<const std::int64_t> integers);
};

struct Bleu {
  double score = 0;                ///< 0 to 100 (mteval's and multi-bleu's too)
  std::vector<double> precisions;  ///< percent, smoothed, one for each order
  double bp = 1;                   ///< brevity penalty
  double ratio = 0;                ///< hyp_len / ref_len; 0 without references' tokens
  BleuStatistics statistics;       ///< without what AddK adds
};

/// Pure and thread-safe.
Bleu score_bleu(const BleuStatistics& statistics, const BleuOptions& options);

/// Computes the score in float32 from sums of float32, as sacreBLEU's bootstrap does with its resamples.
/// `sums` is hyp_len, ref_len, correct, total as in `BleuStatistics::integers`.
double score_of_float_sums(std::span<const float> sums, const BleuOptions& options);

/// Counts sentence after sentence; keeps its tables. One for each thread.
class BleuCounter {
 public:
  explicit BleuCounter(const BleuOptions& options);

  /// The statistics of one sentence with one or more references, all valid UTF-8. Tokenisation, lower case
  /// and white space at the end are dealt with here.
  BleuStatistics operator()(std::string_view hypothesis, std::span<const std::string_view> references);

 private:
  const std::vector<std::string_view>& tokens_of(std::string_view segment);

  BleuOptions options_;
  BleuTokenizer tokenizer_;
  std::string lower_;
  NgramMatcher matcher_;
};

/// The statistics of every sentence. `references[s]`: the references of hypothesis s, one or more, not of
/// every sentence as many. Problems: counts that differ (both are named), a sentence without a reference,
/// text that is not UTF-8 (which sentence, which byte).
Result<std::vector<BleuStatistics>> sentence_statistics(std::span<const std::string> hypotheses,
                                                        std::span<const std::vector<std::string>> references,
                                                        const BleuOptions& options);

/// Returns the BLEU of the corpus. Problems are those of sentence_statistics, and a corpus without a
/// sentence.
Result<Bleu> corpus_bleu(std::span<const std::string> hypotheses,
                         std::span<const std::vector<std::string>> references,
                         const BleuOptions& options = {});

}  // namespace millrace
