#include "runtime/metrics/bleu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "runtime/base/check.h"
#include "runtime/metrics/characters.h"

namespace millrace {
namespace {

TokenRules rules_of(BleuCompat compat) {
  if (compat == BleuCompat::Sacrebleu1210) return TokenRules::Sacrebleu1210;
  return compat == BleuCompat::MultiBleu ? TokenRules::MultiBleu : TokenRules::Sacrebleu2;
}

/// Returns whether the program lower-cases bytes, as the Perl scripts do.
bool lowers_ascii_only(BleuCompat compat) {
  return compat == BleuCompat::MultiBleu || compat == BleuCompat::Mteval;
}

std::int64_t picked_length(std::int64_t hypothesis, std::int64_t best, std::int64_t length,
                           ReferenceLength how) {
  if (how == ReferenceLength::Shortest) return std::min(best, length);
  const std::int64_t old_distance = std::abs(hypothesis - best), distance = std::abs(hypothesis - length);
  if (distance == old_distance) return std::min(best, length);
  return distance < old_distance ? length : best;
}

/// Computes precisions, penalty and score from sums of `Number`, with sacreBLEU's order of operations and
/// precision.
template <class Number>
Bleu computed(double hyp_len, double ref_len, std::span<const Number> correct, std::span<const Number> total,
              const BleuOptions& options) {
  const bool mteval = options.compat == BleuCompat::Mteval;
  const std::size_t orders = correct.size();
  Bleu bleu;
  bleu.precisions.assign(orders, 0);
  bleu.ratio = ref_len > 0 ? hyp_len / ref_len : 0;
  if (hyp_len < ref_len) bleu.bp = hyp_len > 0 ? std::exp(1 - ref_len / hyp_len) : 0;
  // sacreBLEU 2 and multi-bleu.perl do not smooth if nothing matches.
  if (options.compat != BleuCompat::Sacrebleu1210 && !mteval &&
      std::ranges::all_of(correct, [](Number count) { return count == 0; }))
    return bleu;

  const double value = options.smooth_value.value_or(default_smooth_value(options).value_or(0));
  double halves = 1;
  std::size_t effective = options.orders == Orders::All ? orders : 0;
  double logarithms = 0;
  bool zero = false;
  for (std::size_t n = 0; n < orders; ++n) {
    Number matches = correct[n], all = total[n];
    if (options.smoothing == Smoothing::AddK && n > 0) {
      matches += static_cast<Number>(value);
      all += static_cast<Number>(value);
    }
    if (all == 0) {
      if (mteval) {  // precision 0 of 1
        bleu.precisions[n] = 100;
        logarithms += std::log(100.);
        continue;
      }
      zero = zero || options.orders == Orders::All;
      break;
    }
    if (options.orders == Orders::Effective) effective = n + 1;
    Number precision = 0;
    if (matches != 0) {
      precision = static_cast<Number>(100) * matches / all;
    } else if (options.smoothing == Smoothing::Exponential) {
      halves *= 2;
      precision = static_cast<Number>(100) / (static_cast<Number>(halves) * all);
    } else if (options.smoothing == Smoothing::Floor) {
      precision = static_cast<Number>(100. * value) / all;
    }
    bleu.precisions[n] = static_cast<double>(precision);
    zero = zero || precision == 0;
    if (precision != 0) logarithms += std::log(static_cast<double>(precision));
  }
  if (!zero && effective > 0) bleu.score = bleu.bp * std::exp(logarithms / static_cast<double>(effective));
  return bleu;
}

std::string sentence_name(std::size_t index) {
  return "sentence " + std::to_string(index + 1);
}

}  // namespace

BleuOptions defaults_of(BleuCompat compat) {
  BleuOptions options{.compat = compat};
  if (compat == BleuCompat::MultiBleu) {
    options.tokens = BleuTokens::None;
    options.smoothing = Smoothing::None;
  }
  if (compat == BleuCompat::Mteval) options.letters = LetterCase::Lower;
  return options;
}

std::optional<double> default_smooth_value(const BleuOptions& options) {
  if (options.smoothing == Smoothing::AddK) return 1;
  if (options.smoothing != Smoothing::Floor) return std::nullopt;
  return options.compat == BleuCompat::Sacrebleu1210 ? 0 : 0.1;
}

BleuStatistics& BleuStatistics::operator+=(const BleuStatistics& more) {
  hyp_len += more.hyp_len;
  ref_len += more.ref_len;
  for (std::size_t n = 0; n < correct.size(); ++n) {
    correct[n] += more.correct[n];
    total[n] += more.total[n];
  }
  return *this;
}

std::vector<std::int64_t> BleuStatistics::integers(int max_order) const {
  MILLRACE_CHECK(max_order >= 1 && max_order <= kMostBleuOrder);
  std::vector<std::int64_t> result{hyp_len, ref_len};
  result.insert(result.end(), correct.begin(), correct.begin() + max_order);
  result.insert(result.end(), total.begin(), total.begin() + max_order);
  return result;
}

BleuStatistics BleuStatistics::from_integers(std::span<const std::int64_t> integers) {
  MILLRACE_CHECK(integers.size() >= 4 && integers.size() % 2 == 0 &&
                 integers.size() <= 2 + 2 * std::size_t{kMostBleuOrder});
  const std::size_t orders = integers.size() / 2 - 1;
  BleuStatistics statistics{.hyp_len = integers[0], .ref_len = integers[1]};
  std::ranges::copy(integers.subspan(2, orders), statistics.correct.begin());
  std::ranges::copy(integers.subspan(2 + orders), statistics.total.begin());
  return statistics;
}

Bleu score_bleu(const BleuStatistics& statistics, const BleuOptions& options) {
  const auto orders = static_cast<std::size_t>(options.max_order);
  std::array<double, kMostBleuOrder> correct{}, total{};
  for (std::size_t n = 0; n < orders; ++n) {
    correct[n] = static_cast<double>(statistics.correct[n]);
    total[n] = static_cast<double>(statistics.total[n]);
  }
  Bleu bleu =
      computed<double>(static_cast<double>(statistics.hyp_len), static_cast<double>(statistics.ref_len),
                       std::span(correct).first(orders), std::span(total).first(orders), options);
  bleu.statistics = statistics;
  return bleu;
}

double score_of_float_sums(std::span<const float> sums, const BleuOptions& options) {
  const std::size_t orders = sums.size() / 2 - 1;
  return computed<float>(static_cast<double>(sums[0]), static_cast<double>(sums[1]), sums.subspan(2, orders),
                         sums.subspan(2 + orders), options)
      .score;
}

BleuCounter::BleuCounter(const BleuOptions& options)
    : options_(options), tokenizer_(options.tokens, rules_of(options.compat)), matcher_(options.max_order) {
  MILLRACE_CHECK(options.max_order >= 1 && options.max_order <= kMostBleuOrder);
}

const std::vector<std::string_view>& BleuCounter::tokens_of(std::string_view segment) {
  if (options_.letters == LetterCase::Lower) {
    lower_ = lowers_ascii_only(options_.compat) ? to_lower_ascii(segment) : to_lower(segment);
    segment = lower_;
  }
  // multi-bleu.perl knows only ASCII white space, which the tokenizer removes itself.
  return tokenizer_(options_.compat == BleuCompat::MultiBleu ? segment : without_trailing_space(segment));
}

BleuStatistics BleuCounter::operator()(std::string_view hypothesis,
                                       std::span<const std::string_view> references) {
  MILLRACE_CHECK(!references.empty());
  matcher_.start_sentence();
  std::array<std::int64_t, 8> few;
  std::vector<std::int64_t> many(references.size() > few.size() ? references.size() : 0);
  const std::span<std::int64_t> lengths =
      many.empty() ? std::span(few).first(references.size()) : std::span(many);
  for (std::size_t r = 0; r < references.size(); ++r) {
    const std::vector<std::string_view>& words = tokens_of(references[r]);
    lengths[r] = static_cast<std::int64_t>(words.size());
    matcher_.add_reference(words);
  }
  const std::vector<std::string_view>& words = tokens_of(hypothesis);
  BleuStatistics statistics{.hyp_len = static_cast<std::int64_t>(words.size()), .ref_len = lengths[0]};
  for (const std::int64_t length : lengths)
    statistics.ref_len =
        picked_length(statistics.hyp_len, statistics.ref_len, length, options_.reference_length);
  for (int n = 0; n < options_.max_order; ++n)
    statistics.total[n] = std::max<std::int64_t>(0, statistics.hyp_len - n);
  matcher_.match(words, statistics.correct);
  return statistics;
}

Result<std::vector<BleuStatistics>> sentence_statistics(std::span<const std::string> hypotheses,
                                                        std::span<const std::vector<std::string>> references,
                                                        const BleuOptions& options) {
  if (hypotheses.size() != references.size())
    return Problem{"BLEU",
                   std::to_string(hypotheses.size()) + " hypotheses, but references of " +
                       std::to_string(references.size()) + " sentences",
                   "a hypothesis and its references belong to each sentence"};
  Problems problems;
  const auto check = [&](const std::string& text, std::size_t sentence, const char* what) {
    if (const std::optional<std::size_t> byte = first_invalid_byte(text))
      problems.push_back({sentence_name(sentence),
                          std::string(what) + " is not UTF-8 at byte " + std::to_string(*byte + 1), ""});
  };
  BleuCounter count(options);
  std::vector<BleuStatistics> result;
  result.reserve(hypotheses.size());
  std::vector<std::string_view> views;
  for (std::size_t s = 0; s < hypotheses.size(); ++s) {
    check(hypotheses[s], s, "the hypothesis");
    for (const std::string& reference : references[s]) check(reference, s, "a reference");
    if (references[s].empty()) problems.push_back({sentence_name(s), "has no reference", ""});
    if (!problems.empty()) continue;
    views.assign(references[s].begin(), references[s].end());
    result.push_back(count(hypotheses[s], views));
  }
  if (!problems.empty()) return problems;
  return result;
}

Result<Bleu> corpus_bleu(std::span<const std::string> hypotheses,
                         std::span<const std::vector<std::string>> references, const BleuOptions& options) {
  if (hypotheses.empty() && references.empty()) return Problem{"BLEU", "there is no sentence", ""};
  const Result<std::vector<BleuStatistics>> sentences = sentence_statistics(hypotheses, references, options);
  if (!sentences) return sentences.problems();
  BleuStatistics sum;
  for (const BleuStatistics& sentence : *sentences) sum += sentence;
  return score_bleu(sum, options);
}

}  // namespace millrace
