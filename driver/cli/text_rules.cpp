#include "driver/cli/text_rules.h"

namespace millrace {

void add_text_rules(CommandSpec& spec) {
  const std::string group = "Lines, before anything else";
  spec.flags.push_back(
      {.name = "invalid-utf8",
       .value = "POLICY",
       .help = "Lines with bytes that are no UTF-8: refuse (an error with the place), replace (each "
               "byte by U+FFFD) or drop the line.",
       .fallback = "refuse",
       .group = group});
  spec.flags.push_back({.name = "normal-form",
                        .value = "NAME",
                        .help = "none, nfc or nfkc.",
                        .fallback = "none",
                        .group = group});
  spec.flags.push_back({.name = "lower-case", .help = "All letters.", .group = group});
  spec.flags.push_back({.name = "split-punctuation",
                        .help = "Each punctuation character becomes a word, white space one space.",
                        .group = group});
  spec.flags.push_back(
      {.name = "joiners",
       .help = "The same, with marks (U+FFED) where no space stood, so that text comes back from "
               "tokens as it was.",
       .group = group});
}

TextRules text_rules(const Arguments& arguments, Problems& problems) {
  TextRules rules;
  const std::string invalid = arguments.string("invalid-utf8"), form = arguments.string("normal-form");
  if (invalid == "replace") {
    rules.invalid = InvalidUtf8::Replace;
  } else if (invalid == "drop") {
    rules.invalid = InvalidUtf8::Drop;
  } else if (invalid != "refuse") {
    problems.push_back({"--invalid-utf8", "unknown policy '" + invalid + "'", "refuse, replace or drop"});
  }
  if (form == "nfc") {
    rules.form = NormalForm::Nfc;
  } else if (form == "nfkc") {
    rules.form = NormalForm::Nfkc;
  } else if (form != "none") {
    problems.push_back({"--normal-form", "unknown form '" + form + "'", "none, nfc or nfkc"});
  }
  rules.lower_case = arguments.boolean("lower-case");
  rules.joiners = arguments.boolean("joiners");
  rules.split_punctuation = arguments.boolean("split-punctuation") || rules.joiners;
  return rules;
}

}  // namespace millrace
