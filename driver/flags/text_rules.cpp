#include "driver/flags/text_rules.h"

namespace millrace {
namespace {

Result<NormalForm> form_from(const std::string& text) {
  static const std::vector<std::pair<std::string, NormalForm>> forms{
      {"none", NormalForm::None}, {"nfc", NormalForm::Nfc}, {"nfkc", NormalForm::Nfkc}};
  std::vector<std::string> names;
  for (const auto& [name, form] : forms) names.push_back(name);
  const Result<std::size_t> place = choice_from(text, "form", names);
  if (!place) return place.problems();
  return forms[*place].second;
}

/// Joiners stand where punctuation is split off.
Target split_with_joiners(TextRules& rules) {
  return {[&rules](const std::vector<std::string>&) -> std::optional<Problem> {
    rules.split_punctuation = rules.joiners = true;
    return std::nullopt;
  }};
}

}  // namespace

void add_text_rules(CommandSpec& spec, TextRules& rules) {
  const std::string group = "Lines, before anything else";
  spec.flags.push_back(flag(group, "invalid-utf8", "POLICY",
                            "Lines with bytes that are no UTF-8: refuse (an error with the place), replace "
                            "(each byte by U+FFFD) or drop the line.",
                            into::choice(rules.invalid, "policy")));
  spec.flags.push_back(
      flag(group, "normal-form", "NAME", "none, nfc or nfkc.", into::parsed(rules.form, form_from, "none")));
  spec.flags.push_back(flag(group, "lower-case", "All letters.", into::on(rules.lower_case)));
  spec.flags.push_back(flag(group, "split-punctuation",
                            "Each punctuation character becomes a word, white space one space.",
                            into::on(rules.split_punctuation)));
  spec.flags.push_back(flag(
      group, "joiners",
      "The same, with marks (U+FFED) where no space stood, so that text comes back from tokens as it was.",
      split_with_joiners(rules)));
}

}  // namespace millrace
