// `millrace translate`: lines -> tokens -> beam search, a window of lines at a time -> lines.
#include <stdio.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>

#include <ATen/Parallel.h>

#include "data/files/file_writer.h"
#include "data/language/language_datasets.h"
#include "data/text/in_order.h"
#include "data/text/line_reader.h"
#include "data/text/output_files.h"
#include "data/text/text_inputs.h"
#include "data/text/text_jobs.h"
#include "driver/cli/translate_spec.h"
#include "driver/worker/worker_options.h"
#include "models/gnmt_translation.h"
#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/metrics/detokenize.h"

namespace millrace {
namespace {

constexpr TranslationTokens kTokens;
constexpr std::int64_t kBatchesInWindow = 32;  // sorted by length together; of each thread
constexpr std::size_t kMostNamed = 5;          // lines in a message

// ---- what is given

struct Languages {
  std::shared_ptr<const Vocabulary> source, target;
  SegmenterMaker segmenter;
};

Result<Languages> read_languages(const TranslateFlags& f) {
  Problems problems;
  std::vector<std::shared_ptr<const Vocabulary>> vocabularies;
  for (const std::string& path : f.vocabulary) {
    auto vocabulary = read_vocabulary(path, TokenKind::Bpe, f.pad_to);
    if (!vocabulary) {
      append(problems, vocabulary.problems());
      continue;
    }
    vocabularies.push_back(*vocabulary);
  }
  std::shared_ptr<const BpeCodes> codes;
  if (!f.codes.empty()) {
    auto read = read_codes(f.codes);
    if (read) codes = *read;
    if (!read) append(problems, read.problems());
  }
  if (!problems.empty()) return problems;
  return Languages{vocabularies.front(), vocabularies.back(), bpe_segmenter(codes, vocabularies.front())};
}

/// The weights, and what is known of those who made them.
struct Trained {
  GnmtTranslator translator;
  std::int64_t step = -1;  ///< of a checkpoint
  Settings settings;
};

Trained read_checkpoint(const std::string& path) {
  std::error_code ignored;
  const auto made = [&](const WeightFiles& files, std::int64_t step, const Settings& settings) {
    Result<GnmtTranslator> translator = GnmtTranslator::from(files);
    if (!translator) throw CheckpointError(to_string(translator.problems()));
    return Trained{std::move(*translator), step, settings};
  };
  if (std::filesystem::is_directory(path, ignored)) {
    const Result<Checkpoint> checkpoint = open_checkpoint(path);
    if (!checkpoint) throw CheckpointError(to_string(checkpoint.problems()));
    WeightFiles files;
    for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    return made(files, checkpoint->info.step, checkpoint->info.settings);
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) throw CheckpointError(to_string(file.problems()));
  return made({&*file}, -1, {});
}

/// Vocabularies are those with which the model was trained, as far as it says; else of its size.
Problems vocabulary_problems(const TranslateFlags& f, const Languages& languages, const Trained& trained) {
  Problems problems;
  const std::int64_t size = trained.translator.vocabulary();
  const auto check = [&](const char* key, const Vocabulary& vocabulary, const std::string& path) {
    const auto recorded = std::ranges::find(trained.settings, key, &Settings::value_type::first);
    const std::string own = std::to_string(vocabulary.size());
    if (recorded == trained.settings.end()) {
      if (vocabulary.size() == size) return;
      problems.push_back({path,
                          "has " + own + " tokens, the model of " + f.checkpoint + " " + std::to_string(size),
                          "give the vocabulary that it was trained with, and its --pad-to"});
    } else if (recorded->second != vocabulary.fingerprint().hex() || vocabulary.size() > size) {
      problems.push_back({path,
                          "is not the vocabulary that " + f.checkpoint +
                              " was trained with: " + vocabulary.fingerprint().hex() + " of " + own +
                              " tokens, " + key + " there " + recorded->second,
                          "give that of `data text encode`, and its --pad-to"});
    }
  };
  check("source-vocabulary", *languages.source, f.vocabulary.front());
  check("target-vocabulary", *languages.target, f.vocabulary.back());
  return problems;
}

// ---- lines

/// A text file's, or those of stdin.
class InputLines {
 public:
  explicit InputLines(const std::string& path) : path_(path == "-" ? "stdin" : path) {
    if (path != "-") file_.emplace(path);
  }
  InputLines(const InputLines&) = delete;
  InputLines& operator=(const InputLines&) = delete;
  ~InputLines() { std::free(buffer_); }  // NOLINT: getline(3) made it

