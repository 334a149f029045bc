// Makes synthetic samples of any fields from a seed.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "data/synthetic/synthetic.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

class SyntheticFields final : public Dataset {
 public:
  SyntheticFields(const DatasetOptions& options, std::int64_t size) : options_(options), size_(size) {}

  std::int64_t size() const override { return size_; }
  std::string describe() const override {
    return "synthetic, " + std::to_string(size_) + " samples of " + std::to_string(options_.fields.size()) +
           " fields";
  }
  std::string fingerprint() const override { return describe(); }

  void measure(std::int64_t index, std::span<std::int64_t> lengths, std::span<std::int64_t>) const override {
    for (std::size_t d = 0; d < lengths.size(); ++d) lengths[d] = length(index, d);
  }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const std::uint64_t seed = derive_seed(options_.seed, split_name(), static_cast<std::uint64_t>(index));
    Sample sample(options_.fields.size());
    for (std::size_t f = 0; f < sample.size(); ++f)
      if (wanted[f]) sample[f].tensor = make(options_.fields[f], index, seed);
    return sample;
  }

 private:
  static constexpr std::uint64_t kTopics = 64;

  std::string split_name() const { return options_.split == DataSplit::Train ? "train" : "test"; }

  /// Returns a sample's length in a dimension: from half of the nominal length to all of it.
  std::int64_t length(std::int64_t index, std::size_t d) const {
    const std::int64_t nominal = d < options_.dimensions.size() ? options_.dimensions[d].nominal : 1;
    const std::uint64_t seed = derive_seed(options_.seed, split_name() + " length",
                                           static_cast<std::uint64_t>(index), static_cast<std::uint64_t>(d));
    return nominal - static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(nominal / 2 + 1));
  }

  at::Tensor make(const FieldSpec& field, std::int64_t index, std::uint64_t seed) const {
    std::vector<std::int64_t> shape;
    for (std::int64_t d : field.shape)
      shape.push_back(d < 0 ? length(index, static_cast<std::size_t>(-1 - d)) : d);
    const std::uint64_t topic = seed % kTopics;
    if (at::isFloatingType(field.dtype)) {
      at::Tensor value =
          at::empty(shape, at::TensorOptions(field.dtype))
              .normal_(0, 1, at::detail::createCPUGenerator(derive_seed(options_.seed, "topic", topic)));
      const at::Tensor noise =
          at::empty(shape, value.options())
              .normal_(0, 1, at::detail::createCPUGenerator(derive_seed(seed, field.name)));
      return value.add_(noise);
    }
    at::Tensor value = at::ones(shape, at::TensorOptions(at::kLong));
    auto* number = value.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; field.limit > 0 && i < value.numel(); ++i)
      number[i] = static_cast<std::int64_t>((topic + static_cast<std::uint64_t>(i)) %
                                            static_cast<std::uint64_t>(field.limit));
    return value.to(field.dtype);
  }

  DatasetOptions options_;
  std::int64_t size_;
};

}  // namespace

std::shared_ptr<const Dataset> make_synthetic_fields(const DatasetOptions& options, std::int64_t size) {
  return std::make_shared<SyntheticFields>(options, size);
}

}  // namespace millrace
