#include "data/language/token_source.h"

#include <algorithm>
#include <utility>

#include "data/text/hash.h"
#include "data/text/token_file.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

class InMemory final : public TokenSource {
 public:
  explicit InMemory(std::vector<Tokens> sentences) : sentences_(std::move(sentences)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(sentences_.size()); }
  std::int64_t length(std::int64_t sentence) const override {
    return static_cast<std::int64_t>(sentences_[sentence].size());
  }
  void read(std::int64_t sentence, Tokens& tokens) const override { tokens = sentences_[sentence]; }
  std::string describe() const override { return std::to_string(size()) + " sentences in memory"; }

 private:
  std::vector<Tokens> sentences_;
};

class InFile final : public TokenSource {
 public:
  explicit InFile(TokenFile file) : file_(std::move(file)) {}
  std::int64_t size() const override { return file_.size(); }
  std::int64_t length(std::int64_t sentence) const override { return file_.length(sentence); }
  void read(std::int64_t sentence, Tokens& tokens) const override { file_.read(sentence, tokens); }
  std::int64_t end() const override {
    switch (file_.info().kind) {
      case TokenKind::Bpe:
        return 3;  // <\s>
      case TokenKind::WordPiece:
        return 102;  // [SEP]
      case TokenKind::SentencePiece:
        return 2;  // </s>
    }
    return -1;
  }
  std::string vocabulary() const override { return file_.info().vocabulary.hex(); }
  std::optional<TokenKind> kind() const override { return file_.info().kind; }
  std::string describe() const override {
    return file_.path() + ", " + std::to_string(size()) + " sentences, " +
           std::to_string(file_.info().tokens) + " tokens";
  }

 private:
  TokenFile file_;
};

class MadeUp final : public TokenSource {
 public:
  explicit MadeUp(const MadeUpText& options) : o_(options) {}
  std::int64_t size() const override { return o_.sentences; }
  std::int64_t length(std::int64_t sentence) const override {
    RandomStream random = stream(sentence);
    return drawn_length(random);
  }
  void read(std::int64_t sentence, Tokens& tokens) const override {
    RandomStream random = stream(sentence);
    tokens.resize(drawn_length(random));
    const std::int64_t range = o_.limit - o_.first;
    std::int64_t last = 0;
    for (std::uint32_t& token : tokens) {
      const double u = random.uniform();
      last = random.below(4) > 0 ? (last + 1) % range
                                 : std::min(range - 1, static_cast<std::int64_t>(u * u * u * double(range)));
      token = static_cast<std::uint32_t>(o_.first + last);
    }
  }
  std::string describe() const override {
    return "made-up text, " + std::to_string(o_.sentences) + " sentences of " + std::to_string(o_.shortest) +
           " to " + std::to_string(o_.longest) + " tokens";
  }

 private:
  RandomStream stream(std::int64_t sentence) const {
    return RandomStream(derive_seed(o_.seed, "text", static_cast<std::uint64_t>(sentence)));
  }
  std::int64_t drawn_length(RandomStream& random) const {
    if (o_.documents && random.below(5) == 0) return 0;
    return o_.shortest +
           static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(o_.longest - o_.shortest + 1)));
  }
  MadeUpText o_;
};

}  // namespace

TokenSourcePtr tokens_in_memory(std::vector<Tokens> sentences) {
  return std::make_shared<InMemory>(std::move(sentences));
}

TokenSourcePtr made_up_text(const MadeUpText& options) {
  return std::make_shared<MadeUp>(options);
}

Result<TokenSourcePtr> tokens_in_file(const std::string& path, std::int64_t limit) {
  Result<TokenFile> file = TokenFile::open(path);
  if (!file) return file.problems();
  const auto size = static_cast<std::int64_t>(file->info().vocabulary_size);
  if (size > limit) {
    return Problem{
        path,
        "has a vocabulary of " + std::to_string(size) + " tokens, the model of " + std::to_string(limit),
        "give --vocabulary " + std::to_string(size)};
  }
  return TokenSourcePtr(std::make_shared<InFile>(std::move(*file)));
}

std::string fingerprint_of(const TokenSource& source) {
  std::string lengths, tokens;
  const std::int64_t stride = std::max<std::int64_t>(1, source.size() / 1000);
  Tokens sentence;
  for (std::int64_t i = 0; i < source.size(); ++i) {
    const std::int64_t length = source.length(i);
    lengths.append(reinterpret_cast<const char*>(&length), sizeof length);
    if (i % stride != 0) continue;
    source.read(i, sentence);
    tokens.append(reinterpret_cast<const char*>(sentence.data()), sentence.size() * sizeof(std::uint32_t));
  }
  return std::to_string(source.size()) + " sentences " + xxh3_128(std::string_view(lengths)).hex() + " " +
         xxh3_128(std::string_view(tokens)).hex();
}

}  // namespace millrace
