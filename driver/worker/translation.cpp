#include "driver/worker/translation.h"

#include <stdio.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include <ATen/Parallel.h>

#include "data/language/language_datasets.h"
#include "data/text/in_order.h"
#include "data/text/text_inputs.h"
#include "models/translate/gnmt_pipeline.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/together.h"
#include "runtime/metrics/detokenize.h"

namespace millrace {
namespace {

constexpr TranslationTokens kTokens;
// Sorted by length together. A number of its own, not one of threads or ranks: see SentenceBatch.
constexpr std::int64_t kBatchesInWindow = 128;
constexpr std::size_t kMostNamed = 5;  // lines in a message

void apply_preset(TranslateFlags& f, const Arguments& arguments) {
  if (f.preset == TranslatePreset::None) return;
  if (!arguments.has("max-length")) f.max_length = f.preset == TranslatePreset::Pipedream ? 80 : 150;
  if (!arguments.has("coverage")) f.coverage = CoverageForm::Compat;
}

void use_one_core() {
  if (at::get_num_threads() != 1) at::set_num_threads(1);
}

/// Keeps LibTorch on one core while it lives. It then restores the caller's number, because the caller may go
/// on training.
class OneCore {
 public:
  OneCore() : before_(at::get_num_threads()) { use_one_core(); }
  OneCore(const OneCore&) = delete;
  OneCore& operator=(const OneCore&) = delete;
  ~OneCore() {
    if (before_ != 1) at::set_num_threads(before_);
  }

