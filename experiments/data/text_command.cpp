#include "experiments/data/text_command.h"

#include <cstdio>
#include <memory>

#include "data/text/bpe_learn.h"
#include "data/text/line_reader.h"
#include "data/text/output_files.h"
#include "data/text/sentencepiece.h"
#include "data/text/text_inputs.h"
#include "data/text/text_jobs.h"
#include "driver/cli/command_group.h"
#include "driver/cli/command_support.h"
#include "driver/cli/text_rules.h"
#include "experiments/data/progress_line.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

// ---- flags that several commands have

const Flag kOverwrite{.name = "overwrite", .help = "Replace outputs that exist."};
const Flag kFormat{
    .name = "format", .value = "text|json", .help = "How to print the result.", .fallback = "text"};
const Flag kCodes{.name = "codes",
                  .short_name = 'c',
                  .value = "FILE",
                  .help = "BPE codes, of `learn-bpe` or subword-nmt (version 0.2 or 0.1)."};
const Flag kMerges{
    .name = "merges", .value = "N", .help = "Use only the first N codes (-1: all).", .fallback = "-1"};
const Flag kRestriction{
    .name = "restrict-to",
    .value = "FILE",
    .help =
        "Pieces with their counts (`vocab --counts`; subword-nmt's --vocabulary): merges whose piece is not "
        "among them are undone."};
const Flag kThreshold{.name = "vocabulary-threshold",
                      .value = "N",
                      .help = "With --restrict-to: pieces that occur less often are not among them.",
                      .fallback = "0"};

Flag outputs_flag(const char* help) {
  return {
      .name = "out", .short_name = 'o', .value = "FILE", .help = help, .required = true, .repeatable = true};
}

CommandSpec text_spec(const char* command, const char* summary) {
  CommandSpec spec;
  spec.command = std::string("data text ") + command;
  spec.summary = summary;
  return spec;
}

TextRun text_run(Arguments& arguments, Problems& problems) {
  TextRun run{.inputs = arguments.positionals(), .threads = thread_count(arguments)};
  run.rules = text_rules(arguments, problems);
  return run;
}

Existing existing(const Arguments& arguments) {
  return arguments.boolean("overwrite") ? Existing::Replaced : Existing::Refused;
}

std::vector<std::string> output_paths(const Arguments& arguments, std::size_t inputs, Problems& problems) {
  const std::vector<std::string> paths = arguments.strings("out");
  if (paths.size() != inputs)
    problems.push_back(
        {"--out",
         "is given " + std::to_string(paths.size()) + " times for " + std::to_string(inputs) + " input files",
         "give one --out for each, in their order"});
  return paths;
}

/// One output of a command that makes one, refused before the work if it exists.
std::string output_path(const Arguments& arguments, Problems& problems) {
  const std::string path = arguments.string("out");
  std::error_code error;
  if (!arguments.boolean("overwrite") && std::filesystem::exists(path, error))
    problems.push_back({path, "exists already", "give another name, or --overwrite"});
  return path;
}

// ---- printing

/// Counts as JSON has them.
std::int64_t number(std::uint64_t count) {
  return static_cast<std::int64_t>(count);
}

double rate_of(Bytes bytes, double seconds) {
  return static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9);
}

/// What a command did, as one line of text or a JSON object.
class Outcome {
 public:
  Outcome(OutputFormat format, Clock& clock) : format_(format), clock_(clock), start_(clock.now()) {}

  void lines(const TextReport& report) {
    bytes_ = static_cast<Bytes>(report.bytes);
    add("lines", report.lines, "lines");
    add("kept", report.kept, "kept");
    for (std::size_t i = 0; i < kNumDropped; ++i) {
      if (report.dropped[i] == 0) continue;
      json_["dropped"][to_string(static_cast<Dropped>(i))] = number(report.dropped[i]);
      text_ += ", " + std::to_string(report.dropped[i]) + " dropped: " + to_string(static_cast<Dropped>(i));
    }
    if (report.replaced_bytes > 0) add("replaced_bytes", report.replaced_bytes, "bytes replaced");
  }
  void add(const char* key, std::uint64_t value, const char* words) {
    json_[key] = number(value);
    text_ += (text_.empty() ? "" : ", ") + std::to_string(value) + " " + words;
  }
  void more(const std::string& line) { rest_ += line + "\n"; }
  Json& json() { return json_; }

