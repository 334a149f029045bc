#include "driver/worker/bleu_score.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "driver/bleu/parallel_texts.h"
#include "driver/worker/translation.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"
#include "runtime/base/version.h"
#include "runtime/metrics/bleu.h"
#include "runtime/metrics/bleu_signature.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {

constexpr const char* kFlag = "--bleu-translate";

struct Text final : BleuText {
  TranslateFlags request;
  Languages languages;
  std::vector<std::vector<SourceLine>> windows;
  std::vector<TextLines> streams;  // of references
  ReferenceSet references;
  BleuOptions options;
  std::string hash;

  std::string fingerprint() const override { return hash; }
  std::string signature() const override {
    return bleu_signature(
        options, {.num_references = references.number, .implementation = "millrace-" MILLRACE_VERSION});
  }
  std::int64_t sentences() const override { return static_cast<std::int64_t>(references.by_sentence.size()); }
  std::int64_t vocabulary() const override { return static_cast<std::int64_t>(languages.target->size()); }
};

/// Flags of `translate`, those left out that a run has itself.
Problems read_translate_flags(const ScoreFlags& flags, TranslateFlags& request) {
  std::vector<std::string> words{"--checkpoint", "this run", "--input", flags.source};
  for (const std::string& word : words_of(flags.translate, ' ')) words.push_back(word);
  const CommandSpec spec = translate_spec(request);
  const Result<Arguments> parsed = parse_arguments(spec, words);
  Problems problems = parsed ? complete(*parsed, request) : parsed.problems();
  for (const char* flag : {"output", "overwrite", "n-best", "format", "threads", "ranks", "stages", "plan",
                           "timeout", "features"}) {
    if (parsed && parsed->has(flag))
      problems.push_back({std::string("--") + flag, "does not go with a run that trains", "leave it out"});
  }
  for (Problem& problem : problems) problem.where = std::string(kFlag) + ": " + problem.where;
  return problems;
}

std::string hash_of(const Text& text, const ScoreFlags& flags) {
  Xxh3 hash;
  hash.add(flags.translate);
  for (const auto& window : text.windows) {
    for (const SourceLine& line : window) {
      hash.add(line.source.data(), line.source.size() * sizeof line.source[0]);
      hash.add("\n");
    }
  }
  for (const TextLines& stream : text.streams) hash.add(*stream.content);
  return hash.value().hex() + (flags.lower_case ? " lower case" : "");
}

class BleuScore final : public WeightsScore {
 public:
  BleuScore(std::shared_ptr<const Text> text, Communicator& world, int threads, std::string output_dir)
      : text_(std::move(text)),
        world_(world),
        threads_(threads),
        output_dir_(std::move(output_dir)),
        windows_(text_->windows) {
    const Translation translation(text_->request, text_->languages);
    for (std::vector<SourceLine>& window : windows_) {
      for (SentenceBatch& batch : translation.batches(window)) batches_.push_back(std::move(batch));
    }
    mine_ = share_of(batches_, world_.rank().value, world_.size());
  }

  std::string what() const override { return "translating " + text_->request.input; }

  std::int64_t parts() const override {
    const std::size_t in_part = static_cast<std::size_t>(world_.size() * threads_);
    return static_cast<std::int64_t>((batches_.size() + in_part - 1) / in_part);
  }

  void begin(const NamedTensors& weights) override {
    Result<GnmtTranslator> made = GnmtTranslator::from(weights, "the weights of this run");
    if (!made) throw ConfigError(to_string(made.problems()));
    translator_.emplace(std::move(*made));
    translation_.emplace(text_->request, text_->languages);
  }

  void work(std::int64_t part) override {
    const std::size_t threads = static_cast<std::size_t>(threads_);
    const std::size_t first = std::min(mine_.size(), static_cast<std::size_t>(part) * threads);
    translation_->translate(
        *translator_, std::span(mine_).subspan(first, std::min(threads, mine_.size() - first)), threads_);
  }

  NamedValues finish(std::int64_t step) override {
    exchange_hypotheses(world_, batches_, 1);
    BleuCounter counter(text_->options);
    BleuStatistics statistics;
    std::string written;
    std::size_t sentence = 0;
    for (const std::vector<SourceLine>& window : windows_) {
      for (const SourceLine& line : window) {
        std::string hypothesis;
        try {
          hypothesis = translation_->written(line);
        } catch (const Error& error) {
          error.throw_with("after step " + std::to_string(step) + ", " + text_->request.input + ": ");
        }
        statistics += counter(std::string_view(hypothesis).substr(0, hypothesis.size() - 1),
                              text_->references.by_sentence[sentence++]);
        written += hypothesis;
      }
    }
    if (world_.rank() == RankId(0)) write(step, written);
    const Bleu bleu = score_bleu(statistics, text_->options);
    return {{"bleu", bleu.score}, {"bp", bleu.bp}};
  }