 private:
  int before_;
};

/// Works on each of `parts` in one of so many threads, each on one core. Throws what goes wrong.
template <class Part>
void in_threads(int threads, const std::vector<Part>& parts, const std::function<void(Part)>& work) {
  const OneCore one_core;
  std::size_t next = 0;
  std::vector<Part> mine(threads);
  run_in_order(threads, {.read =
                             [&](int thread) {
                               if (next >= parts.size()) return false;
                               mine[thread] = parts[next++];
                               return true;
                             },
                         .work =
                             [&](int thread) {
                               use_one_core();  // threads begin with a number of their own
                               work(mine[thread]);
                             },
                         .take = [](int) {}});
}

SentenceIds sources_of(const SentenceBatch& lines) {
  SentenceIds sources;
  for (const SourceLine* line : lines) sources.push_back(line->source);
  return sources;
}

void put_into(const SentenceBatch& lines, std::vector<std::vector<Hypothesis>> found) {
  for (std::size_t i = 0; i < lines.size(); ++i) lines[i]->hypotheses = std::move(found[i]);
}

// ---- hypotheses as bytes, for messages between processes of one program

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
Number take(std::string_view& bytes) {
  MILLRACE_CHECK(bytes.size() >= sizeof(Number), "hypotheses cut short");
  Number number;
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.remove_prefix(sizeof number);
  return number;
}

std::string packed(std::span<const SentenceBatch> batches, std::size_t keep) {
  std::string bytes;
  for (const SentenceBatch& batch : batches) {
    for (const SourceLine* line : batch) {
      const std::size_t kept = std::min(keep, line->hypotheses.size());
      put(bytes, static_cast<std::uint64_t>(kept));
      for (std::size_t i = 0; i < kept; ++i) {
        const Hypothesis& one = line->hypotheses[i];
        put(bytes, one.score);
        put(bytes, std::uint64_t{one.finished});
        put(bytes, std::uint64_t{one.words.size()});
        for (std::uint32_t word : one.words) put(bytes, word);
      }
    }
  }
  return bytes;
}

void unpack(std::string_view bytes, std::span<const SentenceBatch> batches) {
  for (const SentenceBatch& batch : batches) {
    for (SourceLine* line : batch) {
      line->hypotheses.assign(take<std::uint64_t>(bytes), {});
      for (Hypothesis& one : line->hypotheses) {
        one.score = take<double>(bytes);
        one.finished = take<std::uint64_t>(bytes) != 0;
        one.words.resize(take<std::uint64_t>(bytes));
        for (std::uint32_t& word : one.words) word = take<std::uint32_t>(bytes);
      }
    }
  }
  MILLRACE_CHECK(bytes.empty(), bytes.size() << " bytes of hypotheses left over");
}

}  // namespace

Problems complete(const Arguments& arguments, TranslateFlags& f) {
  apply_preset(f, arguments);
  Problems problems = arguments.problems();
  if (f.vocabulary.size() > 2)
    problems.push_back({"--vocabulary", "is given " + std::to_string(f.vocabulary.size()) + " times",
                        "once for both languages, or the source's and then the target's"});
  if (!f.features.empty()) {
    if (!arguments.has("pad-to")) f.pad_to = 0;
    for (const char* flag : {"codes", "stages", "plan", "joiners", "split-punctuation"}) {
      if (arguments.has(flag))
        problems.push_back({std::string("--") + flag, "does not go with --features", "leave it out"});
    }
  }
  if (f.n_best > f.beam)
    problems.push_back({"--n-best", std::to_string(f.n_best) + " of a beam of " + std::to_string(f.beam),
                        "give a larger --beam"});
  return problems;
}

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

Problems vocabulary_problems(const TranslateFlags& f, const Languages& languages,
                             const TrainedVocabulary& trained) {
  Problems problems;
  const auto check = [&](const char* key, const Vocabulary& vocabulary, const std::string& path) {
    const auto recorded = std::ranges::find(trained.settings, key, &Settings::value_type::first);
    const std::string own = std::to_string(vocabulary.size());
    if (recorded == trained.settings.end()) {
      if (vocabulary.size() == trained.size) return;
      problems.push_back(
          {path, "has " + own + " tokens, the model of " + trained.model + " " + std::to_string(trained.size),
           "give the vocabulary that it was trained with, and its --pad-to"});
    } else if (recorded->second != vocabulary.fingerprint().hex() || vocabulary.size() > trained.size) {
      problems.push_back({path,
                          "is not the vocabulary that " + trained.model +
                              " was trained with: " + vocabulary.fingerprint().hex() + " of " + own +
                              " tokens, " + key + " there " + recorded->second,
                          "give that of `data text encode`, and its --pad-to"});
    }
  };
  if (f.features.empty()) check("source-vocabulary", *languages.source, f.vocabulary.front());
  check(f.features.empty() ? "target-vocabulary" : "vocabulary", *languages.target, f.vocabulary.back());
  return problems;
}

InputLines::InputLines(const std::string& path) : path_(path == "-" ? "stdin" : path) {
  if (path != "-") file_.emplace(path);
}

InputLines::~InputLines() {
  std::free(buffer_);  // NOLINT: getline(3) made it
}

bool InputLines::next(std::string_view& line) {
  if (file_) return file_->next(line);
  const ssize_t bytes = ::getline(&buffer_, &room_, stdin);
  if (bytes < 0) return false;
  line = {buffer_, static_cast<std::size_t>(bytes)};
  if (line.ends_with('\n')) line.remove_suffix(1);
  if (!std::exchange(begun_, true)) line = without_mark(line);
  return true;
}

Translation::Translation(const TranslateFlags& flags, const Languages& languages, std::int64_t frame_features)
    : f_(flags),
      languages_(languages),
      segmenter_(languages.segmenter()),
      search_{.beam = f_.beam,
              .longest = f_.max_length,
              .length_penalty = f_.length_penalty,
              .length_constant = f_.length_constant,
              .coverage_penalty = f_.coverage_penalty,
              .coverage = f_.coverage == CoverageForm::Compat ? Coverage::Compat : Coverage::Exact,
              .begin = kTokens.begin,
              .end = kTokens.end},
      frame_features_(frame_features) {}

std::vector<SourceLine> Translation::read_window(InputLines& input) {
  std::vector<SourceLine> window;
  while (static_cast<std::int64_t>(window.size()) < kBatchesInWindow * f_.batch && read_line(input, window)) {
  }
  return window;
}

bool Translation::read_line(InputLines& input, std::vector<SourceLine>& window) {
  std::string_view text;
  if (!input.next(text)) return false;
  SourceLine line;
  line.number = ++line_number_;
  ++counts_.sentences;
  const auto ready = prepared(text, f_.rules, input.path(), line.number, buffer_, counts_.replaced_bytes);
  if (!ready) ++counts_.invalid;
  if (ready && f_.features.empty()) read_sentence(*ready, line);
  if (ready && !f_.features.empty()) read_video(*ready, input.path(), line);
  if (ready && line.length() == 0) ++counts_.empty;
  window.push_back(std::move(line));
  return true;
}

void Translation::note_cut(std::uint64_t line) {
  if (static_cast<std::size_t>(counts_.cut) < kMostNamed)
    cut_lines_ += (counts_.cut ? ", " : "line ") + std::to_string(line);
  if (static_cast<std::size_t>(counts_.cut) == kMostNamed) cut_lines_ += ", ...";
  ++counts_.cut;
}

void Translation::read_sentence(std::string_view text, SourceLine& line) {
  segmenter_->segment(text, line.source);
  if (line.source.empty()) return;
  if (const auto most = static_cast<std::size_t>(f_.max_source); line.source.size() > most) {
    note_cut(line.number);
    line.source.resize(most);
  }
  counts_.source_tokens += static_cast<std::int64_t>(line.source.size());
  counts_.unknown += std::ranges::count(line.source, languages_.source->unk());
  line.source.insert(line.source.begin(), static_cast<std::uint32_t>(kTokens.begin));
  line.source.push_back(static_cast<std::uint32_t>(kTokens.end));
}

void Translation::read_video(std::string_view text, const std::string& path, SourceLine& line) {
  const std::vector<std::string> words = words_of(std::string(text), ' ');
  if (words.empty()) return;
  const std::string place = path + ":" + std::to_string(line.number), &name = words.front();
  if (words.size() > 1 || name.starts_with('.') || name.find('/') != std::string::npos)
    throw DataError(place + ": is '" + escaped(text.substr(0, 80)) + "'",
                    "expected the name of a video in " + f_.features);
  const Result<VideoSourcePtr> video =
      videos_in_files({{f_.features + "/" + name + ".npy", place}}, frame_features_);
  if (!video) throw DataError(to_string(video.problems()));
  line.video = *video;
  line.frames = line.video->num_frames(0);
  if (line.frames > f_.max_source) {
    note_cut(line.number);
    line.frames = f_.max_source;
  }
  counts_.source_tokens += line.frames;
}

std::vector<SentenceBatch> Translation::batches(std::vector<SourceLine>& window) const {
  SentenceBatch order;
  for (SourceLine& line : window) {
    if (line.length() > 0) order.push_back(&line);
  }
  std::ranges::stable_sort(order, std::ranges::greater{},
                           [](const SourceLine* line) { return line->length(); });
  std::vector<SentenceBatch> batches;
  const auto batch = static_cast<std::size_t>(f_.batch);
  for (std::size_t first = 0; first < order.size(); first += batch) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(first);
    batches.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(std::min(batch, order.size() - first)));
  }
  return batches;
}

