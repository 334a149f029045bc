// Clouds of points: ShapeNet-part's folder and made-up ones.
#include <unistd.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include "data/loading/dataset.h"
#include "runtime/base/error.h"
#include "tests/data/shape_net_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr char kPointsAndTargets[] = {1, 1}, kLabelsAlone[] = {0, 1}, kPointsAlone[] = {1, 0};

std::vector<FieldSpec> of_classes(std::int64_t points, std::int64_t classes) {
  return {{.name = "points", .shape = {points, 3}, .form = SampleForm::Points},
          {.name = "target", .shape = {}, .dtype = at::kLong, .limit = classes, .form = SampleForm::Points}};
}
std::vector<FieldSpec> of_parts(std::int64_t points, std::int64_t parts) {
  return {
      {.name = "points", .shape = {points, 3}, .form = SampleForm::Points},
      {.name = "labels", .shape = {points}, .dtype = at::kLong, .limit = parts, .form = SampleForm::Points}};
}

class PointClouds : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-points-XXXXXX";
    root_ = ::mkdtemp(name);
    write_shape_net(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  Result<std::shared_ptr<const Dataset>> open(std::vector<FieldSpec> fields, const std::string& more = "",
                                              DataSplit split = DataSplit::Train) {
    return make_dataset(
        {.path = "shapenet:" + root_.string() + more, .split = split, .fields = std::move(fields)});
  }
  fs::path root_;
};

/// Expects points in the unit ball around their mean, as in PointNet's data sets.
void expect_normalised(const at::Tensor& points) {
  EXPECT_LT(points.mean(0).abs().max().item<double>(), 1e-5);
  EXPECT_NEAR(points.square().sum(1).max().sqrt().item<double>(), 1, 1e-5);
}

TEST_F(PointClouds, AreOfTheFoldersClassesInTheOrderOfTheirNames) {
  const auto set = open(of_classes(50, 3));
  ASSERT_TRUE(set) << to_string(set.problems());
  EXPECT_EQ((*set)->size(), 6);
  EXPECT_EQ((*set)->num_classes(), 2);
  EXPECT_EQ((*set)->get(0, 1, kPointsAndTargets)[1].number, 1) << "Chair, after Bag";
  EXPECT_EQ((*set)->get(5, 1, kPointsAndTargets)[1].number, 0);
  EXPECT_NE((*set)->name_of(0).find("03001627/points/shape0.pts"), std::string::npos);
  const auto test = open(of_classes(50, 3), "", DataSplit::Test);
  EXPECT_EQ((*test)->size(), 2);
  const at::Tensor points = (*test)->get(0, 9, kPointsAndTargets)[0].tensor;
  EXPECT_EQ(points.sizes(), (std::vector<std::int64_t>{50, 3}));
  expect_normalised(points);
  EXPECT_TRUE(at::equal(points, (*test)->get(0, 9, kPointsAlone)[0].tensor));
  EXPECT_FALSE(at::equal(points, (*test)->get(0, 10, kPointsAndTargets)[0].tensor))
      << "other points are drawn";
  const auto one = open(of_classes(50, 3), ",Bag");
  EXPECT_EQ((*one)->size(), 3);
  EXPECT_TRUE((*one)->notes().empty());
  ASSERT_TRUE(write_file_atomically(root_ / "synsetoffset2category.txt", "Bag\t02773838\n"));
  EXPECT_EQ((*open(of_classes(50, 3)))->left_out(), 3) << "Chair has no name any more";
}

TEST_F(PointClouds, PartsBelongToTheirPoints) {
  const auto set = open(of_parts(64, 4), ",Chair", DataSplit::Test);
  ASSERT_TRUE(set) << to_string(set.problems());
  const Sample sample = (*set)->get(0, 3, kPointsAndTargets);
  EXPECT_TRUE(at::equal(sample[1].tensor, (*set)->get(0, 3, kLabelsAlone)[1].tensor))
      << "ranks that read one field agree";
  // The folder's parts lie one above the other, whatever the centre and the scale.
  for (int part = 1; part < 4; ++part) {
    const auto heights = [&](int p) { return sample[0].tensor.select(1, 1).index({sample[1].tensor.eq(p)}); };
    EXPECT_GT(heights(part).min().item<double>(), heights(part - 1).max().item<double>());
  }
}

TEST_F(PointClouds, AreTurnedAndShiftedInTraining) {
  const auto set = open(of_parts(200, 4), ",Chair");
  const at::Tensor points = (*set)->get(0, 3, kPointsAndTargets)[0].tensor,
                   other = (*set)->get(0, 4, kPointsAndTargets)[0].tensor;
  EXPECT_TRUE(at::equal(points, (*set)->get(0, 3, kPointsAndTargets)[0].tensor)) << "a function of the seed";
  EXPECT_FALSE(at::allclose(points, other, 0, 0.1));
  const double farthest = points.square().sum(1).max().sqrt().item<double>();
  EXPECT_GT(farthest, 0.9);
  EXPECT_LT(farthest, 1.2) << "turned, and shifted by some hundredths";
}

