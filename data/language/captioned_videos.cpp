// Videos with their captions, as one row of steps: frames, then words.
#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "data/language/bucketing.h"
#include "data/language/language_datasets.h"
#include "data/loading/samples.h"
#include "data/text/hash.h"
#include "data/text/line_reader.h"
#include "data/text/vocabulary.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

class CaptionedVideos final : public Dataset {
 public:
  CaptionedVideos(VideoSourcePtr videos, Captions captions, const LanguageOptions& options)
      : videos_(std::move(videos)),
        captions_(std::move(captions)),
        num_fields_(options.fields.size()),
        frames_field_(field_index(options.fields, "frames")),
        tokens_field_(field_index(options.fields, "tokens")),
        labels_field_(field_index(options.fields, "labels")),
        longest_(options.longest) {
    const std::int64_t all = captions_.text->size();
    for (std::int64_t i = 0; i < all; ++i) {
      const std::int64_t said = captions_.text->length(i) + 1,  // with the end token
          shown = videos_->num_frames(captions_.video[i]), room = std::max<std::int64_t>(1, longest_ - said);
      if (options.train && said + 1 > longest_) continue;
      cut_ += shown > room;
      samples_.push_back({i, std::min(shown, room), said});
    }
    left_out_ = all - size();
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  std::string name_of(std::int64_t index) const override { return videos_->name_of(video(at(index))); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    constexpr TranslationTokens kTokens;
    const One& one = at(index);
    Sample sample(num_fields_);
    const auto wants = [&](int field) { return field >= 0 && wanted[field]; };
    if (wants(frames_field_))
      set_field(sample, wanted, frames_field_, {.tensor = videos_->read(video(one), one.frames)});
    if (wants(tokens_field_) || wants(labels_field_)) {
      Tokens words;
      captions_.text->read(one.caption, words);
      std::vector<std::int64_t> tokens(one.frames), labels = tokens;
      tokens.push_back(kTokens.begin);
      tokens.insert(tokens.end(), words.begin(), words.end());
      labels.insert(labels.end(), words.begin(), words.end());
      labels.push_back(kTokens.end);
      set_field(sample, wanted, tokens_field_, integers(tokens));
      set_field(sample, wanted, labels_field_, integers(labels));
    }
    return sample;
  }

  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    if (!lengths.empty()) lengths[0] = at(index).steps();
    if (!counts.empty()) counts[0] = at(index).said;
  }

  std::vector<std::int64_t> order(const EpochOrder& epoch) const override {
    const auto steps = [&](std::int64_t i) { return at(i).steps(); };
    if (!epoch.shuffle) {
      std::vector<std::int64_t> order = epoch_order(size(), 0, 0, false);
      sort_within_steps(order, std::max<std::int64_t>(1, size()), steps);
      return order;
    }
    const auto seed =
        static_cast<std::uint32_t>(derive_seed(epoch.seed, "order", static_cast<std::uint64_t>(epoch.epoch)));
    std::vector<std::int64_t> order = bucketed_order(size(), {.per_step = epoch.per_step}, steps, seed);
    sort_within_steps(order, epoch.per_step, steps);
    return order;
  }

  std::string describe() const override {
    return "captions of videos, " + std::to_string(size()) + " pairs: " + videos_->describe() + "; " +
           captions_.text->describe();
  }
  std::string fingerprint() const override {
    std::string pairs;
    for (const One& one : samples_)
      pairs += std::to_string(one.caption) + " " + std::to_string(video(one)) + "\n";
    return "captions " + fingerprint_of(*captions_.text) + " " + videos_->fingerprint() + " pairs " +
           xxh3_128(std::string_view(pairs)).hex() + " longest " +
           std::to_string(left_out_ + cut_ > 0 ? longest_ : 0);
  }
  std::vector<std::pair<std::string, std::string>> recorded() const override {
    if (captions_.vocabulary.empty()) return {};
    return {{"vocabulary", captions_.vocabulary}};
  }
  std::vector<std::string> notes() const override {
    std::vector<std::string> notes = captions_.notes;
    const std::string longest = std::to_string(longest_) + " steps (--length)";
    if (left_out_ > 0)
      notes.push_back(std::to_string(left_out_) + " captions leave no frame in " + longest +
                      " and are left out");
    if (cut_ > 0)
      notes.push_back("the last frames of " + std::to_string(cut_) +
                      " videos, counted by captions, do not fit into " + longest + " and are left out");
    return notes;
  }

 private:
  struct One {
    std::int64_t caption, frames, said;
    std::int64_t steps() const { return frames + said; }
  };
  const One& at(std::int64_t index) const { return samples_[index]; }
  std::int64_t video(const One& one) const { return captions_.video[one.caption]; }

  VideoSourcePtr videos_;
  Captions captions_;
  std::size_t num_fields_;
  int frames_field_, tokens_field_, labels_field_;
  std::int64_t longest_, left_out_ = 0, cut_ = 0;
  std::vector<One> samples_;
};

struct CaptionFile {
  Captions captions;
  std::vector<VideoFile> videos;
};

