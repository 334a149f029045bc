// Crops and windows of KiTS's volumes, as MLPerf's UNET3D takes them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>

#include "data/loading/samples.h"
#include "data/volumes/kits_files.h"
#include "data/volumes/volume_datasets.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/layers/dice_cross_entropy.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr double kForegroundChance = 0.4, kFlipChance = 1.0 / 3, kGainChance = 0.1, kNoiseChance = 0.1,
                 kLowestGain = 0.7, kHighestGain = 1.3, kMostNoise = 0.1;
constexpr double kPadding = -2.2;  ///< value of voxels that windows have beyond a volume
constexpr std::size_t kLargestParts = 2;

/// The cases of a split.
struct FoundCases {
  std::string folder;
  std::vector<KitsCase> cases;
  std::vector<std::string> notes;
  std::int64_t left_out = 0;
};

/// The parts that both splits have in common.
class KitsVolumes : public Dataset {
 public:
  KitsVolumes(FoundCases found, const DatasetOptions& options)
      : folder_(std::move(found.folder)),
        notes_(std::move(found.notes)),
        left_out_(found.left_out),
        cases_(std::move(found.cases)),
        fields_(options.fields),
        input_(field_index(fields_, "input")),
        target_(field_index(fields_, "target")),
        window_(field_index(fields_, "window")) {}

  std::string describe() const override {
    return folder_ + ", " + std::to_string(cases_.size()) + " volumes";
  }
  std::int64_t left_out() const override { return left_out_; }
  std::vector<std::string> notes() const override { return notes_; }
  std::string fingerprint() const override {
    Xxh3 listing;
    for (const KitsCase& one : cases_) {
      listing.add(one.values.path.filename().string());
      for (const std::int64_t side : one.sides) listing.add(" " + std::to_string(side));
      listing.add("\n");
    }
    return std::to_string(cases_.size()) + " volumes, listing " + listing.value().hex().substr(0, 16);
  }

 protected:
  std::int64_t crop() const { return fields_[input_].shape.back(); }
  static bool is_wanted(int field, Wanted wanted) { return field >= 0 && wanted[field]; }

  VoxelBox crop_at(const VoxelSides& begin) const {
    VoxelBox box{begin, begin};
    for (std::int64_t& end : box.end) end += crop();
    return box;
  }
  /// Reads labels of a case, and checks them. Throws DataError.
  at::Tensor labels_in(const KitsCase& one, const VoxelBox& box) const {
    at::Tensor labels = read_box(one.labels, one.sides, at::kByte, box, 0);
    const auto largest = labels.max().item<std::int64_t>();
    if (largest >= fields_[target_].limit)
      throw DataError(one.labels.path.string() + " has the label " + std::to_string(largest) +
                          ", the model has " + std::to_string(fields_[target_].limit) + " classes",
                      "give --classes N as the data set has");
    return labels;
  }

  std::string folder_;
  std::vector<std::string> notes_;
  std::int64_t left_out_;
  std::vector<KitsCase> cases_;
  std::vector<FieldSpec> fields_;
  int input_, target_, window_;
};

class KitsCrops final : public KitsVolumes {
 public:
  using KitsVolumes::KitsVolumes;
  std::int64_t size() const override { return static_cast<std::int64_t>(cases_.size()); }
  std::string name_of(std::int64_t index) const override { return cases_[index].values.path.string(); }

  Sample get(std::int64_t index, std::uint64_t augment_seed, Wanted wanted) const override {
    const KitsCase& one = cases_[index];
    Sample sample(fields_.size());
    if (is_wanted(window_, wanted)) sample[window_].tensor = at::zeros(fields_[window_].shape, at::kLong);
    const bool reads_values = is_wanted(input_, wanted), reads_labels = is_wanted(target_, wanted);
    if (!reads_values && !reads_labels) return sample;
    const VoxelBox box = crop_at(begin_of(index, augment_seed));
    const std::vector<std::int64_t> flipped = flips(augment_seed);
    const auto flip = [&](const at::Tensor& t) {
      return flipped.empty() ? t : at::flip(t, flipped).contiguous();
    };
    if (reads_labels) sample[target_].tensor = flip(labels_in(one, box));
    if (!reads_values) return sample;
    sample[input_].tensor = flip(read_box(one.values, one.sides, at::kFloat, box, 0));
    change_values_(sample[input_].tensor, augment_seed);
    return sample;
  }