  bool next(std::string_view& line) {
    if (file_) return file_->next(line);
    const ssize_t bytes = ::getline(&buffer_, &room_, stdin);
    if (bytes < 0) return false;
    line = {buffer_, static_cast<std::size_t>(bytes)};
    if (line.ends_with('\n')) line.remove_suffix(1);
    return true;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<LineReader> file_;
  char* buffer_ = nullptr;
  std::size_t room_ = 0;
};

struct Counts {
  std::int64_t sentences = 0, source_tokens = 0, target_tokens = 0;
  std::int64_t empty = 0, invalid = 0, unknown = 0, cut = 0, unfinished = 0;
  std::uint64_t replaced_bytes = 0;
};

struct Line {
  std::uint64_t number = 0;
  std::vector<std::uint32_t> source;  // with begin and end; empty: nothing to translate
  std::vector<Hypothesis> hypotheses;
};

class Translation {
 public:
  Translation(const TranslateFlags& flags, const Languages& languages, const GnmtTranslator& translator)
      : f_(flags),
        languages_(languages),
        translator_(translator),
        segmenter_(languages.segmenter()),
        search_{.beam = flags.beam,
                .longest = flags.max_length,
                .length_penalty = flags.length_penalty,
                .length_constant = flags.length_constant,
                .coverage_penalty = flags.coverage_penalty,
                .coverage = flags.coverage == CoverageForm::Compat ? Coverage::Compat : Coverage::Exact,
                .begin = kTokens.begin,
                .end = kTokens.end} {}

  /// Reads all lines; `write` gets the output, line by line.
  template <class Write>
  void run(InputLines& input, int threads, Write write) {
    const std::int64_t in_window = kBatchesInWindow * f_.batch * threads;
    bool more = true;
    while (more) {
      std::vector<Line> window;
      while (static_cast<std::int64_t>(window.size()) < in_window && (more = read_line(input, window))) {
      }
      translate(window, threads);
      for (const Line& line : window) write(text_of(line));
    }
    if (counts_.cut > 0) {
      log_warning(std::to_string(counts_.cut) + " sentences of more than " + std::to_string(f_.max_source) +
                  " tokens are cut to as many (--max-source): " + cut_lines_);
    }
  }

  const Counts& counts() const { return counts_; }

 private:
  bool read_line(InputLines& input, std::vector<Line>& window) {
    std::string_view text;
    if (!input.next(text)) return false;
    Line line{.number = ++line_number_, .source = {}, .hypotheses = {}};
    ++counts_.sentences;
    const auto ready = prepared(text, f_.rules, input.path(), line.number, buffer_, counts_.replaced_bytes);
    if (ready) segmenter_->segment(*ready, line.source);
    if (!ready) ++counts_.invalid;
    if (ready && line.source.empty()) ++counts_.empty;
    if (!line.source.empty()) {
      if (const auto most = static_cast<std::size_t>(f_.max_source); line.source.size() > most) {
        if (static_cast<std::size_t>(counts_.cut) < kMostNamed)
          cut_lines_ += (counts_.cut ? ", " : "line ") + std::to_string(line.number);
        if (static_cast<std::size_t>(counts_.cut) == kMostNamed) cut_lines_ += ", ...";
        ++counts_.cut;
        line.source.resize(most);
      }
      counts_.source_tokens += static_cast<std::int64_t>(line.source.size());
      counts_.unknown += std::ranges::count(line.source, languages_.source->unk());
      line.source.insert(line.source.begin(), static_cast<std::uint32_t>(kTokens.begin));
      line.source.push_back(static_cast<std::uint32_t>(kTokens.end));
    }
    window.push_back(std::move(line));
    return true;
  }