/// Reads a file whose lines are VIDEO, tab, CAPTION.
Result<CaptionFile> read_captions(const fs::path& path, const Vocabulary& vocabulary) {
  constexpr std::size_t kMostProblems = 10;
  const fs::path features = path.parent_path() / "features";
  CaptionFile file;
  std::map<std::string, std::int64_t, std::less<>> places;
  std::vector<Tokens> sentences;
  std::int64_t unknown = 0;
  Problems problems;
  LineReader reader(path);
  for (std::string_view line; problems.size() < kMostProblems && reader.next(line);) {
    const std::string place = place_of_line(path.string(), reader.lines());
    const std::size_t tab = line.find('\t');
    const std::string_view video = line.substr(0, tab);
    if (tab == std::string_view::npos || video.empty() || video.starts_with('.') ||
        video.find('/') != std::string_view::npos) {
      problems.push_back({place, "is '" + escaped(line.substr(0, 80)) + "'",
                          "expected the name of a video, a tab and its caption"});
      continue;
    }
    Tokens words;
    for (const std::string& word : words_of(stripped_line(line.substr(tab + 1)), ' ')) {
      words.push_back(vocabulary.number(word));
      unknown += words.back() == vocabulary.unk();
    }
    if (words.empty()) {
      problems.push_back({place, "has an empty caption of the video '" + escaped(video) + "'",
                          "leave the line out, or say something"});
      continue;
    }
    const auto [found, is_new] = places.try_emplace(std::string(video), std::ssize(file.videos));
    if (is_new) file.videos.push_back({(features / (std::string(video) + ".npy")).string(), place});
    file.captions.video.push_back(found->second);
    sentences.push_back(std::move(words));
  }
  if (!problems.empty()) return problems;
  if (sentences.empty()) return Problem{path.string(), "has no caption", {}};
  if (unknown > 0)
    file.captions.notes.push_back(path.string() + ": " + std::to_string(unknown) +
                                  " words are not in the vocabulary and are read as <unk>");
  file.captions.text = tokens_in_memory(std::move(sentences));
  file.captions.vocabulary = vocabulary.fingerprint().hex();
  return file;
}

Result<Vocabulary> read_vocabulary(const fs::path& path, std::int64_t limit) {
  const Result<std::string> text = read_regular_file(path);
  if (!text) {
    Problems problems = text.problems();
    problems.front().hint = "a word a line: `millrace data text vocab` makes it (docs/language.md)";
    return problems;
  }
  Result<Vocabulary> vocabulary = Vocabulary::parse(*text, TokenKind::Bpe, path.string(), 0);
  if (!vocabulary || vocabulary->size() <= limit) return vocabulary;
  return Problem{path.string(),
                 "has " + std::to_string(vocabulary->size()) +
                     " tokens with the four special ones, the model " + std::to_string(limit),
                 "give --vocabulary " + std::to_string(vocabulary->size())};
}

}  // namespace

Result<std::shared_ptr<const Dataset>> captioned_videos(VideoSourcePtr videos, Captions captions,
                                                        const LanguageOptions& options) {
  auto set = std::make_shared<const CaptionedVideos>(std::move(videos), std::move(captions), options);
  if (set->size() == 0)
    return Problem{"--data", "no caption leaves a frame in " + std::to_string(options.longest) + " steps",
                   "give a larger --length"};
  return std::shared_ptr<const Dataset>(std::move(set));
}

Result<std::shared_ptr<const Dataset>> captions_in_folder(const std::string& folder, DataSplit split,
                                                          const LanguageOptions& options) {
  std::vector<fs::path> paths;
  for (const std::string& name : split_names(split)) paths.push_back(fs::path(folder) / (name + ".captions"));
  const auto found = std::ranges::find_if(paths, [](const fs::path& path) { return fs::exists(path); });
  if (found == paths.end()) {
    if (split != DataSplit::Train) return std::shared_ptr<const Dataset>();
    return Problem{"--data", folder + " has no train.captions",
                   "lines of a video's name, a tab and a caption; its features are in features/NAME.npy "
                   "(docs/language.md)"};
  }
  const auto field = [&](const char* name) { return options.fields[field_index(options.fields, name)]; };
  const Result<Vocabulary> vocabulary =
      read_vocabulary(fs::path(folder) / "vocabulary.txt", field("tokens").limit);
  if (!vocabulary) return vocabulary.problems();
  Result<CaptionFile> file = read_captions(*found, *vocabulary);
  if (!file) return file.problems();
  const Result<VideoSourcePtr> videos = videos_in_files(file->videos, field("frames").shape.back());
  if (!videos) return videos.problems();
  return captioned_videos(*videos, std::move(file->captions), options);
}

Result<std::shared_ptr<const Dataset>> made_up_captions(std::int64_t size, const LanguageOptions& options) {
  const auto field = [&](const char* name) { return options.fields[field_index(options.fields, name)]; };
  constexpr std::int64_t kFirstWord = 4;
  const std::int64_t longest = std::min<std::int64_t>(options.longest, 1 << 20);
  const std::int64_t limit = field("tokens").limit, words = std::max<std::int64_t>(1, longest / 4);
  Captions captions{.text = made_up_text({.sentences = size,
                                          .shortest = std::min<std::int64_t>(words, 3),
                                          .longest = words,
                                          .first = kFirstWord,
                                          .limit = limit,
                                          .seed = derive_seed(options.seed, "captions")}),
                    .video = epoch_order(size, 0, 0, /*shuffle=*/false)};
  return captioned_videos(made_up_videos({.videos = size,
                                          .shortest = std::max<std::int64_t>(1, longest / 4),
                                          .longest = std::max<std::int64_t>(1, longest / 2),
                                          .features = field("frames").shape.back(),
                                          .seed = options.seed}),
                          std::move(captions), options);
}

}  // namespace millrace
