#include "runtime/metrics/bleu_signature.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace millrace {
namespace {

std::string smoothing_text(const BleuOptions& options) {
  const std::string name = to_string(options.smoothing);
  const std::optional<double> fallback = default_smooth_value(options);
  return fallback ? name + printed("[%.2f]", options.smooth_value.value_or(*fallback)) : name;
}

std::string count_text(const SignatureFacts& facts) {
  return facts.num_references > 0 ? std::to_string(facts.num_references) : "var";
}

}  // namespace

std::vector<std::pair<std::string, std::string>> signature_items(const BleuOptions& options,
                                                                 const SignatureFacts& facts,
                                                                 SignatureLength length) {
  const bool brief = length == SignatureLength::Short;
  std::vector<std::pair<std::string, std::string>> items;
  const auto add = [&](const char* name, const char* short_name, std::string value) {
    items.emplace_back(brief ? short_name : name, std::move(value));
  };
  if (options.compat != BleuCompat::Sacrebleu2) add("bleu", "bleu", to_string(options.compat));
  add("nrefs", "#", count_text(facts));
  if (facts.bootstrap > 0) add("bs", "bs", std::to_string(facts.bootstrap));
  if (facts.randomization > 0) add("ar", "ar", std::to_string(facts.randomization));
  if (facts.bootstrap > 0 || facts.randomization > 0) add("seed", "rs", std::to_string(facts.seed));
  add("case", "c", options.letters == LetterCase::Lower ? "lc" : "mixed");
  add("eff", "e", options.orders == Orders::Effective ? "yes" : "no");
  add("tok", "tok", to_string(options.tokens));
  add("smooth", "s", smoothing_text(options));
  // These keys are not sacreBLEU's, which reports neither setting.
  if (options.max_order != 4) add("order", "n", std::to_string(options.max_order));
  if (options.reference_length == ReferenceLength::Shortest) add("reflen", "r", "shortest");
  add("impl", "impl", facts.implementation);
  return items;
}

std::string bleu_signature(const BleuOptions& options, const SignatureFacts& facts, SignatureLength length) {
  std::string text;
  if (options.compat != BleuCompat::Sacrebleu1210) {
    for (const auto& [key, value] : signature_items(options, facts, length))
      text += (text.empty() ? "" : "|") + key + ":" + value;
    return text;
  }
  const bool brief = length == SignatureLength::Short;
  std::vector<std::pair<std::string, std::string>> items{
      {brief ? "c" : "case", options.letters == LetterCase::Lower ? "lc" : "mixed"},
      {brief ? "#" : "numrefs", count_text(facts)},
      {brief ? "s" : "smooth", to_string(options.smoothing)},
      {"tok", to_string(options.tokens)},
      {"impl", facts.implementation + "-as-1.2.10"}};
  for (const auto& [key, value] : items) text += (text.empty() ? "" : "+") + key + "." + value;
  return text;
}

std::string verbose_score(const Bleu& bleu) {
  std::string text;
  for (const double precision : bleu.precisions)
    text += (text.empty() ? "" : "/") + printed("%.1f", precision);
  return text + printed(" (BP = %.3f ratio = %.3f hyp_len = %lld ref_len = %lld)", bleu.bp, bleu.ratio,
                        static_cast<long long>(bleu.statistics.hyp_len),
                        static_cast<long long>(bleu.statistics.ref_len));
}

}  // namespace millrace