  /// Batches of sentences of like length, the longest first.
  void translate(std::vector<Line>& window, int threads) {
    std::vector<Line*> order;
    for (Line& line : window) {
      if (!line.source.empty()) order.push_back(&line);
    }
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [](const Line* line) { return line->source.size(); });
    const auto batch = static_cast<std::size_t>(f_.batch);
    std::size_t next = 0;
    std::vector<std::span<Line*>> mine(static_cast<std::size_t>(threads));
    run_in_order(threads, {.read =
                               [&](int thread) {
                                 if (next >= order.size()) return false;
                                 const std::size_t count = std::min(batch, order.size() - next);
                                 mine[static_cast<std::size_t>(thread)] =
                                     std::span(order).subspan(next, count);
                                 next += count;
                                 return true;
                               },
                           .work =
                               [&](int thread) {
                                 thread_local const bool alone = (at::set_num_threads(1), true);
                                 (void)alone;
                                 translate_batch(mine[static_cast<std::size_t>(thread)]);
                               },
                           .take =
                               [&](int thread) {
                                 for (const Line* line : mine[static_cast<std::size_t>(thread)]) count(*line);
                               }});
  }

  void translate_batch(std::span<Line*> lines) const {
    std::vector<std::vector<std::uint32_t>> sources;
    for (const Line* line : lines) sources.push_back(line->source);
    const std::unique_ptr<NextWords> model =
        translator_.begin(sources, static_cast<std::int64_t>(languages_.target->size()));
    auto found = beam_search(*model, static_cast<std::int64_t>(sources.size()), search_);
    for (std::size_t i = 0; i < lines.size(); ++i) lines[i]->hypotheses = std::move(found[i]);
  }

  void count(const Line& line) {
    const Hypothesis& best = line.hypotheses.front();
    if (!std::isfinite(best.score)) {
      throw NumericError("line " + std::to_string(line.number) + ": the score of its translation is " +
                             std::to_string(best.score),
                         "the weights hold NaN or are far too large: take an earlier checkpoint");
    }
    counts_.target_tokens += static_cast<std::int64_t>(best.words.size());
    if (!best.finished) ++counts_.unfinished;
  }

  std::string text_of(const Hypothesis& hypothesis) const {
    std::string text = languages_.target->text(hypothesis.words);
    return f_.detokenize == Detokenize::Moses ? detokenize(text) : text;
  }

  std::string text_of(const Line& line) const {
    if (f_.n_best == 0) return (line.hypotheses.empty() ? "" : text_of(line.hypotheses.front())) + "\n";
    std::string all;
    for (std::size_t i = 0; i < std::min(line.hypotheses.size(), static_cast<std::size_t>(f_.n_best)); ++i) {
      all += std::to_string(line.number - 1) + " ||| " + text_of(line.hypotheses[i]) + " ||| " +
             printed("%.6f", line.hypotheses[i].score) + "\n";
    }
    return all;
  }

