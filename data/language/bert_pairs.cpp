#include <cmath>
#include <utility>

#include "data/language/bucketing.h"
#include "data/language/language_datasets.h"
#include "data/loading/samples.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

constexpr double kMasked = 0.15, kShort = 0.1;
constexpr std::int64_t kSpecial = 3;  // the tokens for begin and two separators

/// The tokens of sentences [first, first + count), without the first `skip` ones.
struct Segment {
  std::int64_t first = 0, count = 0, skip = 0, length = 0;
};
struct Pair {
  Segment a, b;
  bool random = false;
};
struct Document {
  std::int64_t first = 0, count = 0;  ///< sentences
};

/// Returns how many of `length` tokens are masked. Halves are rounded to even numbers, as Python does.
std::int64_t num_masked(std::int64_t length) {
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::nearbyint(kMasked * double(length))));
}

std::vector<Document> documents_of(const TokenSource& text) {
  std::vector<Document> documents;
  Document open;
  for (std::int64_t i = 0; i < text.size(); ++i) {
    if (text.length(i) > 0) {
      if (open.count == 0) open.first = i;
      ++open.count;
    } else if (open.count > 0) {
      documents.push_back(std::exchange(open, {}));
    }
  }
  if (open.count > 0) documents.push_back(open);
  return documents;
}

/// Makes the pairs in one pass over the documents, as create_instances_from_document of BERT's
/// create_pretraining_data does.
class PairMaker {
 public:
  PairMaker(const TokenSource& text, std::int64_t longest, std::uint64_t seed)
      : text_(text),
        documents_(documents_of(text)),
        most_(longest - kSpecial),
        random_(derive_seed(seed, "pairs")) {}

  std::vector<Pair> pairs() {
    for (std::size_t d = 0; d < documents_.size(); ++d) from_document(d);
    return std::move(pairs_);
  }

 private:
  std::int64_t drawn(std::int64_t low, std::int64_t high) {  // `low` and `high` are included
    return low + static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(high - low + 1)));
  }

  void from_document(std::size_t d) {
    const Document document = documents_[d];
    std::int64_t target = random_.uniform() < kShort && most_ > 2 ? drawn(2, most_) : most_;
    Segment chunk{.first = document.first};
    for (std::int64_t i = 0; i < document.count; ++i) {
      ++chunk.count;
      chunk.length += text_.length(document.first + i);
      if (i + 1 < document.count && chunk.length < target) continue;
      i -= add_pair(d, chunk, target);  // sentences that were not used
      chunk = {.first = document.first + i + 1};
    }
  }

  /// Returns how many sentences of the chunk's end are to be used again.
  std::int64_t add_pair(std::size_t d, const Segment& chunk, std::int64_t target) {
    const std::int64_t a_count = chunk.count >= 2 ? drawn(1, chunk.count - 1) : 1;
    Pair pair{.a = segment(chunk.first, a_count)};
    std::int64_t unused = 0;
    pair.random = chunk.count == 1 || random_.uniform() < 0.5;
    if (pair.random) {
      pair.b = random_segment(d, target - pair.a.length);
      unused = chunk.count - a_count;
    } else {
      pair.b = segment(chunk.first + a_count, chunk.count - a_count);
    }
    while (pair.a.length + pair.b.length > most_) {
      Segment& longer = pair.a.length > pair.b.length ? pair.a : pair.b;
      if (random_.uniform() < 0.5) ++longer.skip;
      --longer.length;
    }
    pairs_.push_back(pair);
    return unused;
  }

  /// Returns a segment from a random place in another document, or in the same one if there is no other.
  Segment random_segment(std::size_t d, std::int64_t target) {
    std::size_t other = d;
    for (int tries = 0; tries < 10 && other == d; ++tries) other = random_.below(documents_.size());
    const Document& from = documents_[other];
    const std::int64_t start = drawn(0, from.count - 1);
    Segment result{.first = from.first + start};
    for (std::int64_t i = start; i < from.count && (result.count == 0 || result.length < target); ++i) {
      result.length += text_.length(from.first + i);
      ++result.count;
    }
    return result;
  }

  Segment segment(std::int64_t first, std::int64_t count) const {
    Segment result{.first = first, .count = count};
    for (std::int64_t i = first; i < first + count; ++i) result.length += text_.length(i);
    return result;
  }

  const TokenSource& text_;
  std::vector<Document> documents_;
  std::int64_t most_;
  RandomStream random_;
  std::vector<Pair> pairs_;
};