TEST_F(PointClouds, WhatIsWrongIsNamed) {
  const auto refused = [&](std::vector<FieldSpec> fields, const std::string& more, const std::string& says) {
    const auto set = open(std::move(fields), more);
    ASSERT_FALSE(set);
    EXPECT_NE(to_string(set.problems()).find(says), std::string::npos) << to_string(set.problems());
  };
  refused(of_classes(50, 1), "", "has 2 categories, the model 1 classes. Hint: give --classes 2");
  refused(of_parts(50, 4), "", "parts are those of one category");
  refused(of_parts(50, 4), ",Chiar", "has no category 'Chiar'. Hint: did you mean Chair?");
  refused(of_classes(50, 2), "/nowhere", "synsetoffset2category.txt");
  const auto fails = [&](const std::string& says, const std::vector<FieldSpec>& fields) {
    const auto set = open(fields, ",Chair");
    ASSERT_TRUE(set) << to_string(set.problems());
    try {
      (*set)->get(0, 1, kPointsAndTargets);
      FAIL() << says;
    } catch (const DataError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  fails("part 4, the model has 3 from 1 on", of_parts(400, 3));
  const fs::path points = root_ / "03001627/points/shape0.pts";
  ASSERT_TRUE(write_file_atomically(points, "0 0 1\n1 x 0\n"));
  fails("shape0.pts:2: 1 x 0", of_classes(50, 2));
  ASSERT_TRUE(write_file_atomically(points, "0 0 1\n1 nan 0\n"));
  fails("shape0.pts:2", of_classes(50, 2));
  ASSERT_TRUE(write_file_atomically(points, "0 0 1\n1 2 3\n"));
  fails("has 40 labels, its points are 2", of_parts(50, 4));
  fs::remove(points);
  fails("shape0.pts", of_classes(50, 2));
  ASSERT_TRUE(write_file_atomically(root_ / "train_test_split/shuffled_train_file_list.json", "[\"a/b\"]"));
  refused(of_classes(50, 2), "", "expected \"shape_data/ID/NAME\"");
  fs::remove(root_ / "train_test_split/shuffled_test_file_list.json");
  const auto none = open(of_classes(50, 2), "", DataSplit::Test);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
}

TEST_F(PointClouds, MadeUpOnesAreAFunctionOfSeedAndIndex) {
  const auto make = [](std::vector<FieldSpec> fields, std::uint64_t seed) {
    return *make_dataset({.path = "synthetic:32", .fields = std::move(fields), .seed = seed});
  };
  const auto classes = make(of_classes(100, 16), 1);
  EXPECT_EQ(classes->size(), 32);
  EXPECT_EQ(classes->num_classes(), 16);
  for (std::int64_t i = 0; i < 32; ++i) {
    const Sample sample = classes->get(i, 0, kPointsAndTargets);
    expect_normalised(sample[0].tensor);
    EXPECT_TRUE(
        at::equal(sample[0].tensor, make(of_classes(100, 16), 1)->get(i, 5, kPointsAndTargets)[0].tensor));
    EXPECT_EQ(sample[1].number, classes->get(i, 0, kLabelsAlone)[1].number);
  }
  EXPECT_FALSE(at::equal(classes->get(0, 0, kPointsAndTargets)[0].tensor,
                         make(of_classes(100, 16), 2)->get(0, 0, kPointsAndTargets)[0].tensor));
  const Sample parts = make(of_parts(100, 4), 1)->get(7, 0, kPointsAndTargets);
  for (int part = 1; part < 4; ++part) {
    const auto heights = [&](int p) { return parts[0].tensor.select(1, 1).index({parts[1].tensor.eq(p)}); };
    EXPECT_GE(heights(part).min().item<double>(), heights(part - 1).max().item<double>());
  }
}

/// A user's model may call its inputs so, with a target of any kind: what it says of its samples decides.
TEST_F(PointClouds, NamesAloneMakeNone) {
  const auto set =
      make_dataset({.path = "synthetic:8",
                    .fields = {{.name = "points", .shape = {10, 3}}, {.name = "target", .shape = {2}}}});
  ASSERT_TRUE(set) << to_string(set.problems());
  const Sample sample = (*set)->get(0, 0, kPointsAndTargets);
  EXPECT_EQ(sample[0].tensor.sizes().vec(), (std::vector<std::int64_t>{10, 3}));
  EXPECT_EQ(sample[1].tensor.sizes().vec(), (std::vector<std::int64_t>{2}));
}

}  // namespace
}  // namespace millrace