  const TranslateFlags& f_;
  const Languages& languages_;
  const GnmtTranslator& translator_;
  std::unique_ptr<Segmenter> segmenter_;
  BeamOptions search_;
  Counts counts_;
  std::uint64_t line_number_ = 0;
  std::string buffer_, cut_lines_;
};

// ---- the command

void apply_preset(TranslateFlags& f, const Arguments& arguments) {
  if (f.preset == TranslatePreset::None) return;
  if (!arguments.has("max-length")) f.max_length = f.preset == TranslatePreset::Pipedream ? 80 : 150;
  if (!arguments.has("coverage")) f.coverage = CoverageForm::Compat;
}

Problems flag_problems(const TranslateFlags& f) {
  Problems problems;
  if (f.vocabulary.size() > 2)
    problems.push_back({"--vocabulary", "is given " + std::to_string(f.vocabulary.size()) + " times",
                        "once for both languages, or the source's and then the target's"});
  if (f.n_best > f.beam)
    problems.push_back({"--n-best", std::to_string(f.n_best) + " of a beam of " + std::to_string(f.beam),
                        "give a larger --beam"});
  return problems;
}

void print_result(const TranslateFlags& f, const Trained& trained, const Counts& c, double seconds) {
  FILE* const out = f.output == "-" ? stderr : stdout;
  const double rate = static_cast<double>(c.sentences) / std::max(seconds, 1e-9);
  if (f.format == OutputFormat::Json) {
    const Json json = Json::object({{"checkpoint_step", trained.step < 0 ? Json() : Json(trained.step)},
                                    {"sentences", c.sentences},
                                    {"source_tokens", c.source_tokens},
                                    {"target_tokens", c.target_tokens},
                                    {"unknown", c.unknown},
                                    {"empty", c.empty},
                                    {"invalid", c.invalid},
                                    {"replaced_bytes", static_cast<std::int64_t>(c.replaced_bytes)},
                                    {"cut", c.cut},
                                    {"unfinished", c.unfinished},
                                    {"seconds", seconds},
                                    {"sentences_per_s", rate}});
    std::fprintf(out, "%s\n", json.dump(1).c_str());
    return;
  }
  std::string text = std::to_string(c.sentences) + " sentences, " + std::to_string(c.source_tokens) +
                     " tokens (" + std::to_string(c.unknown) + " unknown) to " +
                     std::to_string(c.target_tokens);
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0) text += ", " + std::to_string(count) + " " + what;
  };
  add(c.empty, "empty");
  add(c.invalid, "left empty: invalid UTF-8");
  add(static_cast<std::int64_t>(c.replaced_bytes), "bytes replaced");
  add(c.cut, "cut");
  add(c.unfinished, "without an end");
  if (trained.step >= 0) text += "; checkpoint of step " + std::to_string(trained.step);
  std::fprintf(out, "%s; %.2f s, %.1f sentences/s\n", text.c_str(), seconds, rate);
}

}  // namespace

int translate_command(const std::vector<std::string>& args) {
  return guarded([&] {
    TranslateFlags f;
    const CommandSpec spec = translate_spec(f);
    const Result<Arguments> parsed = parse_arguments(spec, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
    apply_preset(f, *parsed);
    Problems problems = parsed->problems();
    append(problems, flag_problems(f));
    if (!problems.empty()) return report_problems(problems, ExitCode::Usage);
    // What cannot be written is known before anything is computed.
    std::optional<OutputFiles> outputs;
    if (f.output != "-")
      outputs.emplace(std::vector{f.output}, std::vector{f.input},
                      f.overwrite ? Existing::Replaced : Existing::Refused);
    const Result<Languages> languages = read_languages(f);
    if (!languages) return report_problems(languages.problems(), ExitCode::InputData);
    InputLines input(f.input);
    const Trained trained = read_checkpoint(f.checkpoint);
    if (problems = vocabulary_problems(f, *languages, trained); !problems.empty())
      return report_problems(problems, ExitCode::Checkpoint);
    if (f.beam > static_cast<int>(languages->target->size()))
      return report_problems({{"--beam", "is larger than the vocabulary", "at most its size"}},
                             ExitCode::Usage);
    set_compute_threads(1, false);
    const int threads =
        f.threads > 0 ? f.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    SteadyClock clock;
    const TimePoint start = clock.now();
    Translation translation(f, *languages, trained.translator);
    if (outputs) {
      FileWriter file(outputs->temporary(0));
      translation.run(input, threads, [&](const std::string& line) { file.write(line); });
      file.commit(Durability::Synced);
      outputs->publish();
    } else {
      translation.run(input, threads, [&](const std::string& line) {
        if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size())
          throw Error(ExitCode::RunFailed, "stdout: cannot be written");
      });
    }
    print_result(f, trained, translation.counts(), Seconds(clock.now() - start).count());
    return 0;
  });
}

}  // namespace millrace
