// BLEU (Papineni et al., ACL 2002) of a corpus or a sentence, as sacreBLEU 2.x, sacreBLEU 1.2.10,
// multi-bleu.perl or mteval-v13a.pl compute it. docs/bleu.md has the equations. LibTorch-free.
//   Result<Bleu> bleu = corpus_bleu(hypotheses, references, {.letters = LetterCase::Lower});
// Over ranks: each rank adds up the statistics of its own sentences (each sentence on one rank only). The
// integers are summed, and `score` computes the corpus's BLEU from the sum. A mean of ranks' or sentences'
// scores is not BLEU.
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
  Exponential,  ///< the k-th order without a match counts as 1/2^k matches (NIST)
  Floor,        ///< an order without a match counts as `smooth_value` matches
  AddK,         ///< `smooth_value` more matches and n-grams of every order above 1
  None,
};
constexpr auto names_of(Smoothing) {
  return std::to_array<std::string_view>({"exp", "floor", "add-k", "none"});
}
enum class LetterCase { Mixed, Lower };
/// The program whose BLEU is reproduced.
enum class BleuCompat { Sacrebleu2, Sacrebleu1210, MultiBleu, Mteval };
constexpr auto names_of(BleuCompat) {
  return std::to_array<std::string_view>({"2.x", "1.2.10", "multi-bleu", "mteval"});
}
/// The reference whose length the brevity penalty uses: the one closest to the hypothesis (the shorter one on
/// a tie), or the shortest.
enum class ReferenceLength { Closest, Shortest };
constexpr auto names_of(ReferenceLength) {
  return std::to_array<std::string_view>({"closest", "shortest"});
}
/// The orders in the geometric mean: all, or up to the highest order for which the hypothesis has n-grams.
enum class Orders { All, Effective };

struct BleuOptions {
  BleuCompat compat = BleuCompat::Sacrebleu2;
  BleuTokens tokens = BleuTokens::Mteval13a;
  LetterCase letters = LetterCase::Mixed;
  Smoothing smoothing = Smoothing::Exponential;
  std::optional<double> smooth_value;  ///< for Floor and AddK; absent: `default_smooth_value`
  int max_order = 4;                   ///< 1 to kMostBleuOrder
  Orders orders = Orders::All;         ///< Effective for single sentences
  ReferenceLength reference_length = ReferenceLength::Closest;
};

/// Returns the original program's defaults: multi-bleu.perl does not tokenize or smooth, mteval-v13a.pl
/// lower-cases ASCII.
BleuOptions defaults_of(BleuCompat compat);

/// Returns 0.1 for Floor (0 in sacreBLEU 1.2.10), 1 for AddK, and nothing for the others.
std::optional<double> default_smooth_value(const BleuOptions& options);

/// The counts from which BLEU is computed: sums over sentences. Index 0 is order 1; orders above max_order
/// stay 0.
struct BleuStatistics {
  std::int64_t hyp_len = 0;  ///< tokens
  std::int64_t ref_len = 0;  ///< tokens of the reference that `ReferenceLength` selects for each sentence
  std::array<std::int64_t, kMostBleuOrder>
      correct{};  ///< n-grams of the hypothesis that a reference has, clipped
  std::array<std::int64_t, kMostBleuOrder> total{};

  BleuStatistics& operator+=(const BleuStatistics& more);
  bool operator==(const BleuStatistics&) const = default;

  /// Returns hyp_len, ref_len, correct, total as 2 + 2 max_order integers, which can be summed over ranks.
  std::vector<std::int64_t> integers(int max_order) const;
  static BleuStatistics from_integers(std::span<const std::int64_t> integers);
};

struct Bleu {
  double score = 0;                ///< 0 to 100 (also for mteval and multi-bleu)
  std::vector<double> precisions;  ///< percent, smoothed, one for each order
  double bp = 1;                   ///< brevity penalty
  double ratio = 0;                ///< hyp_len / ref_len; 0 if the references have no tokens
  BleuStatistics statistics;       ///< without the counts that AddK adds
};

/// Returns the score. Pure and thread-safe.
Bleu score_bleu(const BleuStatistics& statistics, const BleuOptions& options);

/// Returns the score in float32 from float32 sums, as sacreBLEU's bootstrap computes it for resamples. `sums`
/// is hyp_len, ref_len, correct, total as in `BleuStatistics::integers`.
double score_of_float_sums(std::span<const float> sums, const BleuOptions& options);

/// Counts one sentence after another and reuses its tables. Use one per thread.
class BleuCounter {
 public:
  explicit BleuCounter(const BleuOptions& options);

  /// Returns the statistics of one sentence with one or more references, all valid UTF-8. It tokenizes,
  /// lower-cases and strips trailing white space as configured.
  BleuStatistics operator()(std::string_view hypothesis, std::span<const std::string_view> references);

 private:
  const std::vector<std::string_view>& tokens_of(std::string_view segment);

  BleuOptions options_;
  BleuTokenizer tokenizer_;
  std::string lower_;
  NgramMatcher matcher_;
};

/// Returns the statistics of every sentence. `references[s]` has one or more references of hypothesis s;
/// their number may differ. Returns an error if the counts differ (both are named), if a sentence has no
/// reference, or if a text is not UTF-8 (naming sentence and byte).
Result<std::vector<BleuStatistics>> sentence_statistics(std::span<const std::string> hypotheses,
                                                        std::span<const std::vector<std::string>> references,
                                                        const BleuOptions& options);

/// Returns the BLEU of the corpus. Returns an error as sentence_statistics() does, and for a corpus without
/// sentences.
Result<Bleu> corpus_bleu(std::span<const std::string> hypotheses,
                         std::span<const std::vector<std::string>> references,
                         const BleuOptions& options = {});

}  // namespace millrace