void Translation::search_all(const Begin& begin, std::span<const SentenceBatch> batches, int threads) const {
  std::vector<const SentenceBatch*> parts;
  for (const SentenceBatch& batch : batches) parts.push_back(&batch);
  in_threads<const SentenceBatch*>(threads, parts, [&](const SentenceBatch* lines) {
    const std::unique_ptr<NextWords> model = begin(*lines);
    put_into(*lines, beam_search(*model, std::ssize(*lines), search_));
  });
}

void Translation::translate(const GnmtTranslator& translator, std::span<const SentenceBatch> batches,
                            int threads) const {
  search_all([&](const SentenceBatch& lines) { return translator.begin(sources_of(lines), limit()); },
             batches, threads);
}

void Translation::translate(const S2vtCaptioner& captioner, std::span<const SentenceBatch> batches,
                            int threads) const {
  const auto begin = [&](const SentenceBatch& lines) {
    std::vector<at::Tensor> videos;
    for (const SourceLine* line : lines) videos.push_back(line->video->read(0, line->frames));
    return captioner.begin(videos, limit());
  };
  search_all(begin, batches, threads);
}

void Translation::translate(const GnmtTranslator& mine, const GnmtStages& stages,
                            std::span<const SentenceBatch> batches,
                            std::span<const std::unique_ptr<Communicator>> lanes) const {
  const int size = static_cast<int>(lanes.size());
  std::vector<int> numbers(lanes.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  in_threads<int>(size, numbers, [&](int lane) {
    const std::vector<SentenceBatch> share = share_of(batches, lane, size);
    std::vector<SentenceIds> sources;
    for (const SentenceBatch& lines : share) sources.push_back(sources_of(lines));
    translate_in_stages(mine, stages, *lanes[lane], sources,
                        {.search = search_, .limit = limit(), .lane = lane, .lanes = size},
                        [&](std::size_t batch, auto found) { put_into(share[batch], std::move(found)); });
  });
}

std::string Translation::text_of(const Hypothesis& hypothesis) const {
  std::string text = languages_.target->text(hypothesis.words);
  return f_.detokenize == Detokenize::Moses ? detokenize(text) : text;
}

std::string Translation::written(const SourceLine& line) {
  if (!line.hypotheses.empty()) {
    const Hypothesis& best = line.hypotheses.front();
    if (!std::isfinite(best.score)) {
      throw NumericError("line " + std::to_string(line.number) + ": the score of its translation is " +
                             std::to_string(best.score),
                         "the weights hold NaN or are far too large: take an earlier checkpoint");
    }
    counts_.target_tokens += static_cast<std::int64_t>(best.words.size());
    if (!best.finished) ++counts_.unfinished;
  }
  if (f_.n_best == 0) return (line.hypotheses.empty() ? "" : text_of(line.hypotheses.front())) + "\n";
  std::string all;
  for (std::size_t i = 0; i < std::min(line.hypotheses.size(), static_cast<std::size_t>(f_.n_best)); ++i) {
    all += std::to_string(line.number - 1) + " ||| " + text_of(line.hypotheses[i]) + " ||| " +
           printed("%.6f", line.hypotheses[i].score) + "\n";
  }
  return all;
}

std::string Translation::cut_note() const {
  if (counts_.cut == 0) return "";
  return std::to_string(counts_.cut) +
         (f_.features.empty() ? " sentences of more than " : " videos of more than ") +
         std::to_string(f_.max_source) + (f_.features.empty() ? " tokens" : " frames") +
         " are cut to as many (--max-source): " + cut_lines_;
}

std::vector<SentenceBatch> share_of(std::span<const SentenceBatch> batches, int one, int size) {
  std::vector<SentenceBatch> share;
  for (std::size_t i = static_cast<std::size_t>(one); i < batches.size(); i += static_cast<std::size_t>(size))
    share.push_back(batches[i]);
  return share;
}

void exchange_hypotheses(Communicator& world, std::span<const SentenceBatch> batches, std::size_t keep,
                         int stages) {
  const int pipelines = world.size() / stages;
  for (int pipeline = 0; pipeline < pipelines && world.size() > 1; ++pipeline) {
    const std::vector<SentenceBatch> share = share_of(batches, pipeline, pipelines);
    const RankId last((pipeline + 1) * stages - 1);
    const bool mine = world.rank() == last;
    const std::string bytes = broadcast_text(world, mine ? packed(share, keep) : "", last);
    if (!mine) unpack(bytes, share);
  }
}

}  // namespace millrace
