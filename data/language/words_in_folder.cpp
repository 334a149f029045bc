// Plain text as words between spaces: what `millrace data generate --workload text` writes.
#include <algorithm>
#include <array>
#include <filesystem>

#include "data/language/language_datasets.h"
#include "data/text/line_reader.h"
#include "data/text/word_counts.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr Bytes kLargestText = kGiB;  // its tokens are in memory

class Words final : public TokenSource {
 public:
  Words(const std::string& path, const Vocabulary& vocabulary) : path_(path), vocabulary_(vocabulary) {
    LineReader reader(path);
    for (std::string_view line; reader.next(line);) {
      Tokens& tokens = sentences_.emplace_back();
      for_each_word(line, [&](std::string_view word) {
        tokens.push_back(vocabulary.number(word));
        unknown_ += tokens.back() == vocabulary.unk();
      });
      words_ += std::ssize(tokens);
    }
  }
  std::int64_t size() const override { return std::ssize(sentences_); }
  std::int64_t length(std::int64_t sentence) const override { return std::ssize(sentences_[sentence]); }
  void read(std::int64_t sentence, Tokens& tokens) const override { tokens = sentences_[sentence]; }
  std::string describe() const override {
    return path_ + ", " + std::to_string(size()) + " sentences, " + std::to_string(words_) + " words";
  }
  std::string vocabulary() const override { return vocabulary_.fingerprint().hex(); }
  std::optional<TokenKind> kind() const override { return vocabulary_.kind(); }
  std::int64_t end() const override { return *vocabulary_.eos(); }
  std::vector<std::string> notes() const override {
    if (unknown_ == 0) return {};
    return {path_ + ": " + std::to_string(unknown_) + " of " + std::to_string(words_) +
            " words are <unk>: they are not among the " + std::to_string(vocabulary_.size()) +
            " tokens of the vocabulary (--vocabulary)"};
  }

 private:
  std::string path_;
  Vocabulary vocabulary_;
  std::vector<Tokens> sentences_;
  std::int64_t words_ = 0, unknown_ = 0;
};

Result<Vocabulary> vocabulary_of(const std::string& path, std::int64_t limit) {
  static constexpr std::array<std::string_view, 4> kSpecials{"<pad>", "<unk>", "<s>", "<\\s>"};
  WordCounts counts;
  LineReader reader(path);
  for (std::string_view line; reader.next(line);) counts.add_line(line);
  std::vector<std::string> tokens(kSpecials.begin(), kSpecials.end());
  for (const auto& [word, count] : counts.by_count()) {
    if (std::ssize(tokens) >= limit) break;
    if (std::ranges::find(kSpecials, word) == kSpecials.end()) tokens.push_back(word);
  }
  return Vocabulary::of(std::move(tokens), TokenKind::Bpe, path);
}

}  // namespace

Result<TokenSourcePtr> words_in_folder(const std::string& folder, DataSplit split, std::int64_t limit) {
  const fs::path train = fs::path(folder) / "train.txt";
  std::error_code ignored;
  for (const std::string& name : split_names(split)) {
    const fs::path path = fs::path(folder) / (name + ".txt");
    if (!fs::exists(path, ignored) || !fs::exists(train, ignored)) continue;
    for (const fs::path& file : {train, path})
      if (fs::file_size(file, ignored) > static_cast<std::uintmax_t>(kLargestText))
        return Problem{file.string(), "has more than 1 GiB", "`millrace data text encode` makes token files"};
    const Result<Vocabulary> vocabulary = vocabulary_of(train.string(), limit);
    if (!vocabulary) return vocabulary.problems();
    return TokenSourcePtr(std::make_shared<Words>(path.string(), *vocabulary));
  }
  return TokenSourcePtr();
}

}  // namespace millrace
