// Makes clicks from a seed.
#include "data/clicks/click_samples.h"
#include "data/made_up/clicks.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

class SyntheticClicks final : public Dataset {
 public:
  SyntheticClicks(const DatasetOptions& options, std::int64_t size)
      : fields_(options.fields),
        size_(size),
        model_(options.seed, static_cast<int>(fields_.num_dense()), fields_.limits()),
        stream_(derive_seed(options.seed, to_string(options.split))) {}

  std::int64_t size() const override { return size_; }
  std::string describe() const override {
    constexpr std::int64_t kMostRows = 1 << 16;
    return "synthetic, " + std::to_string(size_) + " rows of clicks, AUC at most " +
           printed("%.4f", model_.auc_ceiling(stream_, std::min(size_, kMostRows)));
  }
  std::string fingerprint() const override { return describe(); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    std::vector<std::int32_t> numbers(model_.row_numbers());
    model_.draw(stream_, static_cast<std::uint64_t>(index), numbers);
    ClickRow row{.label = numbers[0]};
    const auto dense = numbers.begin() + 1, categories = dense + fields_.num_dense();
    for (auto x = dense; x != categories; ++x) row.dense.push_back(log_of_count(*x));
    row.categories.assign(categories, numbers.end());
    return fields_.sample_of(row, wanted);
  }

 private:
  ClickFields fields_;
  std::int64_t size_;
  ClickModel model_;
  std::uint64_t stream_;
};

}  // namespace

bool reads_clicks(const std::vector<FieldSpec>& fields) {
  return !fields.empty() && fields[0].form == SampleForm::Clicks;
}

std::shared_ptr<const Dataset> make_synthetic_clicks(const DatasetOptions& options, std::int64_t size) {
  return std::make_shared<SyntheticClicks>(options, size);
}

}  // namespace millrace
