#include <utility>

#include "data/language/bucketing.h"
#include "data/language/language_datasets.h"
#include "data/loading/samples.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

class ParallelText final : public Dataset {
 public:
  ParallelText(TokenSourcePtr source, TokenSourcePtr target, const LanguageOptions& options)
      : source_(std::move(source)),
        target_(std::move(target)),
        num_fields_(options.fields.size()),
        source_field_(field_index(options.fields, "source")),
        target_field_(field_index(options.fields, "target")),
        labels_field_(field_index(options.fields, "labels")) {
    for (std::int64_t i = 0; i < source_->size(); ++i) {
      const Lengths lengths{source_->length(i) + 2, target_->length(i) + 1};
      if (options.train && (lengths.source > options.longest || lengths.target + 1 > options.longest))
        continue;
      pairs_.push_back(i);
      lengths_.push_back(lengths);
    }
    length_buckets_ = options.train ? options.length_buckets : 0;
    left_out_ = source_->size() - static_cast<std::int64_t>(pairs_.size());
    longest_ = options.longest;
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(pairs_.size()); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    Sample sample(num_fields_);
    const std::int64_t pair = pairs_[index];
    const auto wants = [&](int field) { return field >= 0 && wanted[field]; };
    if (wants(source_field_)) set_field(sample, wanted, source_field_, integers(sentence(*source_, pair)));
    if (wants(target_field_) || wants(labels_field_)) {
      const std::vector<std::int64_t> all = sentence(*target_, pair);
      const std::span<const std::int64_t> tokens(all);
      set_field(sample, wanted, target_field_, integers(tokens.first(tokens.size() - 1)));
      set_field(sample, wanted, labels_field_, integers(tokens.subspan(1)));
    }
    return sample;
  }

  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    const Lengths& of = lengths_[index];
    if (lengths.size() > 0) lengths[0] = of.source;
    if (lengths.size() > 1) lengths[1] = of.target;
    if (!counts.empty()) counts[0] = of.target;
  }

  std::vector<std::int64_t> order(const EpochOrder& epoch) const override {
    const auto source_length = [&](std::int64_t i) { return lengths_[i].source; };
    if (!epoch.shuffle) {
      std::vector<std::int64_t> order = epoch_order(size(), 0, 0, false);
      sort_within_steps(order, std::max<std::int64_t>(1, size()), source_length);
      return order;
    }
    const auto both = [&](std::int64_t i) {
      const Lengths& of = lengths_[i];
      return of.source + of.target;
    };
    const auto seed =
        static_cast<std::uint32_t>(derive_seed(epoch.seed, "order", static_cast<std::uint64_t>(epoch.epoch)));
    std::vector<std::int64_t> order =
        length_buckets_ > 0
            ? length_bucket_order(
                  size(), buckets(epoch.per_step), [&](auto i) { return longer_side(i); }, seed)
            : bucketed_order(size(), {.per_step = epoch.per_step}, both, seed);
    sort_within_steps(order, epoch.per_step, source_length);
    return order;
  }

  std::int64_t samples_in_epoch(std::int64_t per_step) const override {
    if (length_buckets_ == 0) return size();
    return in_whole_steps(size(), buckets(per_step), [&](auto i) { return longer_side(i); });
  }

  std::string describe() const override {
    return "parallel text, " + std::to_string(size()) + " pairs: " + source_->describe() + "; " +
           target_->describe();
  }
  std::string fingerprint() const override {
    return "parallel " + fingerprint_of(*source_) + " " + fingerprint_of(*target_) + " longest " +
           std::to_string(left_out_ > 0 ? longest_ : 0);
  }
  std::vector<std::pair<std::string, std::string>> recorded() const override {
    if (source_->vocabulary().empty()) return {};
    return {{"source-vocabulary", source_->vocabulary()}, {"target-vocabulary", target_->vocabulary()}};
  }
  std::vector<std::string> notes() const override {
    if (left_out_ == 0) return {};
    return {std::to_string(left_out_) + " pairs of more than " + std::to_string(longest_) +
            " tokens (with begin and end) are left out (--length)"};
  }

 private:
  struct Lengths {
    std::int64_t source, target;
  };
  LengthBuckets buckets(std::int64_t per_step) const {
    constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;
    return {.buckets = length_buckets_, .longest = std::min(longest_, kUnlimited), .per_step = per_step};
  }
  /// Returns the tokens of the longer side of a pair, with begin and end.
  std::int64_t longer_side(std::int64_t i) const {
    const Lengths& of = lengths_[i];
    return std::max(of.source, of.target + 1);
  }
  static std::vector<std::int64_t> sentence(const TokenSource& text, std::int64_t index) {
    constexpr TranslationTokens kTokens;
    Tokens tokens;
    text.read(index, tokens);
    std::vector<std::int64_t> all{kTokens.begin};
    all.insert(all.end(), tokens.begin(), tokens.end());
    all.push_back(kTokens.end);
    return all;
  }

  TokenSourcePtr source_, target_;
  std::size_t num_fields_;
  int source_field_, target_field_, labels_field_;
  std::vector<std::int64_t> pairs_;  ///< indexed by sample: the number of its pair
  std::vector<Lengths> lengths_;     ///< tokens of source, and of target without its begin or its end
  std::int64_t left_out_ = 0, longest_ = 0;
  int length_buckets_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> parallel_text(TokenSourcePtr source, TokenSourcePtr target,
                                                     const LanguageOptions& options) {
  if (source->size() != target->size()) {
    return Problem{"--data",
                   "the sides have " + std::to_string(source->size()) + " and " +
                       std::to_string(target->size()) + " sentences",
                   "encode both files in one call, so that lines stay in step"};
  }
  return std::shared_ptr<const Dataset>(
      std::make_shared<ParallelText>(std::move(source), std::move(target), options));
}

}  // namespace millrace