  int print() {
    const double seconds = Seconds(clock_.now() - start_).count();
    json_["bytes"] = bytes_;
    json_["seconds"] = seconds;
    json_["mb_per_s"] = rate_of(bytes_, seconds);
    if (format_ == OutputFormat::Json) {
      std::printf("%s\n", json_.dump(1).c_str());
    } else {
      std::printf("%s%s; %.3f MB of text in %.2f s, %.1f MB/s\n", rest_.c_str(), text_.c_str(),
                  static_cast<double>(bytes_) / 1e6, seconds, rate_of(bytes_, seconds));
    }
    return 0;
  }

 private:
  OutputFormat format_;
  Clock& clock_;
  TimePoint start_;
  Bytes bytes_ = 0;
  Json json_ = Json::object({});
  std::string text_, rest_;
};

Json info_json(const std::string& path, const TokenFileInfo& info) {
  return Json::object({{"file", path},
                       {"sentences", number(info.sentences)},
                       {"tokens", number(info.tokens)},
                       {"longest", number(info.longest)},
                       {"kind", to_string(info.kind)},
                       {"vocabulary_size", number(info.vocabulary_size)},
                       {"vocabulary", info.vocabulary.hex()},
                       {"bytes_per_token", number(info.bytes_per_token)}});
}

std::string info_text(const std::string& path, const TokenFileInfo& info) {
  return path + ": " + std::to_string(info.sentences) + " sentences, " + std::to_string(info.tokens) +
         " tokens of " + std::to_string(info.bytes_per_token) + " bytes, longest " +
         std::to_string(info.longest) + ", vocabulary of " + std::to_string(info.vocabulary_size) + " (" +
         to_string(info.kind) + ", " + info.vocabulary.hex() + ")";
}

// ---- learn-bpe

CommandSpec learn_bpe_spec() {
  CommandSpec spec = text_spec("learn-bpe", "Learn byte-pair codes of files together, as subword-nmt does.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      {.name = "out", .short_name = 'o', .value = "FILE", .help = "The codes.", .required = true},
      {.name = "merges", .short_name = 's', .value = "N", .help = "Codes at most.", .fallback = "32000"},
      {.name = "min-frequency", .value = "N", .help = "Stop when no pair occurs as often.", .fallback = "2"},
      kThreadsFlag,
      kOverwrite,
      kFormat};
  add_text_rules(spec);
  spec.examples = {
      "millrace data text learn-bpe train.de.gz train.en.gz --split-punctuation --merges 8000 -o "
      "bpe.8000"};
  return spec;
}

int learn_bpe_command(Arguments& arguments, OutputFormat format, Problems& problems) {
  TextRun run = text_run(arguments, problems);
  const LearnBpeOptions options{.merges = arguments.integer("merges", 0, 100'000'000),
                                .min_frequency = arguments.integer("min-frequency", 1, INT64_MAX)};
  const std::string out = output_path(arguments, problems);
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  if (const Status place = make_place_for_file(out); !place)
    return exit_with(ExitCode::Usage, place.problems());
  SteadyClock clock;
  Outcome outcome(format, clock);
  ProgressLine line(clock, size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line(done); };
  TextReport report;
  const WordCounts words = count_words(run, report);
  const std::vector<BpeMerge> merges =
      learn_bpe(words.words(), options, [&](std::int64_t done) { line(done, options.merges, "codes"); });
  write_text_output(out, bpe_codes_text(merges), existing(arguments));
  outcome.lines(report);
  outcome.add("words", words.size(), "different words");
  outcome.add("codes", merges.size(), "codes");
  return outcome.print();
}

// ---- apply-bpe

