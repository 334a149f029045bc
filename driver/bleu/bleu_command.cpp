#include "driver/bleu/bleu_command.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

#include "driver/bleu/parallel_texts.h"
#include "driver/cli/command_support.h"
#include "runtime/base/json.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"
#include "runtime/metrics/bleu.h"
#include "runtime/metrics/bleu_signature.h"
#include "runtime/metrics/detokenize.h"
#include "runtime/metrics/significance.h"

namespace millrace {
namespace {

constexpr std::size_t kManyTokenizedPeriods = 100;  // sacreBLEU's
constexpr double kSignificant = 0.05;
constexpr int kMostSamples = 10'000'000;

enum class Resampling { None, Interval, PairedBootstrap, PairedRandomization };

/// The command line, read.
struct BleuRequest {
  BleuOptions options;
  Resampling resampling = Resampling::None;
  ResamplingOptions samples;
  bool sentences = false, score_only = false, force = false, detokenize = false;
  SignatureLength signature = SignatureLength::Long;
  int width = 2;
  OutputFormat format = OutputFormat::Text;
  int num_refs = 1;  ///< tab-separated in one file; 0: as many as there are
  std::vector<std::string> systems, references;
};

/// Everything that is computed of one file of hypotheses.
struct System {
  std::string name;
  std::vector<BleuStatistics> sentences;
  Bleu bleu;
};

// ---- flags
// --------------------------------------------------------------------------------------------------

/// Warns of settings that the compared program does not have.
void check_compat(const BleuFlags& flags, const Arguments& given, const BleuOptions& options,
                  Problems& problems) {
  const bool old = options.compat == BleuCompat::Sacrebleu1210;
  const bool multi = options.compat == BleuCompat::MultiBleu, mteval = options.compat == BleuCompat::Mteval;
  const auto refuse = [&](bool wrong, const char* flag, const char* hint) {
    if (wrong)
      problems.push_back(
          {long_name(flag), "does not go with --bleu-compat " + to_string(options.compat), hint});
  };
  refuse(old && options.tokens == BleuTokens::Characters, "tokenize", "13a, intl or none");
  refuse(old && options.smoothing == Smoothing::AddK, "smooth", "exp, floor or none");
  refuse(multi && options.tokens != BleuTokens::None, "tokenize",
         "it splits what it is given at white space");
  refuse(multi && options.smoothing != Smoothing::None, "smooth", "it has none");
  refuse(mteval && options.tokens != BleuTokens::Mteval13a, "tokenize", "it has 13a only");
  refuse(mteval && options.smoothing != Smoothing::Exponential && options.smoothing != Smoothing::None,
         "smooth", "exp or none");
  refuse((old || multi) && options.max_order != 4, "max-order", "it stops at 4");
  refuse(!mteval && flags.preserve_case, "preserve-case", "it is mteval's -c");
  refuse(mteval && flags.lowercase, "lowercase", "it does so; --preserve-case keeps case");
  refuse(!mteval && given.has("brevity-penalty"), "brevity-penalty", "it is mteval's");
  for (const char* flag : {"confidence", "paired-bs", "paired-ar"})
    refuse((multi || mteval) && given.has(flag), flag, "take 2.x or 1.2.10");
  refuse(multi && flags.sentences, "sentence", "take 2.x, 1.2.10 or mteval");
}

BleuOptions bleu_options(const BleuFlags& flags, const Arguments& given, Problems& problems) {
  BleuOptions options = defaults_of(flags.compat);
  if (flags.tokens) options.tokens = *flags.tokens;
  if (flags.smoothing) options.smoothing = *flags.smoothing;
  options.smooth_value = flags.options.smooth_value;
  if (options.smooth_value && !default_smooth_value(options))
    problems.push_back({"--smooth-value", "goes with --smooth floor and add-k only", ""});
  options.max_order = flags.options.max_order;
  if (flags.lowercase) options.letters = LetterCase::Lower;
  if (flags.preserve_case) options.letters = LetterCase::Mixed;
  if (flags.sentences) options.orders = Orders::Effective;
  options.reference_length = flags.options.reference_length;
  check_compat(flags, given, options, problems);
  return options;
}

void read_resampling(const BleuFlags& flags, const Arguments& given, BleuRequest& request,
                     Problems& problems) {
  struct Kind {
    const char* flag;
    const char* count;
    bool wanted;
    int samples;
    Resampling kind;
  };
  const Kind kinds[] = {
      {"confidence", "confidence-n", flags.confidence, flags.confidence_samples, Resampling::Interval},
      {"paired-bs", "paired-bs-n", flags.paired_bootstrap, flags.bootstrap_samples,
       Resampling::PairedBootstrap},
      {"paired-ar", "paired-ar-n", flags.paired_randomization, flags.randomization_trials,
       Resampling::PairedRandomization}};
  for (const Kind& kind : kinds) {
    if (!kind.wanted) {
      if (given.has(kind.count))
        problems.push_back({long_name(kind.count), "needs " + long_name(kind.flag), ""});
      continue;
    }
    if (request.resampling != Resampling::None)
      problems.push_back(
          {long_name(kind.flag), "is one test too many", "one of --confidence, --paired-bs and --paired-ar"});
    if (request.sentences)
      problems.push_back({long_name(kind.flag), "does not go with --sentence", "it is about a corpus"});
    request.resampling = kind.kind;
    request.samples.samples = kind.samples;
  }
  request.samples.seed = flags.seed;
  const bool paired = request.resampling == Resampling::PairedBootstrap ||
                      request.resampling == Resampling::PairedRandomization;
  if (paired && request.systems.size() == 1)
    problems.push_back(
        {"--paired-bs, --paired-ar", "compare several systems", "name the others with --system FILE"});
  if (request.resampling == Resampling::Interval && request.systems.size() > 1)
    problems.push_back({"--confidence", "is about one system", "--paired-bs has an interval of each"});
}

Result<BleuRequest> request_of(const BleuFlags& flags, const Arguments& given, Problems problems) {
  const std::vector<std::string>& files = given.positionals();
  BleuRequest request{.options = bleu_options(flags, given, problems),
                      .sentences = flags.sentences,
                      .score_only = flags.score_only,
                      .force = flags.force,
                      .detokenize = flags.detokenize,
                      .signature = flags.short_signature ? SignatureLength::Short : SignatureLength::Long,
                      .width = flags.width,
                      .format = flags.format,
                      .num_refs = flags.num_refs,
                      .systems = flags.systems,
                      .references = {files.begin() + 1, files.end()}};
  request.systems.insert(request.systems.begin(), files.front());
  read_resampling(flags, given, request, problems);
  if (request.num_refs != 1 && request.references.size() > 1)
    problems.push_back({"--num-refs",
                        "splits one file of references, got " + std::to_string(request.references.size()),
                        ""});
  if (request.sentences && request.systems.size() > 1)
    problems.push_back({"--sentence", "is about one system", ""});
  for (std::size_t i = 0; i < request.systems.size(); ++i)
    if (std::find(request.systems.begin(), request.systems.begin() + static_cast<std::ptrdiff_t>(i),
                  request.systems[i]) != request.systems.begin() + static_cast<std::ptrdiff_t>(i))
      problems.push_back({"--system", request.systems[i] + " is given twice", ""});
  const auto standard_inputs = std::count(request.systems.begin(), request.systems.end(), "-") +
                               std::count(request.references.begin(), request.references.end(), "-");
  if (standard_inputs > 1) problems.push_back({"-", "stands for stdin, which can be read once", ""});
  if (!problems.empty()) return problems;
  return request;
}

// ---- counting
// ----------------------------------------------------------------------------------------------

Result<std::vector<TextLines>> read_all(const std::vector<std::string>& paths) {
  std::vector<TextLines> texts;
  Problems problems;
  for (const std::string& path : paths) {
    Result<TextLines> text = read_lines(path);
    if (!text) {
      append(problems, text.problems());
      continue;
    }
    if (text->has_byte_order_mark)
      std::fprintf(stderr,
                   "note: %s: starts with a byte order mark, which is part of its first word. Hint: "
                   "remove it\n",
                   text->name.c_str());
    texts.push_back(*std::move(text));
  }
  if (!problems.empty()) return problems;
  return texts;
}

void warn_of_tokens(const BleuRequest& request, const TextLines& text) {
  if (request.force || request.detokenize || request.options.tokens == BleuTokens::None) return;
  const auto tokenized =
      std::ranges::count_if(text.lines, [](std::string_view line) { return line.ends_with(" ."); });
  if (static_cast<std::size_t>(tokenized) >= kManyTokenizedPeriods)
    std::fprintf(stderr,
                 "note: %s: %td lines end in ' .': are they tokenized? BLEU is of detokenized text. Hint: "
                 "--force if they are meant so, --tokenize none for words as they stand\n",
                 text.name.c_str(), tokenized);
}

System count_system(const BleuRequest& request, const TextLines& text, const ReferenceSet& references) {
  System system{.name = text.name};
  BleuCounter count(request.options);
  BleuStatistics sum;
  system.sentences.reserve(text.lines.size());
  for (std::size_t s = 0; s < text.lines.size(); ++s) {
    const std::string written = request.detokenize ? detokenize(join_subwords(text.lines[s])) : std::string();
    const std::string_view hypothesis = request.detokenize ? written : text.lines[s];
    sum += system.sentences.emplace_back(count(hypothesis, references.by_sentence[s]));
  }
  system.bleu = score_bleu(sum, request.options);
  return system;
}

// ---- printing
// ----------------------------------------------------------------------------------------------

std::string fixed(double value, int width) {
  return printed("%.*f", width, value);
}

std::string score_text(const BleuRequest& request, const Bleu& bleu,
                       const std::optional<ConfidenceInterval>& interval) {
  if (request.options.compat == BleuCompat::Mteval)
    return fixed(bleu.score / 100, std::max(4, request.width));
  std::string text = fixed(bleu.score, request.width);
  if (interval)
    text += " (μ = " + fixed(interval->mean, request.width) + " ± " +
            fixed(interval->half_width, request.width) + ")";
  return text;
}

/// Returns the score in the form of the program that --bleu-compat names.
std::string score_line(const BleuRequest& request, const std::string& signature, const Bleu& bleu,
                       const std::optional<ConfidenceInterval>& interval = {}) {
  const std::string score = score_text(request, bleu, interval);
  if (request.score_only) return score;
  const BleuStatistics& counts = bleu.statistics;
  switch (request.options.compat) {
    case BleuCompat::MultiBleu: {
      std::string precisions;
      for (const double precision : bleu.precisions)
        precisions += (precisions.empty() ? "" : "/") + fixed(precision, 1);
      return "BLEU = " + score + ", " + precisions +
             printed(" (BP=%.3f, ratio=%.3f, hyp_len=%lld, ref_len=%lld)", bleu.bp, bleu.ratio,
                     static_cast<long long>(counts.hyp_len), static_cast<long long>(counts.ref_len));
    }
    case BleuCompat::Mteval:
      return "BLEU score = " + score;
    case BleuCompat::Sacrebleu1210:
      return "BLEU+" + signature + " = " + score + " " + verbose_score(bleu);
    case BleuCompat::Sacrebleu2:
      break;
  }
  return "BLEU|" + signature + " = " + score + " " + verbose_score(bleu);
}

Json numbers_of(const Bleu& bleu) {
  Json counts = Json::array(), totals = Json::array(), precisions = Json::array();
  for (std::size_t n = 0; n < bleu.precisions.size(); ++n) {
    counts.push_back(bleu.statistics.correct[n]);
    totals.push_back(bleu.statistics.total[n]);
    precisions.push_back(bleu.precisions[n]);
  }
  return Json::object({{"score", bleu.score},
                       {"counts", counts},
                       {"totals", totals},
                       {"precisions", precisions},
                       {"bp", bleu.bp},
                       {"ratio", bleu.ratio},
                       {"sys_len", bleu.statistics.hyp_len},
                       {"ref_len", bleu.statistics.ref_len}});
}

/// Returns the first members of sacreBLEU's JSON: the score where there is one, then the signature's items.
Json json_head(const BleuRequest& request, const SignatureFacts& facts, const Bleu* bleu = nullptr) {
  Json json = Json::object({{"name", "BLEU"}});
  if (bleu) json["score"] = bleu->score;
  json["signature"] = bleu_signature(request.options, facts);
  if (bleu) json["verbose_score"] = verbose_score(*bleu);
  for (const auto& [key, value] : signature_items(request.options, facts)) json[key] = value;
  return json;
}

void print_json(const Json& json) {
  std::printf("%s\n", json.dump(1).c_str());
}

/// Says that it works while `compute` does.
template <class Compute>
auto resampled(Compute&& compute) {
  const WorkingLine working("resamples");
  return compute();
}

void print_system(const BleuRequest& request, const SignatureFacts& facts, const System& system) {
  std::optional<ConfidenceInterval> interval;
  if (request.resampling == Resampling::Interval)
    interval =
        resampled([&] { return bootstrap_interval(system.sentences, request.options, request.samples); });
  if (request.format == OutputFormat::Text) {
    const std::string signature = bleu_signature(request.options, facts, request.signature);
    std::printf("%s\n", score_line(request, signature, system.bleu, interval).c_str());
    return;
  }
  Json json = json_head(request, facts, &system.bleu);
  const Json numbers = numbers_of(system.bleu);
  for (const Json::Member& member : numbers.members()) json[member.first] = member.second;
  if (interval) {
    json["confidence_mean"] = interval->mean;
    json["confidence_var"] = interval->half_width;
  }
  print_json(json);
}

void print_sentences(const BleuRequest& request, const SignatureFacts& facts, const System& system) {
  if (request.format == OutputFormat::Text) {
    const std::string signature = bleu_signature(request.options, facts, request.signature);
    for (const BleuStatistics& sentence : system.sentences)
      std::printf("%s\n", score_line(request, signature, score_bleu(sentence, request.options)).c_str());
    return;
  }
  Json json = json_head(request, facts), sentences = Json::array();
  for (const BleuStatistics& sentence : system.sentences)
    sentences.push_back(numbers_of(score_bleu(sentence, request.options)));
  json["sentences"] = std::move(sentences);
  print_json(json);
}

std::vector<SystemResult> results_of(const BleuRequest& request, const std::vector<System>& systems) {
  std::vector<SystemResult> results;
  if (request.resampling == Resampling::None) {
    for (const System& system : systems) results.push_back({.score = system.bleu.score});
    return results;
  }
  std::vector<std::vector<BleuStatistics>> statistics;
  for (const System& system : systems) statistics.push_back(system.sentences);
  return resampled([&] {
    return request.resampling == Resampling::PairedBootstrap
               ? paired_bootstrap(statistics, request.options, request.samples)
               : paired_randomization(statistics, request.options, request.samples);
  });
}

void print_table(const BleuRequest& request, const std::string& signature, const std::vector<System>& systems,
                 const std::vector<SystemResult>& results) {
  int name_width = 8;
  for (const System& system : systems)
    name_width = std::max(name_width, static_cast<int>(system.name.size()) + 2);
  const bool paired = request.resampling != Resampling::None;
  const bool intervals = request.resampling == Resampling::PairedBootstrap;
  std::printf("%-*s%10s%s%s\n", name_width, "system", "BLEU", intervals ? "        mean    +-95 %" : "",
              paired ? "         p" : "");
  for (std::size_t i = 0; i < systems.size(); ++i) {
    const SystemResult& result = results[i];
    std::printf("%-*s%10s", name_width, systems[i].name.c_str(),
                score_text(request, systems[i].bleu, {}).c_str());
    if (result.interval)
      std::printf("  %10s%10s", fixed(result.interval->mean, request.width).c_str(),
                  fixed(result.interval->half_width, request.width).c_str());
    if (result.p_value) std::printf("  %8.4f%s", *result.p_value, *result.p_value < kSignificant ? " *" : "");
    if (paired && i == 0) std::printf("  baseline");
    std::printf("\n");
  }
  if (paired)
    std::printf(
        "p: how often chance alone makes a difference to the baseline as large (%d %s, seed %llu); * p < "
        "%.2f\n",
        request.samples.samples, intervals ? "resamples" : "trials",
        static_cast<unsigned long long>(request.samples.seed), kSignificant);
  std::printf("%s\n", signature.c_str());
}

void print_systems(const BleuRequest& request, const SignatureFacts& facts,
                   const std::vector<System>& systems) {
  const std::vector<SystemResult> results = results_of(request, systems);
  if (request.format == OutputFormat::Text)
    return print_table(request, bleu_signature(request.options, facts, request.signature), systems, results);
  Json json = json_head(request, facts), rows = Json::array();
  for (std::size_t i = 0; i < systems.size(); ++i) {
    Json row = Json::object({{"system", systems[i].name}});
    const Json numbers = numbers_of(systems[i].bleu);
    for (const Json::Member& member : numbers.members()) row[member.first] = member.second;
    row["p_value"] = results[i].p_value ? Json(*results[i].p_value) : Json();
    row["mean"] = results[i].interval ? Json(results[i].interval->mean) : Json();
    row["ci"] = results[i].interval ? Json(results[i].interval->half_width) : Json();
    rows.push_back(std::move(row));
  }
  json["systems"] = std::move(rows);
  print_json(json);
}

// ---- the command
// -------------------------------------------------------------------------------------------

SignatureFacts facts_of(const BleuRequest& request, const ReferenceSet& references) {
  const bool randomization = request.resampling == Resampling::PairedRandomization;
  const bool bootstrap = request.resampling != Resampling::None && !randomization;
  return {.num_references = references.number,
          .bootstrap = bootstrap ? request.samples.samples : 0,
          .randomization = randomization ? request.samples.samples : 0,
          .seed = request.samples.seed,
          .implementation = "millrace-" MILLRACE_VERSION};
}

int score_systems(const BleuRequest& request) {
  std::optional<WorkingLine> working("scores");  // until there is something to print
  const Result<std::vector<TextLines>> hypotheses = read_all(request.systems);
  const Result<std::vector<TextLines>> streams = read_all(request.references);
  Problems problems;
  if (!hypotheses) append(problems, hypotheses.problems());
  if (!streams) append(problems, streams.problems());
  if (!problems.empty()) return exit_with(ExitCode::InputData, problems);
  std::vector<const TextLines*> all;
  for (const TextLines& text : *hypotheses) all.push_back(&text);
  for (const TextLines& text : *streams) all.push_back(&text);
  if (problems = check_line_counts(all); !problems.empty()) return exit_with(ExitCode::InputData, problems);
  if (all.front()->lines.empty())
    return exit_with(ExitCode::InputData, {{all.front()->name, "has no line", "there is nothing to score"}});
  const Result<ReferenceSet> references =
      request.num_refs == 1 ? references_of(*streams) : split_references(streams->front(), request.num_refs);
  if (!references) return exit_with(ExitCode::InputData, references.problems());

  std::vector<System> systems;
  for (const TextLines& text : *hypotheses) {
    warn_of_tokens(request, text);
    systems.push_back(count_system(request, text, *references));
    if (request.options.compat == BleuCompat::MultiBleu && systems.back().bleu.statistics.hyp_len == 0)
      return exit_with(ExitCode::InputData,
                       {{text.name, "has no word, and multi-bleu.perl no BLEU for that", ""}});
  }
  working.reset();
  const SignatureFacts facts = facts_of(request, *references);
  if (systems.size() > 1) {
    print_systems(request, facts, systems);
  } else if (request.sentences) {
    print_sentences(request, facts, systems.front());
  } else {
    print_system(request, facts, systems.front());
  }
  return 0;
}

Result<int> num_refs_from(const std::string& text) {
  if (text == "var") return 0;
  const Result<std::int64_t> count = integer_from(text, 1, 1000);
  if (!count) return count.problems();
  return static_cast<int>(*count);
}

}  // namespace

Result<FileScore> score_file(const BleuFlags& flags, const Arguments& given, const std::string& hypotheses) {
  Problems problems;
  BleuRequest request;
  request.systems = {hypotheses};
  request.references = given.positionals();
  request.options = bleu_options(flags, given, problems);
  request.detokenize = flags.detokenize;
  if (!problems.empty()) return problems;
  const Result<std::vector<TextLines>> texts = read_all(request.systems),
                                       streams = read_all(request.references);
  if (!texts) append(problems, texts.problems());
  if (!streams) append(problems, streams.problems());
  if (!problems.empty()) return problems;
  std::vector<const TextLines*> all{&texts->front()};
  for (const TextLines& text : *streams) all.push_back(&text);
  if (problems = check_line_counts(all); !problems.empty()) return problems;
  if (texts->front().lines.empty()) return Problem{hypotheses, "has no line", "there is nothing to score"};
  const Result<ReferenceSet> references = references_of(*streams);
  if (!references) return references.problems();
  return FileScore{count_system(request, texts->front(), *references).bleu.score,
                   bleu_signature(request.options, facts_of(request, *references), SignatureLength::Long)};
}

CommandSpec bleu_spec(BleuFlags& f) {
  CommandSpec spec;
  spec.command = "bleu";
  spec.summary = "Score translations with BLEU: sacreBLEU's numbers, in milliseconds.";
  spec.positionals = {"HYP", "REF..."};
  const std::string text = "What is scored", significance = "Significance", output = "Output";
  spec.flags = {
      flag("", "tokenize", "13a|intl|char|none", "How words are found (default: 13a; of multi-bleu none).",
           into::choice(f.tokens, "tokenizer")),
      flag("", "lowercase", "Case does not count: lower case of all scripts before words are found.",
           into::on(f.lowercase)),
      flag("", "smooth", "exp|floor|add-k|none",
           "What an order without a match counts as (default: exp; of multi-bleu none).",
           into::choice(f.smoothing, "smoothing")),
      flag("", "smooth-value", "V", "Of floor (default 0.1; of 1.2.10 0) and add-k (default 1).",
           into::number(f.options.smooth_value, 0, 1e9)),
      flag("", "max-order", "N", "n-grams of up to N words.",
           into::integer(f.options.max_order, 1, kMostBleuOrder)),
      flag("", "bleu-compat", "PROGRAM",
           "Whose BLEU: sacreBLEU 2.x or 1.2.10 (MLPerf's and PipeDream's), multi-bleu (.perl), mteval "
           "(-v13a.pl).",
           into::choice(f.compat, "program")),
      flag("", "preserve-case", "Of mteval, which lower-cases otherwise: its -c.", into::on(f.preserve_case)),
      flag("", "brevity-penalty", "closest|shortest", "Of mteval: the reference whose length counts.",
           into::choice(f.options.reference_length, "length")),
      flag(text, "num-refs", "N|var",
           "REF is one file with N references a line between tabs; var: as many as there are.",
           into::parsed(f.num_refs, num_refs_from, std::to_string(f.num_refs))),
      {.name = "system",
       .value = "FILE",
       .help = "Another translation of the same sentences; HYP is the baseline.",
       .group = text,
       .repeatable = true,
       .target = into::texts(f.systems)},
      flag(text, "sentence", "A score for each sentence, over the orders that it has n-grams of.",
           into::on(f.sentences)),
      flag(text, "detokenize",
           "Hypotheses are a model's words: join subwords (@@), drop <s>, <\\s> and <pad>, write as text by "
           "Moses' "
           "rules for English, then score. PipeDream's and MLPerf's BLEU takes this, --bleu-compat 1.2.10, "
           "--tokenize intl and --lowercase.",
           into::on(f.detokenize)),
      flag("A run", "run", "DIR",
           "Instead of HYP: each checkpoint of this run translates --input; the table and DIR/bleu.json, "
           "which "
           "`millrace report` draws, have BLEU after each.",
           into::text(f.run)),
      flag("A run", "input", "FILE", "With --run: what REF translates.", into::text(f.input)),
      flag("A run", "translate", "FLAGS",
           "With --run: flags for `millrace translate`, between spaces: "
           "--translate='-c bpe -v vocab --beam 5'.",
           into::text(f.translate)),
      flag(text, "force", "Do not warn of hypotheses that look tokenized.", into::on(f.force)),
      flag(significance, "confidence",
           "Bootstrap resampling: mean and 95 % interval. With --seed's default these are sacreBLEU's "
           "numbers (as it gets them with NumPy 2).",
           into::on(f.confidence)),
      flag(significance, "confidence-n", "N", "Resamples.",
           into::integer(f.confidence_samples, 1, kMostSamples)),
      flag(significance, "paired-bs", "Each --system against HYP: paired bootstrap test, with intervals.",
           into::on(f.paired_bootstrap)),
      flag(significance, "paired-bs-n", "N", "Resamples.",
           into::integer(f.bootstrap_samples, 1, kMostSamples)),
      flag(significance, "paired-ar", "Each --system against HYP: approximate randomization test.",
           into::on(f.paired_randomization)),
      flag(significance, "paired-ar-n", "N", "Trials.",
           into::integer(f.randomization_trials, 1, kMostSamples)),
      flag(significance, "seed", "N", "Of the tests (NumPy's generator).", into::integer(f.seed, 0)),
      flag(output, "format", "text|json", "What to print.", into::choice(f.format, "format")),
      flag(output, "score-only", "", "The score alone.", into::on(f.score_only), 'b'),
      flag(output, "width", "N", "Decimals in text; JSON has all.", into::integer(f.width, 0, 17), 'w'),
      flag(output, "short", "The short form of the signature.", into::on(f.short_signature)),
  };
  spec.interrupted = "nothing was written";
  spec.examples = {"millrace bleu out.de newstest2014.de",
                   "millrace bleu - ref.a ref.b --lowercase --tokenize intl --format json",
                   "millrace bleu out.bpe newstest2014.de --detokenize --bleu-compat 1.2.10 --tokenize intl "
                   "--lowercase -b",
                   "millrace bleu base.de ref.de --system new.de --paired-bs"};
  return spec;
}

CommandSpec bleu_spec() {
  return without_targets<BleuFlags>(bleu_spec);
}

int bleu_command(const std::vector<std::string>& args) {
  BleuFlags flags;
  return run_command(bleu_spec(flags), args, [&](const Arguments& given, Problems problems) {
    const Result<BleuRequest> request = request_of(flags, given, std::move(problems));
    return request ? score_systems(*request) : exit_with(ExitCode::Usage, request.problems());
  });
}

}  // namespace millrace
