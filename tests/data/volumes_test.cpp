// Volumes: KiTS's folder, its crops and windows, the parts of labels, and made-up kidneys.
#include "tests/data/kits_folder.h"

#include <unistd.h>

#include <ATen/ops/equal.h>

#include <cmath>
#include <deque>
#include <functional>
#include <set>

#include "data/loading/dataset.h"
#include "data/made_up/kidneys.h"
#include "data/volumes/labelled_parts.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/layers/dice_cross_entropy.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr char kAllFields[] = {1, 1, 1}, kValuesAlone[] = {1, 0, 0}, kVoxelLabelsAlone[] = {0, 1, 0};
constexpr auto kVolumes = SampleForm::Volumes;

std::vector<FieldSpec> fields_of(std::int64_t side, std::int64_t classes = 3) {
  return {{.name = "input", .shape = {1, side, side, side}, .form = kVolumes},
          {.name = "target",
           .shape = {1, side, side, side},
           .dtype = at::kByte,
           .limit = classes,
           .form = kVolumes},
          {.name = "window", .shape = {8}, .dtype = at::kLong, .form = kVolumes}};
}

/// Parts by flood fill, voxel by voxel.
std::vector<LabelledParts> slow_parts(std::vector<std::uint8_t> labels,
                                      const std::array<std::int64_t, 3>& sides) {
  std::map<std::uint8_t, std::vector<VoxelBox>> found;
  const auto index = [&](const std::array<std::int64_t, 3>& v) {
    return (v[0] * sides[1] + v[1]) * sides[2] + v[2];
  };
  for (std::int64_t z = 0; z < sides[0]; ++z)
    for (std::int64_t y = 0; y < sides[1]; ++y)
      for (std::int64_t x = 0; x < sides[2]; ++x) {
        const std::uint8_t label = labels[index({z, y, x})];
        if (label == 0) continue;
        VoxelBox box{{z, y, x}, {z + 1, y + 1, x + 1}};
        std::deque<std::array<std::int64_t, 3>> open{{z, y, x}};
        labels[index({z, y, x})] = 0;
        while (!open.empty()) {
          const auto here = open.front();
          open.pop_front();
          for (std::size_t d = 0; d < 3; ++d) {
            box.begin[d] = std::min(box.begin[d], here[d]);
            box.end[d] = std::max(box.end[d], here[d] + 1);
            for (const int step : {-1, 1}) {
              auto next = here;
              next[d] += step;
              if (next[d] < 0 || next[d] >= sides[d] || labels[index(next)] != label) continue;
              labels[index(next)] = 0;
              open.push_back(next);
            }
          }
        }
        found[label].push_back(box);
      }
  std::vector<LabelledParts> all;
  for (auto& [label, boxes] : found) {
    std::ranges::stable_sort(boxes, std::greater(), &VoxelBox::voxels);
    if (boxes.size() > 2) boxes.resize(2);
    all.push_back({label, boxes});
  }
  return all;
}

TEST(LabelledParts, AreThoseOfAFloodFill) {
  RandomStream random(5);
  for (int round = 0; round < 60; ++round) {
    const std::array<std::int64_t, 3> sides{1 + std::int64_t(random.below(6)),
                                            1 + std::int64_t(random.below(7)),
                                            1 + std::int64_t(random.below(9))};
    std::vector<std::uint8_t> labels(static_cast<std::size_t>(sides[0] * sides[1] * sides[2]));
    for (std::uint8_t& label : labels)
      label = random.below(3) > 0 ? std::uint8_t{0} : static_cast<std::uint8_t>(random.below(3));
    if (round % 2 == 0)  // dense: parts meet late and in odd ways
      for (std::uint8_t& label : labels) label = label > 0 ? 0 : 1;
    const auto ours = labelled_parts(labels, sides, 2), theirs = slow_parts(labels, sides);
    ASSERT_EQ(ours.size(), theirs.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].label, theirs[i].label);
      EXPECT_TRUE(ours[i].boxes == theirs[i].boxes) << round;
    }
  }
}

class Kits : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-kits-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(root_); }
  Result<std::shared_ptr<const Dataset>> open(std::int64_t side, DataSplit split = DataSplit::Train,
                                              const std::string& path = "", std::int64_t classes = 3) {
    return make_dataset({.path = "kits:" + (path.empty() ? root_.string() : path),
                         .split = split,
                         .fields = fields_of(side, classes)});
  }
  std::string problem(std::int64_t side, const std::string& path = "") {
    const auto set = open(side, DataSplit::Train, path);
    return set ? "none" : to_string(set.problems());
  }
  fs::path root_;
};