CommandSpec apply_bpe_spec() {
  CommandSpec spec = text_spec("apply-bpe", "Split the words of files by codes, as subword-nmt does.");
  spec.positionals = {"FILE..."};
  spec.flags = {kCodes,     outputs_flag("The split text of each FILE, in their order."),
                kMerges,    kRestriction,
                kThreshold, kThreadsFlag,
                kOverwrite, kFormat};
  spec.flags[0].required = true;
  add_text_rules(spec);
  spec.examples = {"millrace data text apply-bpe train.tok.en -c bpe.32000 -o train.tok.bpe.32000.en"};
  return spec;
}

int apply_bpe_command(Arguments& arguments, OutputFormat format, Problems& problems) {
  TextRun run = text_run(arguments, problems);
  const std::vector<std::string> outputs = output_paths(arguments, run.inputs.size(), problems);
  const std::int64_t merges = arguments.integer("merges", -1, INT64_MAX);
  const std::int64_t threshold = arguments.integer("vocabulary-threshold", 0, INT64_MAX);
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  auto codes = read_codes(arguments.string("codes"), merges);
  if (codes && arguments.has("restrict-to"))
    codes = restricted(*codes, arguments.string("restrict-to"), threshold);
  if (!codes) return exit_with(ExitCode::InputData, codes.problems());
  SteadyClock clock;
  Outcome outcome(format, clock);
  ProgressLine line(clock, size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line(done); };
  outcome.lines(apply_bpe_to_files(run, **codes, outputs, existing(arguments)));
  return outcome.print();
}

// ---- vocab

CommandSpec vocab_spec() {
  CommandSpec spec = text_spec("vocab", "List the words or pieces of files by falling count.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      {.name = "out", .short_name = 'o', .value = "FILE", .help = "The list.", .required = true},
      kCodes,
      kMerges,
      {.name = "counts", .help = "Each with its count, as `subword-nmt get-vocab` writes it."},
      {.name = "largest", .value = "N", .help = "Only the N most frequent (0: all).", .fallback = "0"},
      kThreadsFlag,
      kOverwrite,
      kFormat};
  add_text_rules(spec);
  spec.examples = {
      "millrace data text vocab train.de.gz train.en.gz --split-punctuation -c bpe.8000 -o vocab.bpe.8000",
      "millrace data text vocab train.tok.bpe.32000.en --counts -o vocab.en"};
  return spec;
}

WordCounts pieces_of(const WordCounts& words, const BpeCodes& codes) {
  WordCounts pieces;
  std::vector<std::uint32_t> ends;
  for (const auto& [word, count] : words.words()) {
    codes.split(word, ends);
    std::uint32_t begin = 0;
    for (const std::uint32_t end : ends) {
      pieces.add(word.substr(begin, end - begin) + (end < word.size() ? "@@" : ""), count);
      begin = end;
    }
  }
  return pieces;
}

int vocab_command(Arguments& arguments, OutputFormat format, Problems& problems) {
  TextRun run = text_run(arguments, problems);
  const std::int64_t merges = arguments.integer("merges", -1, INT64_MAX);
  const std::int64_t largest = arguments.integer("largest", 0, INT64_MAX);
  const std::string out = output_path(arguments, problems);
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  std::shared_ptr<const BpeCodes> codes;
  if (arguments.has("codes")) {
    const auto read = read_codes(arguments.string("codes"), merges);
    if (!read) return exit_with(ExitCode::InputData, read.problems());
    codes = *read;
  }
  SteadyClock clock;
  Outcome outcome(format, clock);
  ProgressLine line(clock, size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line(done); };
  TextReport report;
  WordCounts counts = count_words(run, report);
  if (codes) counts = pieces_of(counts, *codes);
  auto sorted = counts.by_count();
  if (largest > 0 && static_cast<std::int64_t>(sorted.size()) > largest)
    sorted.resize(static_cast<std::size_t>(largest));
  std::string text;
  for (const auto& [word, count] : sorted) {
    text += word;
    if (arguments.boolean("counts")) text += " " + std::to_string(count);
    text += '\n';
  }
  write_text_output(out, text, existing(arguments));
  outcome.lines(report);
  outcome.add("tokens", sorted.size(), "different tokens");
  return outcome.print();
}