 private:
  /// Returns the parts of the case's labels that a crop may be asked to hold. They are found once for a case.
  std::vector<LabelledParts> parts_of(std::int64_t index) const {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = parts_.find(index); found != parts_.end()) return found->second;
    }
    const KitsCase& one = cases_[index];
    const at::Tensor labels = labels_in(one, {{0, 0, 0}, one.sides});
    std::vector<LabelledParts> found =
        labelled_parts({labels.const_data_ptr<std::uint8_t>(), static_cast<std::size_t>(labels.numel())},
                       one.sides, kLargestParts);
    const std::lock_guard lock(mutex_);
    return parts_[index] = std::move(found);
  }

  VoxelSides begin_of(std::int64_t index, std::uint64_t augment_seed) const {
    RandomStream random(derive_seed(augment_seed, "crop"));
    const VoxelSides& sides = cases_[index].sides;
    VoxelSides begin{};
    const auto anywhere = [&] {
      for (std::size_t d = 0; d < 3; ++d) {
        const std::int64_t room = sides[d] - crop();
        begin[d] = room > 0 ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(room))) : 0;
      }
      return begin;
    };
    if (random.uniform() >= kForegroundChance) return anywhere();
    const std::vector<LabelledParts> parts = parts_of(index);
    if (parts.empty()) return anywhere();
    const std::vector<VoxelBox>& boxes = parts[random.below(parts.size())].boxes;
    const VoxelBox& box = boxes[random.below(boxes.size())];
    for (std::size_t d = 0; d < 3; ++d) {
      // A crop that is larger than the box holds it, a smaller one lies in it.
      const std::int64_t room = crop() - (box.end[d] - box.begin[d]);
      const auto slack =
          static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(std::abs(room)) + 1));
      begin[d] = std::clamp<std::int64_t>(box.begin[d] + (room > 0 ? -slack : slack), 0, sides[d] - crop());
    }
    return begin;
  }

  static std::vector<std::int64_t> flips(std::uint64_t augment_seed) {
    RandomStream random(derive_seed(augment_seed, "flip"));
    std::vector<std::int64_t> axes;
    for (std::int64_t axis = 1; axis <= 3; ++axis)
      if (random.uniform() < kFlipChance) axes.push_back(axis);
    return axes;
  }

  static void change_values_(const at::Tensor& values, std::uint64_t augment_seed) {
    RandomStream random(derive_seed(augment_seed, "values"));
    if (random.uniform() < kGainChance) values.mul_(random.uniform(kLowestGain, kHighestGain));
    if (random.uniform() >= kNoiseChance) return;
    const double deviation = random.uniform(0, kMostNoise);
    const at::Tensor noise = at::empty(values.sizes(), values.options());
    noise.normal_(0, deviation, at::detail::createCPUGenerator(derive_seed(augment_seed, "noise")));
    values.add_(noise);
  }

  mutable std::mutex mutex_;  // guards parts_
  mutable std::map<std::int64_t, std::vector<LabelledParts>> parts_;
};