TEST_F(Kits, SplitsCasesAsMlperfDoesOrByFolder) {
  for (int number : {0, 1, 2, 3, 207, 208}) write_case(root_, number, {8, 9, 8});
  EXPECT_EQ((*open(8))->size(), 3);  // 1, 2, 208
  EXPECT_EQ((*open(8, DataSplit::Test))->describe().find("3 volumes") != std::string::npos, true);
  const std::string two = root_.string() + "," + root_.string();
  EXPECT_EQ((*open(8, DataSplit::Train, two))->size(), 6);
  EXPECT_NE((*open(8))->fingerprint(), (*open(8, DataSplit::Train, two))->fingerprint());
  fs::create_directories(root_ / "train");
  write_case(root_ / "train", 1, {8, 8, 8});
  EXPECT_FALSE(*open(8, DataSplit::Test, (root_ / "train").string())) << "no test split is no error";
}

/// A voxel's value tells its place, so a crop tells where it comes from and how it was flipped.
struct Place {
  std::array<std::int64_t, 3> begin{};
  std::array<bool, 3> flipped{};
};
Place place_of(const at::Tensor& crop) {
  const std::int64_t last = crop.size(1) - 1;
  const auto at = [&](std::int64_t z, std::int64_t y, std::int64_t x) {
    return std::llround(crop[0][z][y][x].item<double>());
  };
  const std::int64_t first = at(0, 0, 0), other = at(last, last, last);
  Place place;
  const std::int64_t factors[] = {10'000, 100, 1}, bounds[] = {1 << 20, 100, 100};
  for (std::size_t d = 0; d < 3; ++d) {
    const std::int64_t a = first / factors[d] % bounds[d], b = other / factors[d] % bounds[d];
    place.begin[d] = std::min(a, b);
    place.flipped[d] = b < a;
  }
  return place;
}

TEST_F(Kits, CropsDependOnTheSeedAndHoldWhatIsLabelled) {
  const std::array<std::int64_t, 3> sides{14, 16, 20};
  std::vector<std::uint8_t> labels(14 * 16 * 20);
  labels[(3 * 16 + 12) * 20 + 17] = 2;  // one voxel: a crop of 8 that is to hold it has few places
  write_case(root_, 1, sides, labels);
  const auto set = open(8);
  ASSERT_TRUE(set) << to_string(set.problems());
  int held = 0, flips = 0, changed = 0;
  std::set<std::array<std::int64_t, 3>> begins;
  constexpr int kSeeds = 600;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Sample all = (*set)->get(0, seed, kAllFields);
    EXPECT_TRUE(at::equal(all[0].tensor, (*set)->get(0, seed, kValuesAlone)[0].tensor));
    EXPECT_TRUE(at::equal(all[1].tensor, (*set)->get(0, seed, kVoxelLabelsAlone)[1].tensor));
    EXPECT_EQ(all[2].tensor.abs().sum().item<std::int64_t>(), 0);
    const bool holds = all[1].tensor.max().item<std::int64_t>() == 2;
    held += holds;
    const at::Tensor& x = all[0].tensor;
    const double step = std::abs(x[0][0][0][1].item<double>() - x[0][0][0][0].item<double>());
    const bool as_it_was = std::abs(step - 1) < 1e-9;
    changed += !as_it_was;
    if (!as_it_was) continue;
    const Place place = place_of(x);
    begins.insert(place.begin);
    for (const bool flipped : place.flipped) flips += flipped;
    // The label stands where the values say that it is.
    std::array<std::int64_t, 3> in_crop{3 - place.begin[0], 12 - place.begin[1], 17 - place.begin[2]};
    bool inside = true;
    for (std::size_t d = 0; d < 3; ++d) {
      inside = inside && in_crop[d] >= 0 && in_crop[d] < 8;
      if (place.flipped[d]) in_crop[d] = 7 - in_crop[d];
    }
    EXPECT_EQ(holds, inside);
    if (inside) {
      EXPECT_EQ(all[1].tensor[0][in_crop[0]][in_crop[1]][in_crop[2]].item<std::int64_t>(), 2);
    }
  }
  EXPECT_NEAR(double(held) / kSeeds, 0.4 + 0.6 * 4 / 6 * 3 / 8 * 2 / 12, 0.06)
      << "0.4 by order, others by chance";
  EXPECT_NEAR(double(flips) / (3 * (kSeeds - changed)), 1.0 / 3, 0.05);
  EXPECT_NEAR(double(changed) / kSeeds, 0.19, 0.05) << "gain and noise, each with 0.1";
  EXPECT_GT(begins.size(), 100u);
  for (const auto& begin : begins)
    for (std::size_t d = 0; d < 3; ++d) EXPECT_LE(begin[d], sides[d] - 8);
}