class BertPairs final : public Dataset {
 public:
  BertPairs(TokenSourcePtr text, std::vector<Pair> pairs, const BertTokens& tokens,
            const LanguageOptions& options)
      : text_(std::move(text)), pairs_(std::move(pairs)), tokens_(tokens), options_(options) {
    const char* names[] = {"input_ids", "token_type_ids", "masked_positions", "masked_labels",
                           "next_sentence"};
    for (std::size_t i = 0; i < std::size(names); ++i) fields_[i] = field_index(options.fields, names[i]);
    const int ids = field_index(options.fields, "input_ids");
    vocabulary_ = ids < 0 ? 0 : options.fields[ids].limit;
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(pairs_.size()); }

  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    const Pair& pair = pairs_[index];
    std::vector<std::int64_t> ids{tokens_.begin};
    append(ids, pair.a);
    const auto a_end = static_cast<std::int64_t>(ids.size());
    append(ids, pair.b);
    std::vector<std::int64_t> types(ids.size(), 1);
    std::fill(types.begin(), types.begin() + a_end, 0);
    std::vector<std::int64_t> positions, labels;
    mask(ids, a_end - 1, augment_seed, positions, labels);
    Sample sample(options_.fields.size());
    set_field(sample, wanted, fields_[0], integers(ids));
    set_field(sample, wanted, fields_[1], integers(types));
    set_field(sample, wanted, fields_[2], integers(positions));
    set_field(sample, wanted, fields_[3], integers(labels));
    set_field(sample, wanted, fields_[4], {.number = pair.random ? 1 : 0});
    return sample;
  }

  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    const std::int64_t length = length_of(index), masked = num_masked(length);
    if (lengths.size() > 0) lengths[0] = length;
    if (lengths.size() > 1) lengths[1] = masked;
    if (!counts.empty()) counts[0] = masked;
  }

  /// Returns a permutation. Within a step the longest samples come first, so that a microbatch's samples have
  /// similar lengths.
  std::vector<std::int64_t> order(const EpochOrder& epoch) const override {
    std::vector<std::int64_t> order = epoch_order(size(), epoch.seed, epoch.epoch, epoch.shuffle);
    sort_within_steps(order, epoch.shuffle ? epoch.per_step : std::max<std::int64_t>(1, size()),
                      [&](std::int64_t i) { return length_of(i); });
    return order;
  }

  std::string describe() const override {
    return "BERT's pairs, " + std::to_string(size()) + " of at most " + std::to_string(options_.longest) +
           " tokens: " + text_->describe();
  }
  std::vector<std::pair<std::string, std::string>> recorded() const override {
    if (text_->vocabulary().empty()) return {};
    return {{"vocabulary", text_->vocabulary()}};
  }
  std::string fingerprint() const override {
    return "pairs " + fingerprint_of(*text_) + " longest " + std::to_string(options_.longest) + " seed " +
           std::to_string(options_.seed);
  }

 private:
  std::int64_t length_of(std::int64_t index) const {
    const Pair& pair = pairs_[index];
    return pair.a.length + pair.b.length + kSpecial;
  }

  /// Appends a segment and its separator.
  void append(std::vector<std::int64_t>& ids, const Segment& segment) const {
    std::vector<std::int64_t> all;
    Tokens tokens;
    for (std::int64_t i = segment.first; i < segment.first + segment.count; ++i) {
      text_->read(i, tokens);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    const auto first = all.begin() + segment.skip;
    ids.insert(ids.end(), first, first + segment.length);
    ids.push_back(tokens_.separator);
  }

  void mask(std::vector<std::int64_t>& ids, std::int64_t first_separator, std::uint64_t seed,
            std::vector<std::int64_t>& positions, std::vector<std::int64_t>& labels) const {
    RandomStream random(seed);
    for (std::int64_t i = 1; i + 1 < static_cast<std::int64_t>(ids.size()); ++i) {
      if (i != first_separator) positions.push_back(i);
    }
    for (std::size_t i = positions.size(); i > 1; --i)
      std::swap(positions[i - 1], positions[random.below(i)]);
    positions.resize(num_masked(static_cast<std::int64_t>(ids.size())));
    std::ranges::sort(positions);
    for (std::int64_t place : positions) {
      std::int64_t& id = ids[place];
      labels.push_back(id);
      if (random.uniform() < 0.8)
        id = tokens_.mask;
      else if (random.uniform() >= 0.5)
        id = tokens_.first_word + static_cast<std::int64_t>(random.below(
                                      static_cast<std::uint64_t>(vocabulary_ - tokens_.first_word)));
    }
  }

  TokenSourcePtr text_;
  std::vector<Pair> pairs_;
  BertTokens tokens_;
  LanguageOptions options_;
  int fields_[5];
  std::int64_t vocabulary_;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> bert_pairs(TokenSourcePtr text, const BertTokens& tokens,
                                                  const LanguageOptions& options) {
  if (options.longest < kSpecial + 2)
    return Problem{"--length", "a pair needs at least " + std::to_string(kSpecial + 2) + " tokens", {}};
  std::vector<Pair> pairs = PairMaker(*text, options.longest, options.seed).pairs();
  if (pairs.empty()) return Problem{"--data", text->describe() + ": no sentence with tokens", {}};
  return std::shared_ptr<const Dataset>(
      std::make_shared<BertPairs>(std::move(text), std::move(pairs), tokens, options));
}

}  // namespace millrace