  void end() override {
    translator_.reset();
    translation_.reset();
  }

 private:
  /// A score is worth having without its text: what cannot be written is said, and the run goes on.
  void write(std::int64_t step, const std::string& lines) const {
    if (output_dir_.empty()) return;
    const auto folder = std::filesystem::path(output_dir_) / run_files::kHypotheses;
    Status written = make_writable_folder(folder);
    if (written) written = write_file_atomically(folder / ("step-" + std::to_string(step)), lines);
    if (!written) log_warning(to_string(written.problems()));
  }

  std::shared_ptr<const Text> text_;
  Communicator& world_;
  int threads_;
  std::string output_dir_;
  std::vector<std::vector<SourceLine>> windows_;
  std::vector<SentenceBatch> batches_, mine_;  // of `windows_`
  std::optional<GnmtTranslator> translator_;
  std::optional<Translation> translation_;
};

}  // namespace

Problems bleu_flag_problems(const ScoreFlags& f) {
  Problems problems;
  if (f.every == 0) {
    const auto useless = [&](bool given, const char* flag) {
      if (given) problems.push_back({flag, "says nothing without --bleu-every", "give --bleu-every 1"});
    };
    useless(!f.source.empty(), "--bleu-source");
    useless(!f.references.empty(), "--bleu-reference");
    useless(!f.translate.empty(), kFlag);
    useless(f.lower_case, "--bleu-lower-case");
    useless(f.target.has_value(), "--target-bleu");
    return problems;
  }
  const auto needed = [&](bool given, const char* flag, const char* hint) {
    if (!given) problems.push_back({flag, "is required with --bleu-every", hint});
  };
  needed(!f.source.empty(), "--bleu-source", "the text that is translated");
  needed(!f.references.empty(), "--bleu-reference", "what the translations are compared with");
  needed(!f.translate.empty(), kFlag, "at least '-v VOCABULARY'");
  TranslateFlags unused;
  if (problems.empty()) problems = read_translate_flags(f, unused);
  return problems;
}

Result<std::shared_ptr<const BleuText>> read_bleu_text(const ScoreFlags& flags, std::int64_t vocabulary,
                                                       const Settings& recorded) {
  auto text = std::make_shared<Text>();
  if (Problems problems = read_translate_flags(flags, text->request); !problems.empty()) return problems;
  Result<Languages> languages = read_languages(text->request);
  if (!languages) return languages.problems();
  text->languages = *std::move(languages);
  Problems problems = vocabulary_problems(text->request, text->languages, {"this run", vocabulary, recorded});
  if (text->request.beam > text->vocabulary())
    problems.push_back(
        {std::string(kFlag) + ": --beam", "is larger than the vocabulary", "at most its size"});
  for (const std::string& path : flags.references) {
    Result<TextLines> lines = read_lines(path);
    if (lines)
      text->streams.push_back(*std::move(lines));
    else
      append(problems, lines.problems());
  }
  if (!problems.empty()) return problems;
  Result<ReferenceSet> references = references_of(text->streams);
  if (!references) return references.problems();
  text->references = *std::move(references);
  InputLines input(flags.source);
  Translation translation(text->request, text->languages);
  for (std::vector<SourceLine> window; !(window = translation.read_window(input)).empty();)
    text->windows.push_back(std::move(window));
  if (translation.counts().sentences != text->sentences()) {
    return Problem{flags.references.front(),
                   "has " + std::to_string(text->sentences()) + " lines, " + flags.source + " " +
                       std::to_string(translation.counts().sentences),
                   "line k of each must be one sentence"};
  }
  if (text->windows.empty()) return Problem{flags.source, "has no lines", "there is nothing to translate"};
  if (const std::string note = translation.cut_note(); !note.empty()) log_warning(note);
  text->options.letters = flags.lower_case ? LetterCase::Lower : LetterCase::Mixed;
  text->hash = hash_of(*text, flags);
  return std::shared_ptr<const BleuText>(std::move(text));
}

std::unique_ptr<WeightsScore> make_bleu_score(std::shared_ptr<const BleuText> text, Communicator& world,
                                              int threads, const std::string& output_dir) {
  return std::make_unique<BleuScore>(std::static_pointer_cast<const Text>(std::move(text)), world, threads,
                                     output_dir);
}

}  // namespace millrace