TEST_F(Kits, WindowsCoverTheVolumeThatWasCutOrPadded) {
  // Half a crop is 4: 13 is cut to 12, 15 padded to 16, and 8 stays.
  write_case(root_, 0, {13, 15, 8});
  write_case(root_, 3, {8, 8, 8});
  const auto set = open(8, DataSplit::Test);
  ASSERT_TRUE(set) << to_string(set.problems());
  ASSERT_EQ((*set)->size(), 2 * 3 * 1 + 1);
  for (std::int64_t n = 0; n < 6; ++n) {
    const Sample sample = (*set)->get(n, 0, kAllFields);
    const std::vector<std::int64_t> expected{6, n, n / 3 * 4, n % 3 * 4, 0, 12, 16, 8};
    for (std::int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(sample[2].tensor[i].item<std::int64_t>(), expected[i]) << n;
    for (std::int64_t z = 0; z < 8; ++z)
      for (std::int64_t y = 0; y < 8; ++y) {
        // A plane is cut behind (1 / 2 = 0 in front), a row added behind.
        const std::int64_t plane = z + expected[2], row = y + expected[3];
        const double value = row < 15 ? double(plane * 10'000 + row * 100) : -2.2;
        EXPECT_FLOAT_EQ(sample[0].tensor[0][z][y][0].item<float>(), float(value)) << z << " " << y;
        EXPECT_EQ(sample[1].tensor[0][z][y][0].item<std::int64_t>(), row < 15 ? 0 : kOutsideVolume);
      }
  }
  EXPECT_EQ((*set)->get(6, 0, kAllFields)[2].tensor[0].item<std::int64_t>(), 1);
  // A cut of 3 of 4 is too much: 11 is padded to 12.
  fs::remove_all(root_);
  write_case(root_, 0, {10, 11, 8});
  const auto padded = open(8, DataSplit::Test);
  const at::Tensor numbers = (*padded)->get(0, 0, kAllFields)[2].tensor;
  EXPECT_EQ(numbers[5].item<std::int64_t>(), 12) << "of 10: two are added, one in front";
  EXPECT_EQ(numbers[6].item<std::int64_t>(), 12);
  const at::Tensor x = (*padded)->get(0, 0, kAllFields)[0].tensor;
  EXPECT_FLOAT_EQ(x[0][0][0][0].item<float>(), -2.2F);
  EXPECT_FLOAT_EQ(x[0][1][0][0].item<float>(), 0);
  const at::Tensor labels = (*padded)->get(0, 0, kVoxelLabelsAlone)[1].tensor;
  EXPECT_EQ(labels.ne(0).sum().item<std::int64_t>(), 8 * 8) << "the plane in front";
}

TEST_F(Kits, WhatDoesNotFitIsNamed) {
  EXPECT_NE(problem(8).find("has no case_NNNNN_x.npy"), std::string::npos) << problem(8);
  write_case(root_, 1, {8, 8, 7});
  write_case(root_, 2, {8, 8, 8});
  fs::remove(root_ / "case_00002_y.npy");
  write_case(root_, 4, {9, 8, 8});
  ASSERT_TRUE(write_file_atomically(root_ / "case_00004_y.npy",
                                    npy_header("|u1", {1, 8, 8, 8}) + std::string(512, 0)));
  write_case(root_, 7, {8, 8, 8});
  ASSERT_TRUE(write_file_atomically(root_ / "case_00007_x.npy",
                                    npy_header("<f8", {1, 8, 8, 8}) + std::string(4096, 0)));
  write_case(root_, 8, {8, 8, 8});
  fs::resize_file(root_ / "case_00008_x.npy", 2000);
  ASSERT_TRUE(write_file_atomically(root_ / "case_00009_x.npy", ""));
  ASSERT_TRUE(write_file_atomically(root_ / "case_00009_y.npy", "no array"));
  const std::string says = problem(8);
  for (const char* what :
       {"case_00001_x.npy: has 8 x 8 x 7 voxels, smaller than the crop of 8", "case_00002_y.npy: is missing",
        "case_00004_y.npy: has labels of 8 x 8 x 8 voxels, its values are 9 x 8 x 8",
        "case_00007_x.npy: is of type <f8", "case_00008_x.npy: has 2000 bytes, its header tells 2176",
        "case_00009_x.npy"})
    EXPECT_NE(says.find(what), std::string::npos) << what << "\n" << says;
  EXPECT_NE(problem(8, (root_ / "nowhere").string()).find("cannot be read"), std::string::npos);
  fs::remove_all(root_);
  write_case(root_, 0, {8, 8, 8});
  EXPECT_NE(problem(8).find("no case to train on"), std::string::npos) << problem(8);
}

TEST_F(Kits, OtherFilesAreCountedAndAGeneratedCaseIsTrainedOn) {
  write_case(root_, 0, {8, 8, 8});
  ASSERT_TRUE(write_file_atomically(root_ / "millrace-dataset.json", "{}"));
  ASSERT_TRUE(write_file_atomically(root_ / "case_00001_x.npy.part", ""));
  const auto set = open(8);
  ASSERT_TRUE(set) << to_string(set.problems());
  EXPECT_EQ((*set)->size(), 1);
  EXPECT_EQ((*set)->left_out(), 1);
  ASSERT_EQ((*set)->notes().size(), 2u);
  EXPECT_NE((*set)->notes()[0].find("case_00001_x.npy.part"), std::string::npos) << (*set)->notes()[0];
  EXPECT_NE((*set)->notes()[1].find("trains on the cases that it evaluates on"), std::string::npos);
}

TEST_F(Kits, ALabelWithoutAClassAndAFileThatGoesAreErrors) {
  write_case(root_, 1, {8, 8, 8}, std::vector<std::uint8_t>(512, 3));
  const auto set = open(8);
  ASSERT_TRUE(set);
  try {
    (*set)->get(0, 1, kAllFields);
    FAIL() << "label 3 of 3 classes";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("case_00001_y.npy has the label 3"), std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW((*open(8, DataSplit::Train, "", 4))->get(0, 1, kAllFields));
  fs::resize_file(root_ / "case_00001_x.npy", 1000);
  EXPECT_THROW((*set)->get(0, 1, kValuesAlone), DataError);
}

TEST(Kidneys, AreBrighterAndTumoursDarkerThanTheBody) {
  int tumours = 0;
  double share = 0;
  constexpr int kDrawn = 40;
  for (int number = 0; number < kDrawn; ++number) {
    const KidneyVolume volume = draw_kidney_volume(9, number, 48);
    EXPECT_GE(volume.side, 36);
    EXPECT_LE(volume.side, 60);
    EXPECT_GE(volume.depth, 24);
    EXPECT_LE(volume.depth, 72);
    tumours += volume.has_tumour;
    std::vector<float> values(static_cast<std::size_t>(volume.voxels()));
    std::vector<std::uint8_t> labels(values.size());
    fill_kidney_values(volume, 0, volume.voxels(), values.data());
    fill_kidney_labels(volume, 0, volume.voxels(), labels.data());
    double sums[3] = {}, counts[3] = {};
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == kOutsideBody) continue;
      sums[labels[i]] += values[i];
      ++counts[labels[i]];
    }
    share += (counts[1] + counts[2]) / double(values.size()) / kDrawn;
    EXPECT_NEAR(sums[1] / counts[1], 1.25, 0.15);
    EXPECT_EQ(counts[2] > 0, volume.has_tumour);
    // Any stretch by itself is the same.
    std::vector<float> part(1000);
    fill_kidney_values(volume, 777, 1000, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 777));
  }
  EXPECT_NEAR(double(tumours) / kDrawn, 0.5, 0.25);
  EXPECT_NEAR(share, 0.0115, 0.004);
}

TEST(SyntheticVolumes, AreAFunctionOfSeedSplitAndIndex) {
  const auto open = [](std::uint64_t seed, DataSplit split) {
    return *make_dataset({.path = "synthetic:16", .split = split, .fields = fields_of(24), .seed = seed});
  };
  const auto set = open(1, DataSplit::Train);
  EXPECT_EQ(set->size(), 16);
  const at::Tensor x = set->get(3, 0, kAllFields)[0].tensor;
  EXPECT_TRUE(at::equal(x, open(1, DataSplit::Train)->get(3, 7, kValuesAlone)[0].tensor));
  EXPECT_FALSE(at::equal(x, open(2, DataSplit::Train)->get(3, 0, kAllFields)[0].tensor));
  EXPECT_FALSE(at::equal(x, open(1, DataSplit::Test)->get(1, 0, kAllFields)[0].tensor));
  EXPECT_GT(set->get(3, 0, kAllFields)[1].tensor.max().item<std::int64_t>(), 0);
}

}  // namespace
}  // namespace millrace
