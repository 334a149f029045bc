#include "driver/text/text_command.h"

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
#include "driver/flags/text_rules.h"
#include "runtime/base/clock.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

// ---- flags that several commands have

struct TextFlags {
  TextRules rules;
  std::optional<int> threads;
  bool overwrite = false;
  OutputFormat format = OutputFormat::Text;

  Existing existing() const { return overwrite ? Existing::Replaced : Existing::Refused; }
  TextRun run(const Arguments& given) const {
    return {.inputs = given.positionals(), .rules = rules, .threads = thread_count(threads)};
  }
};

Flag overwrite_flag(bool& overwrite) {
  return flag("", "overwrite", "Replace outputs that exist.", into::on(overwrite));
}
Flag format_flag(OutputFormat& format) {
  return flag("", "format", "text|json", "How to print the result.", into::choice(format, "format"));
}

/// --threads, --overwrite, --format and the rules of lines.
void add_common(CommandSpec& spec, TextFlags& f) {
  spec.flags.push_back(threads_flag(f.threads));
  spec.flags.push_back(overwrite_flag(f.overwrite));
  spec.flags.push_back(format_flag(f.format));
  add_text_rules(spec, f.rules);
}

template <class File>
Flag codes_flag(File& file) {
  return flag("", "codes", "FILE", "BPE codes, of `learn-bpe` or subword-nmt (version 0.2 or 0.1).",
              into::text(file), 'c');
}
Flag merges_flag(std::int64_t& merges) {
  return flag("", "merges", "N", "Use only the first N codes (-1: all).", into::integer(merges, -1));
}
Flag threshold_flag(std::int64_t& threshold) {
  return flag("", "vocabulary-threshold", "N",
              "With --restrict-to: pieces that occur less often are not among them.",
              into::integer(threshold, 0));
}
Flag output_flag(std::string& out, const char* help) {
  return {.name = "out",
          .short_name = 'o',
          .value = "FILE",
          .help = help,
          .required = true,
          .target = into::text(out)};
}
Flag outputs_flag(std::vector<std::string>& out, const char* help) {
  return {.name = "out",
          .short_name = 'o',
          .value = "FILE",
          .help = help,
          .required = true,
          .repeatable = true,
          .target = into::texts(out)};
}

CommandSpec text_spec(const char* command, const char* summary) {
  CommandSpec spec;
  spec.command = std::string("data text ") + command;
  spec.summary = summary;
  return spec;
}

void check_outputs(const std::vector<std::string>& out, std::size_t inputs, Problems& problems) {
  if (out.size() != inputs)
    problems.push_back(
        {"--out",
         "is given " + std::to_string(out.size()) + " times for " + std::to_string(inputs) + " input files",
         "give one --out for each, in their order"});
}

/// Checks the output of a command that makes one: an existing file is refused before the work.
void check_output(const std::string& out, bool overwrite, Problems& problems) {
  std::error_code error;
  if (!overwrite && std::filesystem::exists(out, error))
    problems.push_back({out, "exists already", "give another name, or --overwrite"});
}

// ---- printing

/// Counts as JSON has them.
std::int64_t number(std::uint64_t count) {
  return static_cast<std::int64_t>(count);
}

double rate_of(Bytes bytes, double seconds) {
  return static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9);
}

/// The result of a command, as one line of text or a JSON object.
class Outcome {
 public:
  Outcome(OutputFormat format, Clock& clock) : format_(format), clock_(clock), start_(clock.now()) {}

  void lines(const TextReport& report) {
    bytes_ = static_cast<Bytes>(report.bytes);
    add("lines", report.lines, "lines");
    add("kept", report.kept, "kept");
    for (std::size_t i = 0; i < kNumDropped; ++i) {
      if (report.dropped[i] == 0) continue;
      json_["dropped"][to_string(static_cast<DropReason>(i))] = number(report.dropped[i]);
      text_ +=
          ", " + std::to_string(report.dropped[i]) + " dropped: " + to_string(static_cast<DropReason>(i));
    }
    if (report.replaced_bytes > 0) add("replaced_bytes", report.replaced_bytes, "bytes replaced");
  }
  void add(const char* key, std::uint64_t value, const char* words) {
    json_[key] = number(value);
    text_ += (text_.empty() ? "" : ", ") + std::to_string(value) + " " + words;
  }
  void more(const std::string& line) { rest_ += line + "\n"; }
  Json& json() { return json_; }