// ---- clean

CommandSpec clean_spec() {
  CommandSpec spec =
      text_spec("clean", "Leave out the lines of parallel files that are no good for training.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      outputs_flag("What stays of each FILE, in their order."),
      {.name = "min-words", .value = "N", .help = "Of each side.", .fallback = "1"},
      {.name = "max-words", .value = "N", .help = "Of each side.", .fallback = "80"},
      {.name = "ratio", .value = "R", .help = "Most words of a side by those of another.", .fallback = "9"},
      {.name = "longest-word", .value = "N", .help = "In characters.", .fallback = "1000"},
      {.name = "latin-1", .help = "Leave out lines with characters above U+00FF too, as MLPerf's GNMT."},
      kThreadsFlag,
      kOverwrite,
      kFormat};
  add_text_rules(spec);
  spec.examples = {
      "millrace data text clean train.tok.de train.tok.en --latin-1 -o train.tok.clean.de -o "
      "train.tok.clean.en"};
  return spec;
}

int clean_command(Arguments& arguments, OutputFormat format, Problems& problems) {
  TextRun run = text_run(arguments, problems);
  const std::vector<std::string> outputs = output_paths(arguments, run.inputs.size(), problems);
  const CleanOptions options{.min_words = arguments.integer("min-words", 0, INT64_MAX),
                             .max_words = arguments.integer("max-words", 0, INT64_MAX),
                             .ratio = arguments.number("ratio", 1, 1e18),
                             .longest_word = arguments.integer("longest-word", 1, INT64_MAX),
                             .latin1 = arguments.boolean("latin-1")};
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  SteadyClock clock;
  Outcome outcome(format, clock);
  ProgressLine line(clock, size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line(done); };
  outcome.lines(clean_files(run, options, outputs, existing(arguments)));
  return outcome.print();
}

// ---- encode

CommandSpec encode_spec() {
  CommandSpec spec = text_spec("encode", "Turn text, parallel or not, into token files for training.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      outputs_flag("The token file of each FILE, in their order."),
      {.name = "vocabulary",
       .short_name = 'v',
       .value = "FILE",
       .help = "For BPE and words: a token a line. Once for all files, or once for each.",
       .repeatable = true},
      {.name = "codes",
       .short_name = 'c',
       .value = "FILE",
       .help = "With --vocabulary: BPE codes, once for all files or once for each; without them, words are "
               "tokens as "
               "they stand (the text is split already).",
       .repeatable = true},
      {.name = "restrict-to",
       .value = "FILE",
       .help = "With --codes: pieces with their counts (`vocab --counts`), once for all files or once "
               "for each; merges whose piece is not among them are undone.",
       .repeatable = true},
      kThreshold,
      {.name = "pad-to",
       .value = "N",
       .help = "With --vocabulary: made-up tokens up to a multiple of N, as GNMT has them (0: none).",
       .fallback = "8"},
      {.name = "wordpiece", .value = "FILE", .help = "For BERT: its vocab.txt."},
      {.name = "cased", .help = "With --wordpiece: keep case and accents."},
      {.name = "longest-word",
       .value = "N",
       .help = "With --wordpiece: characters above which a word is [UNK] (MLPerf: 200).",
       .fallback = "100"},
      {.name = "keep-special-tokens",
       .help = "With --wordpiece: [MASK] and its like in the text are the tokens."},
      {.name = "sentencepiece", .value = "FILE", .help = "A SentencePiece model."},
      {.name = "min-length",
       .value = "N",
       .help = "Leave out lines with fewer tokens on a side (begin and end not counted).",
       .fallback = "0"},
      {.name = "max-length", .value = "N", .help = "The same for more tokens (GNMT trains with 48)."},
      kThreadsFlag,
      kOverwrite,
      kFormat};
  add_text_rules(spec);
  spec.examples = {
      "millrace data text encode train.de.gz train.en.gz --split-punctuation -c bpe.8000 -v "
      "vocab.bpe.8000 --max-length 48 -o train.de.tokens -o train.en.tokens",
      "millrace data text encode wiki.txt --wordpiece vocab.txt -o wiki.tokens"};
  return spec;
}

