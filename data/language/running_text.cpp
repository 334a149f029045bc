#include <utility>

#include "data/language/language_datasets.h"
#include "data/language/samples.h"

namespace millrace {
namespace {

class RunningText final : public Dataset {
 public:
  RunningText(TokenSourcePtr text, std::int64_t columns, std::int64_t end, const LanguageOptions& options)
      : text_(std::move(text)),
        columns_(columns),
        window_(options.longest),
        end_(end),
        num_fields_(options.fields.size()),
        tokens_field_(field_index(options.fields, "tokens")),
        labels_field_(field_index(options.fields, "labels")) {
    starts_.push_back(0);
    for (std::int64_t i = 0; i < text_->size(); ++i)
      starts_.push_back(starts_.back() + text_->length(i) + (end_ >= 0 ? 1 : 0));
    row_ = starts_.back() / columns_;
    windows_ = row_ > 1 ? (row_ - 1 + window_ - 1) / window_ : 0;
  }

  std::int64_t size() const override { return columns_ * windows_; }
  std::int64_t stride() const override { return columns_; }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const std::int64_t first = index % columns_ * row_ + index / columns_ * window_;
    const std::vector<std::int64_t> all = read(first, length_of(index) + 1);
    const std::span<const std::int64_t> tokens(all);
    Sample sample(num_fields_);
    set_field(sample, wanted, tokens_field_, integers(tokens.first(tokens.size() - 1)));
    set_field(sample, wanted, labels_field_, integers(tokens.subspan(1)));
    return sample;
  }

  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    const std::int64_t length = length_of(index);
    if (!lengths.empty()) lengths[0] = length;
    if (!counts.empty()) counts[0] = length;
  }

  std::vector<std::int64_t> order(const EpochOrder&) const override {
    return epoch_order(size(), 0, 0, /*shuffle=*/false);
  }

  std::string describe() const override {
    return "running text, " + std::to_string(columns_) + " rows of " + std::to_string(row_) +
           " tokens: " + text_->describe();
  }
  std::string fingerprint() const override {
    return "running " + fingerprint_of(*text_) + " rows " + std::to_string(columns_) + " window " +
           std::to_string(window_);
  }

 private:
  std::int64_t length_of(std::int64_t index) const {
    return std::min(window_, row_ - 1 - index / columns_ * window_);
  }

  /// `count` tokens of the whole text from `first` on.
  std::vector<std::int64_t> read(std::int64_t first, std::int64_t count) const {
    std::vector<std::int64_t> all;
    Tokens tokens;
    auto sentence = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
    std::int64_t skip = first - starts_[static_cast<std::size_t>(sentence)];
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
  std::size_t num_fields_;
  int tokens_field_, labels_field_;
  std::vector<std::int64_t> starts_;  ///< by sentence: its first token in the whole text; then all tokens
  std::int64_t row_ = 0, windows_ = 0;
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
