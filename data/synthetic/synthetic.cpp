// Seeded synthetic data that a model can learn: a prototype for each class plus noise.
#include "data/synthetic/synthetic.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <mutex>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/device/host_memory.h"

namespace millrace {
namespace {

class Synthetic final : public Dataset {
 public:
  Synthetic(const DatasetOptions& options, std::int64_t size)
      : options_(options),
        sample_shape_(options.fields[0].shape),
        classes_(options.fields[1].limit),
        size_(size) {
    // There are at most 64 prototypes: a thousand of 224x224 pixels would take 600 MB. Further classes use
    // them again, with another sign and offset.
    std::vector<std::int64_t> shape{std::min<std::int64_t>(classes_, 64)};
    shape.insert(shape.end(), sample_shape_.begin(), sample_shape_.end());
    prototypes_ = at::empty(shape, at::kFloat)
                      .normal_(0, 1, at::detail::createCPUGenerator(derive_seed(options.seed, "prototypes")));
    const auto sample_bytes = static_cast<std::int64_t>(prototypes_.nbytes()) / prototypes_.size(0);
    if (size <= kKeptBytes / sample_bytes) kept_.resize(size);
  }

  std::int64_t size() const override { return size_; }

  int num_classes() const override { return static_cast<int>(classes_); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const std::uint64_t seed =
        derive_seed(options_.seed, to_string(options_.split), static_cast<std::uint64_t>(index));
    const auto target = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(classes_));
    if (!wanted[0]) return {{}, {.number = target}};
    if (kept_.empty()) return {{.tensor = make(seed, target)}, {.number = target}};
    std::unique_lock lock(mutex_);
    at::Tensor& kept = kept_[index];
    if (!kept.defined()) {
      lock.unlock();
      const UncountedTensors of_the_set;
      at::Tensor input = make(seed, target);
      lock.lock();
      kept = std::move(input);
    }
    return {{.tensor = kept}, {.number = target}};
  }

  std::string fingerprint() const override { return describe(); }
  std::string describe() const override {
    return "synthetic, " + std::to_string(size_) + " samples, " + std::to_string(classes_) + " classes";
  }

 private:
  // Drawing a sample takes longer than a small model's step, or than a GPU's. So a small set is drawn once.
  static constexpr std::int64_t kKeptBytes = 256 << 20;

  at::Tensor make(std::uint64_t seed, std::int64_t target) const {
    at::Tensor input =
        at::empty(sample_shape_, at::kFloat).normal_(0, 1, at::detail::createCPUGenerator(seed));
    const std::int64_t row = target % prototypes_.size(0), round = target / prototypes_.size(0);
    return input.add_(prototypes_.select(0, row), round % 2 ? -1 : 1).add_(0.25 * double(round / 2));
  }

  DatasetOptions options_;
  Shape sample_shape_;
  std::int64_t classes_;
  std::int64_t size_;
  at::Tensor prototypes_;
  mutable std::mutex mutex_;  // guards kept_'s elements
  mutable std::vector<at::Tensor>
      kept_;  // indexed by sample, undefined until first use; empty: the set is too large
};

}  // namespace

std::shared_ptr<const Dataset> make_synthetic(const DatasetOptions& options, std::int64_t size) {
  return std::make_shared<Synthetic>(options, size);
}

}  // namespace millrace
