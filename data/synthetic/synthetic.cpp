// Seeded synthetic data that a model can learn: a prototype for each class plus noise.
#include "data/synthetic/synthetic.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include "runtime/base/random.h"

namespace millrace {
namespace {

class Synthetic final : public Dataset {
 public:
  Synthetic(const DatasetOptions& options, std::int64_t size) : options_(options), size_(size) {
    // At most 64 prototypes: a thousand of 224x224 would take 600 MB. Classes beyond share one with another
    // sign and offset.
    std::vector<std::int64_t> shape{std::min(options.num_classes, 64)};
    shape.insert(shape.end(), options.sample_shape.begin(), options.sample_shape.end());
    prototypes_ = at::empty(shape, at::kFloat)
                      .normal_(0, 1, at::detail::createCPUGenerator(derive_seed(options.seed, "prototypes")));
  }

  std::int64_t size() const override { return size_; }
  int num_classes() const override { return options_.num_classes; }

  Sample get(std::int64_t index, std::uint64_t, bool want_input) const override {
    const std::uint64_t seed = derive_seed(options_.seed, options_.split, static_cast<std::uint64_t>(index));
    const auto target = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(options_.num_classes));
    if (!want_input) return {{}, target};
    at::Tensor input =
        at::empty(options_.sample_shape, at::kFloat).normal_(0, 1, at::detail::createCPUGenerator(seed));
    const std::int64_t row = target % prototypes_.size(0), round = target / prototypes_.size(0);
    input.add_(prototypes_.select(0, row), round % 2 ? -1 : 1).add_(0.25 * double(round / 2));
    return {input, target};
  }

  std::string describe() const override {
    return "synthetic, " + std::to_string(size_) + " samples, " + std::to_string(options_.num_classes) +
           " classes";
  }

 private:
  DatasetOptions options_;
  std::int64_t size_;
  at::Tensor prototypes_;
};

}  // namespace

std::shared_ptr<const Dataset> make_synthetic(const DatasetOptions& options, std::int64_t size) {
  return std::make_shared<Synthetic>(options, size);
}

}  // namespace millrace
