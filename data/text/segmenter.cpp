#include "data/text/segmenter.h"

#include "data/text/unicode.h"

namespace millrace {
namespace {

constexpr std::size_t kMostRemembered = std::size_t{64} << 20;  // bytes of remembered words

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/// Remembers the tokens of words that were seen before.
class WordMemory {
 public:
  /// Appends the word's numbers. The first time, `make` appends them to an empty list.
  template <class Make>
  void append(std::string_view word, std::vector<std::uint32_t>& numbers, Make make) {
    auto found = known_.find(word);
    if (found == known_.end()) {
      if (bytes_ > kMostRemembered) {
        known_.clear();
        bytes_ = 0;
      }
      found = known_.emplace(word, std::vector<std::uint32_t>{}).first;
      make(found->second);
      bytes_ += word.size() + found->second.size() * sizeof(std::uint32_t) + 128;
    }
    numbers.insert(numbers.end(), found->second.begin(), found->second.end());
  }

 private:
  TextMap<std::vector<std::uint32_t>> known_;
  std::size_t bytes_ = 0;
};

class BpeSegmenter : public Segmenter {
 public:
  BpeSegmenter(std::shared_ptr<const BpeCodes> codes, std::shared_ptr<const Vocabulary> vocabulary)
      : codes_(std::move(codes)), vocabulary_(std::move(vocabulary)) {}

  void segment(std::string_view line, std::vector<std::uint32_t>& numbers) override {
    for_each_word(line, [&](std::string_view word) {
      if (!codes_) return numbers.push_back(vocabulary_->number(word));
      memory_.append(word, numbers, [&](std::vector<std::uint32_t>& own) {
        codes_->split(word, ends_);
        std::uint32_t begin = 0;
        for (const std::uint32_t end : ends_) {
          std::string piece(word.substr(begin, end - begin));
          if (end < word.size()) piece += "@@";
          own.push_back(vocabulary_->number(piece));
          begin = end;
        }
      });
    });
  }

 private:
  std::shared_ptr<const BpeCodes> codes_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  WordMemory memory_;
  std::vector<std::uint32_t> ends_;
};

class WordPieceSegmenter : public Segmenter {
 public:
  WordPieceSegmenter(std::shared_ptr<const Vocabulary> vocabulary, WordPieceOptions options)
      : vocabulary_(std::move(vocabulary)), options_(options) {}

  void segment(std::string_view line, std::vector<std::uint32_t>& numbers) override {
    while (options_.keep_special_tokens) {
      const auto [at, token] = first_special(line);
      if (at == std::string_view::npos) break;
      segment_plain(line.substr(0, at), numbers);
      numbers.push_back(vocabulary_->number(token));
      line.remove_prefix(at + token.size());
    }
    segment_plain(line, numbers);
  }

 private:
  std::pair<std::size_t, std::string_view> first_special(std::string_view line) const {
    std::pair<std::size_t, std::string_view> first{std::string_view::npos, {}};
    for (const std::string_view token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
      const std::size_t at = line.find(token);
      if (at < first.first && vocabulary_->find(token)) first = {at, token};
    }
    return first;
  }

  void segment_plain(std::string_view line, std::vector<std::uint32_t>& numbers) {
    for (const std::string& word : basic_words(line, options_.casing))
      memory_.append(word, numbers, [&](std::vector<std::uint32_t>& own) { split(word, own); });
  }

  void split(std::string_view word, std::vector<std::uint32_t>& numbers) const {
    std::vector<std::size_t> ends;  // the end of each character
    for (std::size_t i = 0; i < word.size();) {
      next_code_point(word, i);
      ends.push_back(i);
    }
    if (static_cast<std::int64_t>(ends.size()) > options_.longest_word)
      return numbers.push_back(vocabulary_->unk());
    std::size_t begin = 0;
    for (std::size_t first = 0; first < ends.size();) {
      std::size_t last = ends.size();
      for (; last > first; --last) {
        std::string piece(begin == 0 ? "" : "##");
        piece += word.substr(begin, ends[last - 1] - begin);
        if (const std::optional<std::uint32_t> number = vocabulary_->find(piece)) {
          numbers.push_back(*number);
          break;
        }
      }
      if (last == first) {  // no token fits, so the whole word is unknown
        numbers.assign(1, vocabulary_->unk());
        return;
      }
      begin = ends[last - 1];
      first = last;
    }
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
  WordPieceOptions options_;
  WordMemory memory_;
};

}  // namespace

SegmenterMaker bpe_segmenter(std::shared_ptr<const BpeCodes> codes,
                             std::shared_ptr<const Vocabulary> vocabulary) {
  return [codes, vocabulary] { return std::make_unique<BpeSegmenter>(codes, vocabulary); };
}

SegmenterMaker wordpiece_segmenter(std::shared_ptr<const Vocabulary> vocabulary, WordPieceOptions options) {
  return [vocabulary, options] { return std::make_unique<WordPieceSegmenter>(vocabulary, options); };
}

std::vector<std::string> basic_words(std::string_view line, Casing casing) {
  std::string text;
  text.reserve(line.size());
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t begin = i;
    const char32_t c = next_code_point(line, i);
    if (c == 0 || c == 0xFFFD || is_control(c)) continue;
    if (is_white_space(c)) {
      text += ' ';
    } else if (is_chinese(c)) {
      text += ' ';
      text += line.substr(begin, i - begin);
      text += ' ';
    } else {
      text += line.substr(begin, i - begin);
    }
  }
  if (casing == Casing::Uncased) {
    const std::string decomposed = normal_form(text, NormalForm::Nfd);
    text.clear();
    for (std::size_t i = 0; i < decomposed.size();) {
      const std::size_t begin = i;
      if (!is_nonspacing_mark(next_code_point(decomposed, i))) text.append(decomposed, begin, i - begin);
    }
    text = lower_case(text);
  }
  std::vector<std::string> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(std::move(word));
    word.clear();
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    const char32_t c = next_code_point(text, i);
    if (is_white_space(c)) {
      end_word();
    } else if (is_punctuation(c)) {
      end_word();
      words.emplace_back(text, begin, i - begin);
    } else {
      word.append(text, begin, i - begin);
    }
  }
  end_word();
  return words;
}

std::string split_punctuation(std::string_view line, Joiners joiners) {
  const bool marks = joiners == Joiners::Yes;
  std::string spaced;
  spaced.reserve(line.size() + 16);
  bool after_text = false,
       after_split = false;  // whether the character in front is no white space; whether it was split off
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t begin = i;
    const char32_t c = next_code_point(line, i);
    const bool alone = is_punctuation(c), space = is_white_space(c);
    if (marks && after_split && !alone && !space) spaced += kJoiner;
    if (alone || after_split) spaced += ' ';
    if (marks && alone && after_text) spaced += kJoiner;
    spaced += line.substr(begin, i - begin);
    after_text = !space;
    after_split = alone;
  }
  return single_spaced(spaced);
}

std::string without_joiners(std::string_view text) {
  std::string joined;
  bool goes_on = true;  // no space comes before the first word
  for_each_word(text, [&](std::string_view word) {
    if (word.starts_with(kJoiner)) {
      word.remove_prefix(kJoiner.size());
      goes_on = true;
    }
    if (!goes_on) joined += ' ';
    goes_on = word.ends_with(kJoiner);
    if (goes_on) word.remove_suffix(kJoiner.size());
    joined += word;
  });
  return joined;
}

}  // namespace millrace