  int print(ProgressLine& line) {
    line.clear();
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

struct LearnBpeFlags : TextFlags {
  std::string out;
  LearnBpeOptions options;
};

CommandSpec learn_bpe_spec(LearnBpeFlags& f) {
  CommandSpec spec = text_spec("learn-bpe", "Learn byte-pair codes of files together, as subword-nmt does.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      output_flag(f.out, "The codes."),
      flag("", "merges", "N", "Codes at most.", into::integer(f.options.merges, 0, 100'000'000), 's'),
      flag("", "min-frequency", "N", "Stop when no pair occurs as often.",
           into::integer(f.options.min_frequency, 1))};
  add_common(spec, f);
  spec.examples = {
      "millrace data text learn-bpe train.de.gz train.en.gz --split-punctuation --merges 8000 -o "
      "bpe.8000"};
  return spec;
}

int learn_bpe_command(const LearnBpeFlags& flags, const Arguments& given, Problems problems) {
  TextRun run = flags.run(given);
  check_output(flags.out, flags.overwrite, problems);
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  if (const Status place = make_place_for_file(flags.out); !place)
    return exit_with(ExitCode::Usage, place.problems());
  SteadyClock clock;
  Outcome outcome(flags.format, clock);
  ProgressLine line(clock, "", size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line.show_bytes(done); };
  TextReport report;
  const WordCounts words = count_words(run, report);
  const std::vector<BpeMerge> merges = learn_bpe(words.words(), flags.options, [&](std::int64_t done) {
    line.show(done, flags.options.merges, "codes");
  });
  write_text_output(flags.out, bpe_codes_text(merges), flags.existing());
  outcome.lines(report);
  outcome.add("words", words.size(), "different words");
  outcome.add("codes", merges.size(), "codes");
  return outcome.print(line);
}

// ---- apply-bpe

struct ApplyBpeFlags : TextFlags {
  std::vector<std::string> out;
  std::string codes;
  std::int64_t merges = -1, threshold = 0;
  std::optional<std::string> restriction;
};

CommandSpec apply_bpe_spec(ApplyBpeFlags& f) {
  CommandSpec spec = text_spec("apply-bpe", "Split the words of files by codes, as subword-nmt does.");
  spec.positionals = {"FILE..."};
  spec.flags = {codes_flag(f.codes), outputs_flag(f.out, "The split text of each FILE, in their order."),
                merges_flag(f.merges),
                flag("", "restrict-to", "FILE",
                     "Pieces with their counts (`vocab --counts`; subword-nmt's --vocabulary): merges "
                     "whose piece is not among them are undone.",
                     into::text(f.restriction)),
                threshold_flag(f.threshold)};
  spec.flags[0].required = true;
  add_common(spec, f);
  spec.examples = {"millrace data text apply-bpe train.tok.en -c bpe.32000 -o train.tok.bpe.32000.en"};
  return spec;
}

int apply_bpe_command(const ApplyBpeFlags& flags, const Arguments& given, Problems problems) {
  TextRun run = flags.run(given);
  check_outputs(flags.out, run.inputs.size(), problems);
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  auto codes = read_codes(flags.codes, flags.merges);
  if (codes && flags.restriction) codes = restricted(*codes, *flags.restriction, flags.threshold);
  if (!codes) return exit_with(ExitCode::InputData, codes.problems());
  SteadyClock clock;
  Outcome outcome(flags.format, clock);
  ProgressLine line(clock, "", size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line.show_bytes(done); };
  outcome.lines(apply_bpe_to_files(run, **codes, flags.out, flags.existing()));
  return outcome.print(line);
}

// ---- vocab

struct VocabFlags : TextFlags {
  std::string out;
  std::optional<std::string> codes;
  std::int64_t merges = -1, largest = 0;
  bool counts = false;
};

CommandSpec vocab_spec(VocabFlags& f) {
  CommandSpec spec = text_spec("vocab", "List the words or pieces of files by falling count.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      output_flag(f.out, "The list."), codes_flag(f.codes), merges_flag(f.merges),
      flag("", "counts", "Each with its count, as `subword-nmt get-vocab` writes it.", into::on(f.counts)),
      flag("", "largest", "N", "Only the N most frequent (0: all).", into::integer(f.largest, 0))};
  add_common(spec, f);
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

int vocab_command(const VocabFlags& flags, const Arguments& given, Problems problems) {
  TextRun run = flags.run(given);
  check_output(flags.out, flags.overwrite, problems);
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  std::shared_ptr<const BpeCodes> codes;
  if (flags.codes) {
    const auto read = read_codes(*flags.codes, flags.merges);
    if (!read) return exit_with(ExitCode::InputData, read.problems());
    codes = *read;
  }
  SteadyClock clock;
  Outcome outcome(flags.format, clock);
  ProgressLine line(clock, "", size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line.show_bytes(done); };
  TextReport report;
  WordCounts counts = count_words(run, report);
  if (codes) counts = pieces_of(counts, *codes);
  auto sorted = counts.by_count();
  if (flags.largest > 0 && static_cast<std::int64_t>(sorted.size()) > flags.largest)
    sorted.resize(flags.largest);
  std::string text;
  for (const auto& [word, count] : sorted) {
    text += word;
    if (flags.counts) text += " " + std::to_string(count);
    text += '\n';
  }
  write_text_output(flags.out, text, flags.existing());
  outcome.lines(report);
  outcome.add("tokens", sorted.size(), "different tokens");
  return outcome.print(line);
}

// ---- clean

struct CleanFlags : TextFlags {
  std::vector<std::string> out;
  CleanOptions options;
};

CommandSpec clean_spec(CleanFlags& f) {
  CleanOptions& o = f.options;
  CommandSpec spec =
      text_spec("clean", "Leave out the lines of parallel files that are no good for training.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      outputs_flag(f.out, "What stays of each FILE, in their order."),
      flag("", "min-words", "N", "Of each side.", into::integer(o.min_words, 0)),
      flag("", "max-words", "N", "Of each side.", into::integer(o.max_words, 0)),
      flag("", "ratio", "R", "Most words of a side by those of another.", into::number(o.ratio, 1, 1e18)),
      flag("", "longest-word", "N", "In characters.", into::integer(o.longest_word, 1)),
      flag("", "latin-1", "Leave out lines with characters above U+00FF too, as MLPerf's GNMT.",
           into::on(o.latin1))};
  add_common(spec, f);
  spec.examples = {
      "millrace data text clean train.tok.de train.tok.en --latin-1 -o train.tok.clean.de -o "
      "train.tok.clean.en"};
  return spec;
}

int clean_command(const CleanFlags& flags, const Arguments& given, Problems problems) {
  TextRun run = flags.run(given);
  check_outputs(flags.out, run.inputs.size(), problems);
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  SteadyClock clock;
  Outcome outcome(flags.format, clock);
  ProgressLine line(clock, "", size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line.show_bytes(done); };
  outcome.lines(clean_files(run, flags.options, flags.out, flags.existing()));
  return outcome.print(line);
}

// ---- encode

struct EncodeFlags : TextFlags {
  std::vector<std::string> out, vocabularies, codes, restrictions;
  std::int64_t threshold = 0, pad_to = 8;
  std::optional<std::string> wordpiece, sentencepiece;
  bool cased = false;
  WordPieceOptions options;  ///< but the casing
  std::int64_t min_length = 0;
  std::optional<std::int64_t> max_length;
};

CommandSpec encode_spec(EncodeFlags& f) {
  CommandSpec spec = text_spec("encode", "Turn text, parallel or not, into token files for training.");
  spec.positionals = {"FILE..."};
  spec.flags = {
      outputs_flag(f.out, "The token file of each FILE, in their order."),
      {.name = "vocabulary",
       .short_name = 'v',
       .value = "FILE",
       .help = "For BPE and words: a token a line. Once for all files, or once for each.",
       .repeatable = true,
       .target = into::texts(f.vocabularies)},
      {.name = "codes",
       .short_name = 'c',
       .value = "FILE",
       .help = "With --vocabulary: BPE codes, once for all files or once for each; without them, words are "
               "tokens as "
               "they stand (the text is split already).",
       .repeatable = true,
       .target = into::texts(f.codes)},
      {.name = "restrict-to",
       .value = "FILE",
       .help = "With --codes: pieces with their counts (`vocab --counts`), once for all files or once "
               "for each; merges whose piece is not among them are undone.",
       .repeatable = true,
       .target = into::texts(f.restrictions)},
      threshold_flag(f.threshold),
      flag("", "pad-to", "N",
           "With --vocabulary: made-up tokens up to a multiple of N, as GNMT has them (0: none).",
           into::integer(f.pad_to, 0, 1'000'000)),
      flag("", "wordpiece", "FILE", "For BERT: its vocab.txt.", into::text(f.wordpiece)),
      flag("", "cased", "With --wordpiece: keep case and accents.", into::on(f.cased)),
      flag("", "longest-word", "N", "With --wordpiece: characters above which a word is [UNK] (MLPerf: 200).",
           into::integer(f.options.longest_word, 1)),
      flag("", "keep-special-tokens", "With --wordpiece: [MASK] and its like in the text are the tokens.",
           into::on(f.options.keep_special_tokens)),
      flag("", "sentencepiece", "FILE", "A SentencePiece model.", into::text(f.sentencepiece)),
      flag("", "min-length", "N", "Leave out lines with fewer tokens on a side (begin and end not counted).",
           into::integer(f.min_length, 0)),
      flag("", "max-length", "N", "The same for more tokens (GNMT trains with 48).",
           into::integer(f.max_length, 0))};
  add_common(spec, f);
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

/// Returns the encoders that turn each input into numbers.
Result<std::vector<EncodedSide>> encoded_sides(const EncodeFlags& flags, std::size_t inputs) {
  std::vector<EncodedSide> sides;
  if (flags.sentencepiece) {
    const Result<SentencePieceModel> model = read_sentencepiece_model(*flags.sentencepiece);
    if (!model) return model.problems();
    return std::vector<EncodedSide>(inputs, {model->segmenter, model->vocabulary});
  }
  if (flags.wordpiece) {
    const auto vocabulary = read_vocabulary(*flags.wordpiece, TokenKind::WordPiece, 0);
    if (!vocabulary) return vocabulary.problems();
    WordPieceOptions wordpiece = flags.options;
    wordpiece.casing = flags.cased ? Casing::Cased : Casing::Uncased;
    return std::vector<EncodedSide>(inputs, {wordpiece_segmenter(*vocabulary, wordpiece), *vocabulary});
  }
  std::vector<std::shared_ptr<const Vocabulary>> vocabularies;
  std::vector<std::shared_ptr<const BpeCodes>> codes;
  for (const std::string& path : flags.vocabularies) {
    const auto vocabulary = read_vocabulary(path, TokenKind::Bpe, flags.pad_to);
    if (!vocabulary) return vocabulary.problems();
    vocabularies.push_back(*vocabulary);
  }
  for (const std::string& path : flags.codes) {
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
    if (!flags.restrictions.empty()) own = restricted(*own, one_of(flags.restrictions, i), flags.threshold);
    if (!own) return own.problems();
    sides.push_back({bpe_segmenter(*own, vocabulary), vocabulary});
  }
  return sides;
}

void check_kinds(const EncodeFlags& flags, const Arguments& given, std::size_t inputs, Problems& problems) {
  const int kinds = given.has("vocabulary") + given.has("wordpiece") + given.has("sentencepiece");
  if (kinds != 1)
    problems.push_back({"--vocabulary, --wordpiece, --sentencepiece",
                        kinds == 0 ? "none of them is given" : "more than one of them is given", "give one"});
  const auto refuse = [&](const char* flag, const char* with) {
    if (given.has(flag) && !given.has(with))
      problems.push_back({long_name(flag), "goes with " + long_name(with), {}});
  };
  refuse("codes", "vocabulary");
  refuse("pad-to", "vocabulary");
  refuse("restrict-to", "codes");
  refuse("vocabulary-threshold", "restrict-to");
  for (const char* flag : {"cased", "longest-word", "keep-special-tokens"}) refuse(flag, "wordpiece");
  for (const auto& [flag, files] : {std::pair("--vocabulary", &flags.vocabularies),
                                    {"--codes", &flags.codes},
                                    {"--restrict-to", &flags.restrictions}}) {
    if (files->size() > 1 && files->size() != inputs)
      problems.push_back(
          {flag,
           "is given " + std::to_string(files->size()) + " times for " + std::to_string(inputs) + " files",
           "once for all, or once for each"});
  }
}

int encode_command(const EncodeFlags& flags, const Arguments& given, Problems problems) {
  TextRun run = flags.run(given);
  check_outputs(flags.out, run.inputs.size(), problems);
  check_kinds(flags, given, run.inputs.size(), problems);
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  EncodeOptions options{.min_tokens = flags.min_length,
                        .vocabulary_padding = flags.vocabularies.empty() ? 0 : flags.pad_to};
  if (flags.max_length) options.max_tokens = *flags.max_length;
  const Result<std::vector<EncodedSide>> sides = encoded_sides(flags, run.inputs.size());
  if (!sides) return exit_with(ExitCode::InputData, sides.problems());
  SteadyClock clock;
  Outcome outcome(flags.format, clock);
  ProgressLine line(clock, "", size_of_files(run.inputs));
  run.progress = [&](Bytes done) { line.show_bytes(done); };
  const TextReport report = encode_files(run, options, *sides, flags.out, flags.existing());
  Json files = Json::array();
  for (std::size_t i = 0; i < flags.out.size(); ++i) {
    outcome.more(info_text(flags.out[i], report.files[i]) + ", " + std::to_string(report.unknown[i]) +
                 " unknown");
    Json file = info_json(flags.out[i], report.files[i]);
    file["unknown"] = number(report.unknown[i]);
    files.push_back(std::move(file));
  }
  outcome.json()["files"] = std::move(files);
  outcome.lines(report);
  return outcome.print(line);
}

// ---- decode, check

struct TokensFlags : TextFlags {
  std::optional<std::string> vocabulary, sentencepiece, out;
};

void add_vocabulary(CommandSpec& spec, TokensFlags& f) {
  spec.flags.push_back(flag("", "vocabulary", "FILE",
                            "The file that `encode` was given (SentencePiece: also the model's .vocab).",
                            into::text(f.vocabulary), 'v'));
  spec.flags.push_back(
      flag("", "sentencepiece", "FILE", "Or the SentencePiece model.", into::text(f.sentencepiece)));
}

/// The vocabulary of --vocabulary or --sentencepiece, proved to be that of the file; null if neither is
/// given.
Result<std::shared_ptr<const Vocabulary>> vocabulary_of(const TokensFlags& flags, const TokenFile& file) {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::string name;
  if (flags.sentencepiece) {
    name = *flags.sentencepiece;
    const Result<SentencePieceModel> model = read_sentencepiece_model(name);
    if (!model) return model.problems();
    vocabulary = model->vocabulary;
  } else if (flags.vocabulary) {
    name = *flags.vocabulary;
    const auto read = read_vocabulary(name, file.info().kind, file.info().vocabulary_padding);
    if (!read) return read.problems();
    vocabulary = *read;
  }
  if (!vocabulary) return vocabulary;
  if (const Status status = file.belongs_to(*vocabulary, name); !status) return status.problems();
  return vocabulary;
}

CommandSpec decode_spec(TokensFlags& f) {
  CommandSpec spec = text_spec("decode", "Turn a token file into text again, a sentence a line.");
  spec.positionals = {"FILE"};
  add_vocabulary(spec, f);
  spec.flags.push_back(flag("", "out", "FILE", "The text (default: stdout).", into::text(f.out), 'o'));
  spec.flags.push_back(threads_flag(f.threads));
  spec.flags.push_back(overwrite_flag(f.overwrite));
  spec.examples = {"millrace data text decode train.en.tokens -v vocab.bpe.8000 -o train.en"};
  return spec;
}

int decode_command(const TokensFlags& flags, const Arguments& given, Problems problems) {
  const int threads = thread_count(flags.threads);
  if (given.has("vocabulary") == given.has("sentencepiece"))
    problems.push_back({"--vocabulary, --sentencepiece", "give one of them", {}});
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const std::string path = given.positionals().front();
  const Result<TokenFile> file = TokenFile::open(path);
  if (!file) return exit_with(ExitCode::InputData, file.problems());
  const auto vocabulary = vocabulary_of(flags, *file);
  if (!vocabulary) return exit_with(ExitCode::InputData, vocabulary.problems());
  if (!flags.out) {
    decode_file(*file, **vocabulary, threads,
                [](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); });
    return 0;
  }
  OutputFiles outputs({*flags.out}, {path}, flags.existing());
  FileWriter writer(outputs.temporary(0));
  decode_file(*file, **vocabulary, threads, [&](std::string_view text) { writer.write(text); });
  writer.commit(Durability::Synced);
  outputs.publish();
  return 0;
}

CommandSpec check_spec(TokensFlags& f) {
  CommandSpec spec =
      text_spec("check", "Read a token file whole, prove that it is undamaged, say what it holds.");
  spec.positionals = {"FILE"};
  add_vocabulary(spec, f);
  spec.flags.push_back(format_flag(f.format));
  spec.examples = {"millrace data text check train.en.tokens -v vocab.bpe.8000"};
  return spec;
}

int check_command(const TokensFlags& flags, const Arguments& given, Problems problems) {
  if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
  const std::string path = given.positionals().front();
  const Result<TokenFile> file = TokenFile::open(path);
  if (!file) return exit_with(ExitCode::InputData, file.problems());
  const auto vocabulary = vocabulary_of(flags, *file);
  if (!vocabulary) return exit_with(ExitCode::InputData, vocabulary.problems());
  if (flags.format == OutputFormat::Json) {
    std::printf("%s\n", info_json(path, file->info()).dump(1).c_str());
  } else {
    std::printf("%s\n", info_text(path, file->info()).c_str());
  }
  return 0;
}

// ---- the group

template <class Flags, CommandSpec (*spec)(Flags&)>
CommandSpec spec_alone() {
  return without_targets<Flags>(spec);
}

template <class Flags, CommandSpec (*spec)(Flags&), int (*run)(const Flags&, const Arguments&, Problems)>
int run_subcommand(const std::vector<std::string>& args) {
  Flags flags;
  return run_command(spec(flags), args, [&](const Arguments& given, Problems problems) {
    return run(flags, given, std::move(problems));
  });
}

template <class Flags, CommandSpec (*spec)(Flags&), int (*run)(const Flags&, const Arguments&, Problems)>
Subcommand subcommand(const char* name) {
  return {name, spec_alone<Flags, spec>, run_subcommand<Flags, spec, run>};
}

const std::vector<Subcommand>& text_table() {
  // The order is that of a first session.
  static const std::vector<Subcommand> table{
      subcommand<CleanFlags, clean_spec, clean_command>("clean"),
      subcommand<LearnBpeFlags, learn_bpe_spec, learn_bpe_command>("learn-bpe"),
      subcommand<ApplyBpeFlags, apply_bpe_spec, apply_bpe_command>("apply-bpe"),
      subcommand<VocabFlags, vocab_spec, vocab_command>("vocab"),
      subcommand<EncodeFlags, encode_spec, encode_command>("encode"),
      subcommand<TokensFlags, decode_spec, decode_command>("decode"),
      subcommand<TokensFlags, check_spec, check_command>("check"),
  };
  return table;
}

}  // namespace

CommandSpec data_text_spec() {
  return group_spec("data text",
                    "Text to token files: cleaning, byte-pair codes, vocabularies, WordPiece, and back.");
}

std::span<const Subcommand> data_text_subcommands() {
  return text_table();
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