template <class T>
const T& one_of(const std::vector<T>& values, std::size_t i) {
  return values[values.size() == 1 ? 0 : i];
}

struct SideOptions {
  std::int64_t pad_to = 0, longest_word = 0, threshold = 0;
};

/// What turns each input into numbers.
Result<std::vector<EncodedSide>> encoded_sides(const Arguments& arguments, std::size_t inputs,
                                               const SideOptions& options) {
  std::vector<EncodedSide> sides;
  if (arguments.has("sentencepiece")) {
    const Result<SentencePieceModel> model = read_sentencepiece_model(arguments.string("sentencepiece"));
    if (!model) return model.problems();
    return std::vector<EncodedSide>(inputs, {model->segmenter, model->vocabulary});
  }
  if (arguments.has("wordpiece")) {
    const auto vocabulary = read_vocabulary(arguments.string("wordpiece"), TokenKind::WordPiece, 0);
    if (!vocabulary) return vocabulary.problems();
    const WordPieceOptions wordpiece{.casing = arguments.boolean("cased") ? Casing::Cased : Casing::Uncased,
                                     .longest_word = options.longest_word,
                                     .keep_special_tokens = arguments.boolean("keep-special-tokens")};
    return std::vector<EncodedSide>(inputs, {wordpiece_segmenter(*vocabulary, wordpiece), *vocabulary});
  }
  std::vector<std::shared_ptr<const Vocabulary>> vocabularies;
  std::vector<std::shared_ptr<const BpeCodes>> codes;
  for (const std::string& path : arguments.strings("vocabulary")) {
    const auto vocabulary = read_vocabulary(path, TokenKind::Bpe, options.pad_to);
    if (!vocabulary) return vocabulary.problems();
    vocabularies.push_back(*vocabulary);
  }
  for (const std::string& path : arguments.strings("codes")) {
    const auto read = read_codes(path, -1);
    if (!read) return read.problems();
    codes.push_back(*read);
  }
  for (std::size_t i = 0; i < inputs; ++i) {
    const auto& vocabulary = one_of(vocabularies, i);
    if (codes.empty()) {
      sides.push_back({bpe_segmenter(nullptr, vocabulary), vocabulary});
      continue;
    }
    Result<std::shared_ptr<const BpeCodes>> own = one_of(codes, i);
    if (arguments.has("restrict-to"))
      own = restricted(*own, one_of(arguments.strings("restrict-to"), i), options.threshold);
    if (!own) return own.problems();
    sides.push_back({bpe_segmenter(*own, vocabulary), vocabulary});
  }
  return sides;
}

void check_kinds(const Arguments& arguments, std::size_t inputs, Problems& problems) {
  const int kinds = arguments.has("vocabulary") + arguments.has("wordpiece") + arguments.has("sentencepiece");
  if (kinds != 1)
    problems.push_back({"--vocabulary, --wordpiece, --sentencepiece",
                        kinds == 0 ? "none of them is given" : "more than one of them is given", "give one"});
  const auto refuse = [&](const char* flag, const char* with) {
    if (arguments.has(flag) && !arguments.has(with))
      problems.push_back({long_name(flag), "goes with " + long_name(with), {}});
  };
  refuse("codes", "vocabulary");
  refuse("pad-to", "vocabulary");
  refuse("restrict-to", "codes");
  refuse("vocabulary-threshold", "restrict-to");
  for (const char* flag : {"cased", "longest-word", "keep-special-tokens"}) refuse(flag, "wordpiece");
  for (const char* flag : {"vocabulary", "codes", "restrict-to"}) {
    const std::size_t given = arguments.strings(flag).size();
    if (given > 1 && given != inputs)
      problems.push_back(
          {long_name(flag),
           "is given " + std::to_string(given) + " times for " + std::to_string(inputs) + " files",
           "once for all, or once for each"});
  }
}

