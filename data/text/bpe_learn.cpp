#include "data/text/bpe_learn.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "data/text/unicode.h"
#include "data/text/word_counts.h"

namespace millrace {
namespace {

using Symbol = std::uint32_t;
using PairId = std::uint32_t;
using WordId = std::uint32_t;

/// The symbols of a word are a part of one vector; merging makes the part shorter.
struct Word {
  std::size_t begin = 0;
  std::uint32_t length = 0;
  bool has_space = false;  ///< has white space other than U+0020
  std::int64_t frequency = 0;
};

/// The count of a pair. `frequency` is the count in use if the pair is `listed`. The original takes rare
/// pairs off its list, to have fewer to look through, and puts their counts aside. This does the same: the
/// count moves to `aside`, and later changes are counted from 0 in `frequency`. When the pair is put aside
/// again, a negative `frequency` is added to `aside`, and another one replaces it.
struct PairCount {
  Symbol left = 0, right = 0;
  std::int64_t frequency = 0, aside = 0;
  bool listed = false, has_aside = false;
  std::vector<std::pair<WordId, std::int32_t>>
      words;  ///< changes of the pair's count in each word, which must be added up
};

struct KeyHash {
  std::size_t operator()(std::uint64_t key) const {
    key *= 0x9E3779B97F4A7C15u;
    return key ^ key >> 32;
  }
};

/// Returns whether the original's patterns take the character as white space.
bool splits_pattern(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool has_pattern_space(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (splits_pattern(next_code_point(text, i))) return true;
  }
  return false;
}

/// Returns the code point that ends before `end`. `text` must be valid UTF-8.
char32_t code_point_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return next_code_point(text, begin);
}

class BpeLearner {
 public:
  explicit BpeLearner(const std::vector<std::pair<std::string, std::int64_t>>& words) {
    for (const auto& [text, count] : words) add_word(text, count);
    count_pairs();
  }

  std::vector<BpeMerge> learn(const LearnBpeOptions& options,
                              const std::function<void(std::int64_t)>& progress) {
    std::vector<BpeMerge> merges;
    if (listed_.empty()) return merges;
    double threshold = static_cast<double>(frequency_of_best()) / 10;
    for (std::int64_t i = 0; i < options.merges; ++i) {
      const bool any = find_best();
      if (!any || (i > 0 && static_cast<double>(pairs_[best_].frequency) < threshold)) {
        put_aside(threshold);
        take_all_back();
        find_best();
        threshold = static_cast<double>(pairs_[best_].frequency) * static_cast<double>(i) /
                    (static_cast<double>(i) + 10000.0);
        put_aside(threshold);
      }
      if (pairs_[best_].frequency < options.min_frequency) break;
      const PairId merged = best_;
      merges.emplace_back(texts_[pairs_[merged].left], texts_[pairs_[merged].right]);
      merge(merged);
      if (i % 100 == 0) put_aside(threshold);
      if (progress) progress(i + 1);
    }
    return merges;
  }

 private:
  // ---- words and symbols

  Symbol symbol(std::string_view text) {
    const auto found = symbols_.find(text);
    if (found != symbols_.end()) return found->second;
    const auto id = static_cast<Symbol>(texts_.size());
    symbols_.emplace(text, id);
    texts_.emplace_back(text);
    return id;
  }

  void add_word(const std::string& text, std::int64_t count) {
    Word word{.begin = sequence_.size(), .has_space = has_pattern_space(text), .frequency = count};
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t begin = i;
      next_code_point(text, i);
      const std::string character = text.substr(begin, i - begin);
      sequence_.push_back(symbol(i < text.size() ? character : character + "</w>"));
    }
    word.length = static_cast<std::uint32_t>(sequence_.size() - word.begin);
    words_.push_back(word);
  }

  // ---- pairs

  PairId pair_of(Symbol left, Symbol right) {
    const std::uint64_t key = std::uint64_t{left} << 32 | right;
    const auto [found, is_new] = pair_ids_.try_emplace(key, static_cast<PairId>(pairs_.size()));
    if (is_new) pairs_.push_back({.left = left, .right = right});
    return found->second;
  }

