#include <cmath>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "data/language/language_datasets.h"
#include "data/loading/samples.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

/// Draws the length of a window as salesforce/awd-lstm-lm does.
std::int64_t drawn_length(std::int64_t usual, RandomStream& random) {
  constexpr double kUsual = 0.95, kDeviation = 5;
  constexpr std::int64_t kShortest = 5;
  const double base = random.uniform() < kUsual ? double(usual) : double(usual) / 2;
  return std::max(kShortest, static_cast<std::int64_t>(base + kDeviation * random.normal()));
}

/// Returns how many windows cover `tokens` tokens on average, at least 1.
std::int64_t windows_over(std::int64_t tokens, std::int64_t usual) {
  constexpr int kDraws = 1 << 14;
  RandomStream random(derive_seed(0, "windows on average"));
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) sum += double(drawn_length(usual, random));
  return std::max<std::int64_t>(1, std::llround(double(tokens) * kDraws / sum));
}

/// The first token of each window, and the end of the last one.
using Edges = std::vector<std::int64_t>;

/// Returns the edges of `windows` windows over `tokens` tokens. Lengths are drawn again until exactly so many
/// windows reach the end. The result is a function of (seed, epoch).
Edges drawn_edges(std::int64_t tokens, std::int64_t windows, std::int64_t usual, std::uint64_t seed,
                  std::int64_t epoch) {
  // Even with very many windows, one draw in some hundred fits.
  constexpr std::uint64_t kMostDraws = 1'000'000;
  for (std::uint64_t draw = 0; draw < kMostDraws; ++draw) {
    RandomStream random(derive_seed(seed, "windows", static_cast<std::uint64_t>(epoch), draw));
    Edges edges{0};
    while (std::ssize(edges) <= windows && edges.back() < tokens)
      edges.push_back(edges.back() + drawn_length(usual, random));
    if (edges.back() < tokens || std::ssize(edges) != windows + 1) continue;
    edges.back() = tokens;
    return edges;
  }
  MILLRACE_CHECK(false, windows << " windows of about " << usual << " never cover " << tokens << " tokens");
  return {};
}

class RunningText final : public Dataset {
 public:
  RunningText(TokenSourcePtr text, std::int64_t columns, std::int64_t end, const LanguageOptions& options)
      : text_(std::move(text)),
        columns_(columns),
        window_(options.longest),
        end_(end),
        random_(options.random_windows && options.train),
        seed_(options.seed),
        num_fields_(options.fields.size()),
        tokens_field_(field_index(options.fields, "tokens")),
        labels_field_(field_index(options.fields, "labels")) {
    starts_.push_back(0);
    for (std::int64_t i = 0; i < text_->size(); ++i)
      starts_.push_back(starts_.back() + text_->length(i) + (end_ >= 0 ? 1 : 0));
    row_ = starts_.back() / columns_;
    if (row_ > 1) windows_ = random_ ? windows_over(row_ - 1, window_) : (row_ - 1 + window_ - 1) / window_;
  }

  std::int64_t size() const override { return columns_ * windows_; }
  std::int64_t stride() const override { return columns_; }
  std::vector<std::string> notes() const override { return text_->notes(); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const Window window = window_of(index);
    const std::vector<std::int64_t> all = read(index % columns_ * row_ + window.first, window.length + 1);
    const std::span<const std::int64_t> tokens(all);
    Sample sample(num_fields_);
    set_field(sample, wanted, tokens_field_, integers(tokens.first(tokens.size() - 1)));
    set_field(sample, wanted, labels_field_, integers(tokens.subspan(1)));
    return sample;
  }

  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    const std::int64_t length = window_of(index).length;
    if (!lengths.empty()) lengths[0] = length;
    if (!counts.empty()) counts[0] = length;
  }

  std::vector<std::int64_t> order(const EpochOrder& epoch) const override {
    std::vector<std::int64_t> order = epoch_order(size(), 0, 0, /*shuffle=*/false);
    if (random_) {
      for (std::int64_t& index : order) index += epoch.epoch * size();
    }
    return order;
  }

  std::string describe() const override {
    return "running text, " + std::to_string(columns_) + " rows of " + std::to_string(row_) +
           " tokens: " + text_->describe();
  }
  std::vector<std::pair<std::string, std::string>> recorded() const override {
    if (text_->vocabulary().empty()) return {};
    return {{"vocabulary", text_->vocabulary()}};
  }
  std::string fingerprint() const override {
    return "running " + fingerprint_of(*text_) + " rows " + std::to_string(columns_) + " window " +
           std::to_string(window_) + (random_ ? " random" : "");
  }

 private:
  struct Window {
    std::int64_t first, length;  ///< first token in the row, and number of tokens
  };
  Window window_of(std::int64_t index) const {
    const std::int64_t window = index % size() / columns_;
    if (!random_) return {window * window_, std::min(window_, row_ - 1 - window * window_)};
    const std::shared_ptr<const Edges> edges = edges_of(index / size());
    const std::int64_t first = (*edges)[window];
    return {first, (*edges)[static_cast<std::size_t>(window) + 1] - first};
  }

  /// Returns the edges of an epoch. The last two epochs' edges are kept, as the loader keeps orders.
  std::shared_ptr<const Edges> edges_of(std::int64_t epoch) const {
    std::lock_guard lock(mutex_);
    for (const auto& [known, edges] : epochs_) {
      if (known == epoch) return edges;
    }
    if (epochs_.size() == 2) epochs_.pop_front();
    epochs_.emplace_back(
        epoch, std::make_shared<const Edges>(drawn_edges(row_ - 1, windows_, window_, seed_, epoch)));
    return epochs_.back().second;
  }

  /// Returns `count` tokens of the whole text from `first` on.
  std::vector<std::int64_t> read(std::int64_t first, std::int64_t count) const {
    std::vector<std::int64_t> all;
    Tokens tokens;
    auto sentence = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    std::int64_t skip = first - starts_[sentence];
    for (; static_cast<std::int64_t>(all.size()) < count; ++sentence, skip = 0) {
      text_->read(sentence, tokens);
      std::vector<std::int64_t> one(tokens.begin(), tokens.end());
      if (end_ >= 0) one.push_back(end_);
      const std::int64_t take = std::min(static_cast<std::int64_t>(one.size()) - skip,
                                         count - static_cast<std::int64_t>(all.size()));
      all.insert(all.end(), one.begin() + skip, one.begin() + skip + take);
    }
    return all;
  }

  TokenSourcePtr text_;
  std::int64_t columns_, window_, end_;
  bool random_;
  std::uint64_t seed_;
  std::size_t num_fields_;
  int tokens_field_, labels_field_;
  std::vector<std::int64_t> starts_;  ///< each sentence's first token in the text; then the number of tokens
  std::int64_t row_ = 0, windows_ = 0;
  mutable std::mutex mutex_;
  mutable std::deque<std::pair<std::int64_t, std::shared_ptr<const Edges>>> epochs_;  ///< guarded by mutex_
};

}  // namespace

Result<std::shared_ptr<const Dataset>> running_text(TokenSourcePtr text, std::int64_t columns,
                                                    std::int64_t end, const LanguageOptions& options) {
  auto set = std::make_shared<const RunningText>(text, columns, end, options);
  if (set->size() == 0) {
    return Problem{"--data",
                   "the text is too short for " + std::to_string(columns) + " rows (samples of a step)",
                   "use a smaller --microbatch or fewer --microbatches"};
  }
  return std::shared_ptr<const Dataset>(std::move(set));
}

}  // namespace millrace