int encode_command(Arguments& arguments, OutputFormat format, Problems& problems) {
  TextRun run = text_run(arguments, problems);
  const std::vector<std::string> outputs = output_paths(arguments, run.inputs.size(), problems);
  const SideOptions side{.pad_to = arguments.integer("pad-to", 0, 1'000'000),
                         .longest_word = arguments.integer("longest-word", 1, INT64_MAX),
                         .threshold = arguments.integer("vocabulary-threshold", 0, INT64_MAX)};
  EncodeOptions options{.min_tokens = arguments.integer("min-length", 0, INT64_MAX),
                        .vocabulary_padding = arguments.has("vocabulary") ? side.pad_to : 0};
  if (arguments.has("max-length")) options.max_tokens = arguments.integer("max-length", 0, INT64_MAX);
  check_kinds(arguments, run.inputs.size(), problems);
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const Result<std::vector<EncodedSide>> sides = encoded_sides(arguments, run.inputs.size(), side);
  if (!sides) return exit_with(ExitCode::InputData, sides.problems());
  SteadyClock clock;
  Outcome outcome(format, clock);
  ProgressLine line(clock, size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line(done); };
  const TextReport report = encode_files(run, options, *sides, outputs, existing(arguments));
  Json files = Json::array();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    outcome.more(info_text(outputs[i], report.files[i]) + ", " + std::to_string(report.unknown[i]) +
                 " unknown");
    Json file = info_json(outputs[i], report.files[i]);
    file["unknown"] = number(report.unknown[i]);
    files.push_back(std::move(file));
  }
  outcome.json()["files"] = std::move(files);
  outcome.lines(report);
  return outcome.print();
}

// ---- decode, check

void add_vocabulary(CommandSpec& spec) {
  spec.flags.push_back(
      {.name = "vocabulary",
       .short_name = 'v',
       .value = "FILE",
       .help = "The file that `encode` was given (SentencePiece: also the model's .vocab)."});
  spec.flags.push_back({.name = "sentencepiece", .value = "FILE", .help = "Or the SentencePiece model."});
}

/// The vocabulary of --vocabulary or --sentencepiece, proved to be that of the file; null if neither is
/// given.
Result<std::shared_ptr<const Vocabulary>> vocabulary_of(const Arguments& arguments, const TokenFile& file) {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::string name;
  if (arguments.has("sentencepiece")) {
    name = arguments.string("sentencepiece");
    const Result<SentencePieceModel> model = read_sentencepiece_model(name);
    if (!model) return model.problems();
    vocabulary = model->vocabulary;
  } else if (arguments.has("vocabulary")) {
    name = arguments.string("vocabulary");
    const auto read = read_vocabulary(name, file.info().kind, file.info().vocabulary_padding);
    if (!read) return read.problems();
    vocabulary = *read;
  }
  if (!vocabulary) return vocabulary;
  if (const Status status = file.belongs_to(*vocabulary, name); !status) return status.problems();
  return vocabulary;
}

CommandSpec decode_spec() {
  CommandSpec spec = text_spec("decode", "Turn a token file into text again, a sentence a line.");
  spec.positionals = {"FILE"};
  add_vocabulary(spec);
  spec.flags.push_back(
      {.name = "out", .short_name = 'o', .value = "FILE", .help = "The text (default: stdout)."});
  spec.flags.push_back(kThreadsFlag);
  spec.flags.push_back(kOverwrite);
  spec.examples = {"millrace data text decode train.en.tokens -v vocab.bpe.8000 -o train.en"};
  return spec;
}