  /// Adds `times` occurrences in a word to a pair's counts.
  void change(Symbol left, Symbol right, WordId word, std::int32_t times) {
    const PairId id = pair_of(left, right);
    PairCount& pair = pairs_[id];
    list(id);
    pair.frequency += times * words_[word].frequency;
    if (!pair.words.empty() && pair.words.back().first == word) {
      pair.words.back().second += times;
    } else {
      pair.words.emplace_back(word, times);
    }
    if (times > 0) push(id);
  }

  void list(PairId id) {
    PairCount& pair = pairs_[id];
    if (pair.listed) return;
    pair.listed = true;
    pair.frequency = 0;
    listed_.push_back(id);
    push(id);
  }

  void count_pairs() {
    counting_ = true;
    for (WordId w = 0; w < words_.size(); ++w) {
      const Symbol* symbols = sequence_.data() + words_[w].begin;
      for (std::uint32_t i = 0; i + 1 < words_[w].length; ++i) change(symbols[i], symbols[i + 1], w, 1);
    }
    counting_ = false;
    for (PairCount& pair : pairs_) {
      pair.aside = pair.frequency;
      pair.has_aside = true;
    }
    make_heap();
  }

  /// Takes pairs below the threshold off the list.
  void put_aside(double threshold) {
    std::erase_if(listed_, [&](PairId id) {
      PairCount& pair = pairs_[id];
      if (!(static_cast<double>(pair.frequency) < threshold)) return false;
      pair.listed = false;
      pair.aside = pair.frequency < 0 && pair.has_aside ? pair.aside + pair.frequency : pair.frequency;
      pair.has_aside = true;
      return true;
    });
    make_heap();
  }

  /// Takes all counts that were put aside into use again.
  void take_all_back() {
    listed_.clear();
    for (PairId id = 0; id < pairs_.size(); ++id) {
      PairCount& pair = pairs_[id];
      pair.listed = pair.has_aside;
      if (!pair.listed) continue;
      pair.frequency = pair.aside;
      listed_.push_back(id);
    }
    make_heap();
  }

  // ---- the most frequent pair: a heap whose entries may be out of date

  struct Entry {
    std::int64_t frequency;
    PairId pair;
  };

  bool less(const Entry& a, const Entry& b) const {
    if (a.frequency != b.frequency) return a.frequency < b.frequency;
    if (a.pair == b.pair) return false;
    const PairCount &left = pairs_[a.pair], &right = pairs_[b.pair];
    if (left.left != right.left) return texts_[left.left] < texts_[right.left];
    return texts_[left.right] < texts_[right.right];
  }

  void push(PairId id) {
    if (counting_) return;
    heap_.push_back({pairs_[id].frequency, id});
    std::push_heap(heap_.begin(), heap_.end(), [this](const Entry& a, const Entry& b) { return less(a, b); });
  }

  void make_heap() {
    heap_.clear();
    for (const PairId id : listed_) heap_.push_back({pairs_[id].frequency, id});
    std::make_heap(heap_.begin(), heap_.end(), [this](const Entry& a, const Entry& b) { return less(a, b); });
  }

  /// Sets best_ to the most frequent pair. Returns false if no pair is listed. If an entry's pair has become
  /// less frequent, it is put into the heap again with its new count.
  bool find_best() {
    while (!heap_.empty()) {
      const Entry top = heap_.front();
      const PairCount& pair = pairs_[top.pair];
      if (pair.listed && pair.frequency == top.frequency) {
        best_ = top.pair;
        return true;
      }
      std::pop_heap(heap_.begin(), heap_.end(),
                    [this](const Entry& a, const Entry& b) { return less(a, b); });
      heap_.pop_back();
      if (pair.listed && pair.frequency < top.frequency) push(top.pair);
    }
    return false;
  }

  std::int64_t frequency_of_best() {
    find_best();
    return pairs_[best_].frequency;
  }

  // ---- merging

  void merge(PairId id) {
    const Symbol left = pairs_[id].left, right = pairs_[id].right;
    const Symbol made = symbol(texts_[left] + texts_[right]);
    std::vector<std::pair<WordId, std::int32_t>> words = std::move(pairs_[id].words);
    pairs_[id].words = {};
    list(id);
    pairs_[id].frequency = 0;
    std::sort(words.begin(), words.end());
    for (std::size_t i = 0; i < words.size();) {
      const WordId word = words[i].first;
      std::int64_t occurrences = 0;
      for (; i < words.size() && words[i].first == word; ++i) occurrences += words[i].second;
      if (occurrences >= 1) merge_in_word(word, left, right, made);
    }
    list(id);
    pairs_[id].frequency = 0;
  }