class KitsWindows final : public KitsVolumes {
 public:
  KitsWindows(FoundCases found, const DatasetOptions& options) : KitsVolumes(std::move(found), options) {
    for (const KitsCase& one : cases_) {
      Grid grid;
      for (std::size_t d = 0; d < 3; ++d) fit(one.sides[d], grid, d);
      grids_.push_back(grid);
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + grid.windows());
    }
  }
  std::int64_t size() const override { return ends_.back(); }
  std::string describe() const override {
    return KitsVolumes::describe() + " in " + std::to_string(size()) + " windows";
  }
  std::string name_of(std::int64_t index) const override {
    return cases_[volume_of(index)].values.path.string();
  }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const std::size_t volume = volume_of(index);
    const KitsCase& one = cases_[volume];
    const Grid& grid = grids_[volume];
    const std::int64_t number = index - (volume == 0 ? 0 : ends_[volume - 1]);
    VoxelSides begin{};  // in the volume after it was cut or padded
    for (std::int64_t d = 3, left = number; d-- > 0; left /= grid.counts[d])
      begin[d] = left % grid.counts[d] * stride();
    VoxelSides in_file = begin;
    for (std::size_t d = 0; d < 3; ++d) in_file[d] += grid.front[d];
    Sample sample(fields_.size());
    if (is_wanted(input_, wanted))
      sample[input_].tensor = read_box(one.values, one.sides, at::kFloat, crop_at(in_file), kPadding);
    if (is_wanted(target_, wanted)) {
      const at::Tensor& labels = sample[target_].tensor = labels_in(one, crop_at(in_file));
      for (std::int64_t d = 0; d < 3; ++d) {
        const std::int64_t front = std::max<std::int64_t>(0, -in_file[d]),
                           back = std::max<std::int64_t>(0, in_file[d] + crop() - one.sides[d]);
        labels.narrow(d + 1, 0, front).fill_(kOutsideVolume);
        labels.narrow(d + 1, crop() - back, back).fill_(kOutsideVolume);
      }
    }
    if (is_wanted(window_, wanted)) {
      const std::int64_t numbers[] = {grid.windows(), number,        begin[0],      begin[1],
                                      begin[2],       grid.sides[0], grid.sides[1], grid.sides[2]};
      sample[window_] = integers(numbers);
    }
    return sample;
  }

 private:
  struct Grid {
    VoxelSides sides{};   ///< of the volume after it was cut or padded
    VoxelSides front{};   ///< planes that were cut off in front; negative: that were added
    VoxelSides counts{};  ///< windows along each axis
    std::int64_t windows() const { return counts[0] * counts[1] * counts[2]; }
  };
  std::int64_t stride() const { return crop() / 2; }

  void fit(std::int64_t side, Grid& grid, std::size_t d) const {
    const std::int64_t rest = side % stride();
    const std::int64_t cut = rest < stride() / 2 ? rest : rest - stride();  // negative: added
    grid.sides[d] = side - cut;
    grid.front[d] = cut >= 0 ? cut / 2 : -(-cut / 2);
    grid.counts[d] = (grid.sides[d] - crop()) / stride() + 1;
  }
  std::size_t volume_of(std::int64_t index) const {
    return static_cast<std::size_t>(std::ranges::upper_bound(ends_, index) - ends_.begin());
  }

  std::vector<Grid> grids_;         ///< by volume
  std::vector<std::int64_t> ends_;  ///< windows of each volume and those before it
};

bool is_any_case(std::int64_t) {
  return true;
}
bool is_training_case(std::int64_t number) {
  return !is_evaluation_case(number);
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_kits(const DatasetOptions& options, const std::string& text) {
  const bool trains = options.split == DataSplit::Train;
  const std::vector<std::string> folders = split(text, ',');
  if (folders.size() > 2) return Problem{"--data", "kits:" + text + " names more than two folders", {}};
  const std::string& folder = trains ? folders.front() : folders.back();
  const std::int64_t smallest = options.fields[0].shape.back();
  LeftOut left_out;
  Result<std::vector<KitsCase>> cases = read_kits_folder(folder, smallest,
                                                         folders.size() == 2 ? is_any_case
                                                         : trains            ? is_training_case
                                                                             : is_evaluation_case,
                                                         left_out);
  if (!cases) return cases.problems();
  FoundCases found{.folder = folder, .notes = left_out.notes(), .left_out = left_out.count()};
  if (cases->empty()) {
    if (!trains) return std::shared_ptr<const Dataset>();
    std::error_code error;
    if (!fs::exists(fs::path(folder) / kDatasetManifest, error))
      return Problem{folder, "has no case to train on: all of them are those that MLPerf evaluates on",
                     "kits:TRAIN,TEST takes all cases of two folders"};
    cases = read_kits_folder(folder, smallest, is_any_case, left_out);
    if (!cases) return cases.problems();
    found.notes.push_back("trains on the cases that it evaluates on: " + folder + " has no others");
  }
  found.cases = *std::move(cases);
  if (trains) return std::shared_ptr<const Dataset>(std::make_shared<KitsCrops>(std::move(found), options));
  return std::shared_ptr<const Dataset>(std::make_shared<KitsWindows>(std::move(found), options));
}

}  // namespace millrace