int decode_command(Arguments& arguments, OutputFormat, Problems& problems) {
  const int threads = thread_count(arguments);
  if (arguments.has("vocabulary") == arguments.has("sentencepiece"))
    problems.push_back({"--vocabulary, --sentencepiece", "give one of them", {}});
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const std::string path = arguments.positionals().front();
  const Result<TokenFile> file = TokenFile::open(path);
  if (!file) return exit_with(ExitCode::InputData, file.problems());
  const auto vocabulary = vocabulary_of(arguments, *file);
  if (!vocabulary) return exit_with(ExitCode::InputData, vocabulary.problems());
  if (!arguments.has("out")) {
    decode_file(*file, **vocabulary, threads,
                [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); });
    return 0;
  }
  OutputFiles outputs({arguments.string("out")}, {path}, existing(arguments));
  FileWriter writer(outputs.temporary(0));
  decode_file(*file, **vocabulary, threads, [&](std::string_view text) { writer.write(text); });
  writer.commit(Durability::Synced);
  outputs.publish();
  return 0;
}

CommandSpec check_spec() {
  CommandSpec spec =
      text_spec("check", "Read a token file whole, prove that it is undamaged, say what it holds.");
  spec.positionals = {"FILE"};
  add_vocabulary(spec);
  spec.flags.push_back(kFormat);
  spec.examples = {"millrace data text check train.en.tokens -v vocab.bpe.8000"};
  return spec;
}

int check_command(Arguments& arguments, OutputFormat format, Problems& problems) {
  append(problems, arguments.problems());
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const std::string path = arguments.positionals().front();
  const Result<TokenFile> file = TokenFile::open(path);
  if (!file) return exit_with(ExitCode::InputData, file.problems());
  const auto vocabulary = vocabulary_of(arguments, *file);
  if (!vocabulary) return exit_with(ExitCode::InputData, vocabulary.problems());
  if (format == OutputFormat::Json) {
    std::printf("%s\n", info_json(path, file->info()).dump(1).c_str());
  } else {
    std::printf("%s\n", info_text(path, file->info()).c_str());
  }
  return 0;
}

// ---- the group

/// Reads the flags of `spec`, then `run`s; results of --format are read where there is such a flag.
int run_with(const CommandSpec& spec, int (*run)(Arguments&, OutputFormat, Problems&),
             const std::vector<std::string>& args) {
  Result<Arguments> arguments = parse_arguments(spec, args);
  if (!arguments) return exit_with(ExitCode::Usage, arguments.problems());
  if (arguments->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
  Problems problems;
  const bool prints = std::any_of(spec.flags.begin(), spec.flags.end(),
                                  [](const Flag& flag) { return flag.name == "format"; });
  const OutputFormat format = prints ? output_format(*arguments, problems) : OutputFormat::Text;
  return run(*arguments, format, problems);
}

template <CommandSpec (*spec)(), int (*run)(Arguments&, OutputFormat, Problems&)>
int run_subcommand(const std::vector<std::string>& args) {
  return run_with(spec(), run, args);
}

const std::vector<Subcommand>& text_table() {
  // In the order of a first session.
  static const std::vector<Subcommand> table{
      {"clean", clean_spec, run_subcommand<clean_spec, clean_command>},
      {"learn-bpe", learn_bpe_spec, run_subcommand<learn_bpe_spec, learn_bpe_command>},
      {"apply-bpe", apply_bpe_spec, run_subcommand<apply_bpe_spec, apply_bpe_command>},
      {"vocab", vocab_spec, run_subcommand<vocab_spec, vocab_command>},
      {"encode", encode_spec, run_subcommand<encode_spec, encode_command>},
      {"decode", decode_spec, run_subcommand<decode_spec, decode_command>},
      {"check", check_spec, run_subcommand<check_spec, check_command>},
  };
  return table;
}

}  // namespace

CommandSpec data_text_spec() {
  return group_spec("data text",
                    "Text to token files: cleaning, byte-pair codes, vocabularies, WordPiece, and back.");
}

std::vector<CommandSpec> data_text_specs() {
  std::vector<CommandSpec> specs;
  for (const Subcommand& entry : text_table()) specs.push_back(entry.spec());
  return specs;
}

int data_text_command(const std::vector<std::string>& args) {
  return run_group(data_text_spec(), text_table(), args);
}

}  // namespace millrace