  void merge_in_word(WordId id, Symbol left, Symbol right, Symbol made) {
    Word& word = words_[id];
    Symbol* symbols = sequence_.data() + word.begin;
    before_.assign(symbols, symbols + word.length);
    if (word.has_space) {
      merge_by_text(left, right);
    } else {
      after_.clear();
      for (std::size_t i = 0; i < before_.size(); ++i) {
        const bool here = before_[i] == left && i + 1 < before_.size() && before_[i + 1] == right;
        after_.push_back(here ? made : before_[i]);
        i += here;
      }
    }
    std::copy(after_.begin(), after_.end(), symbols);
    word.length = static_cast<std::uint32_t>(after_.size());
    uncount_around(id, left, right);
    count_around(id, made);
  }

  /// Merges as the original does in all words: it looks for "left right" between white space or ends of the
  /// text. In a word with white space of its own, this also matches the ends of symbols.
  void merge_by_text(Symbol left, Symbol right) {
    std::string text;
    for (const Symbol s : before_) text += (text.empty() ? "" : " ") + texts_[s];
    const std::string wanted = texts_[left] + " " + texts_[right];
    std::string merged;
    std::size_t done = 0;
    for (std::size_t at = 0; (at = text.find(wanted, at)) != std::string::npos;) {
      std::size_t behind = at + wanted.size();
      const bool begins = at == 0 || splits_pattern(code_point_before(text, at));
      std::size_t after = behind;
      const bool ends = behind == text.size() || splits_pattern(next_code_point(text, after));
      if (!begins || !ends) {
        ++at;
        continue;
      }
      merged += text.substr(done, at - done) + texts_[left] + texts_[right];
      at = done = behind;
    }
    merged += text.substr(done);
    after_.clear();
    for_each_symbol(merged, [&](std::string_view part) { after_.push_back(symbol(part)); });
  }

  template <class Use>
  static void for_each_symbol(std::string_view text, Use use) {
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      use(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  /// Subtracts the pairs that a merge removes. If B C is merged in A B C D, the pairs A B and C D are gone.
  /// In A B C B C the pair C B in the middle is subtracted once.
  void uncount_around(WordId id, Symbol left, Symbol right) {
    for (std::size_t i = 0; i + 1 < before_.size();) {
      if (before_[i] != left || before_[i + 1] != right) {
        ++i;
        continue;
      }
      if (i > 0) change(before_[i - 1], before_[i], id, -1);
      const bool again = i + 3 < before_.size() && before_[i + 2] == left && before_[i + 3] == right;
      if (i + 2 < before_.size() && !again) change(before_[i + 1], before_[i + 2], id, -1);
      i += 2;
    }
  }

  /// Adds the pairs that a merge makes: A BC and BC D. A pair BC BC is counted at its second symbol.
  void count_around(WordId id, Symbol made) {
    for (std::size_t i = 0; i < after_.size(); ++i) {
      if (after_[i] != made) continue;
      if (i > 0) change(after_[i - 1], after_[i], id, 1);
      if (i + 1 < after_.size() && after_[i + 1] != made) change(after_[i], after_[i + 1], id, 1);
    }
  }

  std::vector<std::string> texts_;  // indexed by symbol
  TextMap<Symbol> symbols_;
  std::vector<Symbol> sequence_;
  std::vector<Word> words_;
  std::vector<PairCount> pairs_;
  std::unordered_map<std::uint64_t, PairId, KeyHash> pair_ids_;
  std::vector<PairId> listed_;
  std::vector<Entry> heap_;
  std::vector<Symbol> before_, after_;
  PairId best_ = 0;
  bool counting_ = false;
};

}  // namespace

std::vector<BpeMerge> learn_bpe(const std::vector<std::pair<std::string, std::int64_t>>& words,
                                const LearnBpeOptions& options,
                                const std::function<void(std::int64_t)>& progress) {
  return BpeLearner(words).learn(options, progress);
}

std::string bpe_codes_text(const std::vector<BpeMerge>& merges) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : merges) text += left + " " + right + "\n";
  return text;
}

}  // namespace millrace
