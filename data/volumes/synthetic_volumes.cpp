// Makes volumes with kidneys from a seed.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "data/loading/samples.h"
#include "data/made_up/kidneys.h"
#include "data/volumes/volume_datasets.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

class SyntheticVolumes final : public Dataset {
 public:
  SyntheticVolumes(const DatasetOptions& options, std::int64_t size)
      : options_(options),
        size_(size),
        seed_(derive_seed(options.seed, to_string(options.split))),
        input_(field_index(options.fields, "input")),
        target_(field_index(options.fields, "target")),
        window_(field_index(options.fields, "window")) {}

  std::int64_t size() const override { return size_; }
  std::string describe() const override {
    return "synthetic, " + std::to_string(size_) + " volumes of side " + std::to_string(side());
  }
  std::string fingerprint() const override { return describe(); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const KidneyVolume volume = draw_kidney_volume(seed_, index, side(), side());
    Sample sample(options_.fields.size());
    if (input_ >= 0 && wanted[input_]) {
      sample[input_].tensor = at::empty(options_.fields[input_].shape, at::kFloat);
      fill_kidney_values(volume, 0, volume.voxels(), sample[input_].tensor.mutable_data_ptr<float>());
    }
    if (target_ >= 0 && wanted[target_]) {
      at::Tensor labels = at::empty(options_.fields[target_].shape, at::kByte);
      fill_kidney_labels(volume, 0, volume.voxels(), labels.mutable_data_ptr<std::uint8_t>());
      sample[target_].tensor = labels.clamp_max_(options_.fields[target_].limit - 1);
    }
    if (window_ >= 0 && wanted[window_])
      sample[window_].tensor = at::zeros(options_.fields[window_].shape, at::kLong);
    return sample;
  }

 private:
  std::int64_t side() const { return options_.fields[input_].shape.back(); }

  DatasetOptions options_;
  std::int64_t size_;
  std::uint64_t seed_;
  int input_, target_, window_;
};

}  // namespace

bool reads_volumes(const std::vector<FieldSpec>& fields) {
  return !fields.empty() && fields[0].form == SampleForm::Volumes;
}

std::shared_ptr<const Dataset> make_synthetic_volumes(const DatasetOptions& options, std::int64_t size) {
  return std::make_shared<SyntheticVolumes>(options, size);
}

}  // namespace millrace
