// Clicks: Criteo's files in their three forms, wrong ones, and generated ones with their ceiling of the AUC.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ops/equal.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "data/files/little_endian.h"
#include "data/loading/dataset.h"
#include "data/made_up/clicks.h"
#include "experiments/io/generate/workloads.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/metrics/roc_auc.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr auto kClicks = SampleForm::Clicks;

struct ClickTable {
  std::int64_t rows;
  bool wraps = false;
};

std::vector<FieldSpec> click_fields_of(std::int64_t dense, const std::vector<ClickTable>& tables) {
  std::vector<FieldSpec> fields{{.name = "dense", .shape = {dense}, .form = kClicks}};
  for (std::size_t k = 0; k < tables.size(); ++k)
    fields.push_back({.name = "category" + std::to_string(k),
                      .dtype = at::kLong,
                      .limit = tables[k].rows,
                      .form = kClicks,
                      .wraps = tables[k].wraps});
  fields.push_back({.name = "label", .dtype = at::kLong, .limit = 2, .form = kClicks});
  return fields;
}

class Clicks : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-clicks-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& name, const std::string& bytes) {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(root_ / name, bytes));
  }
  template <class Int>
  static std::string packed(const std::vector<std::int64_t>& values) {
    std::string bytes;
    for (const std::int64_t value : values) put_little<Int>(bytes, static_cast<Int>(value));
    return bytes;
  }
  Result<std::shared_ptr<const Dataset>> open(const std::string& what, DataSplit split = DataSplit::Train,
                                              const std::vector<ClickTable>& tables = {{4}, {300}}) {
    std::string path = "criteo:";
    for (const char c : what + ",") {
      if (c != ',') part_ += c;
      if (c == ',') path += (path.ends_with(':') ? "" : ",") + (root_ / std::exchange(part_, "")).string();
    }
    fields_ = click_fields_of(2, tables);
    return make_dataset({.path = path, .split = split, .fields = fields_});
  }
  std::string problem(const std::string& what, DataSplit split = DataSplit::Train) {
    const auto set = open(what, split);
    return set ? "" : to_string(set.problems());
  }
  /// The values of a sample: label, categories, then dense features.
  std::vector<double> values(const Dataset& set, std::int64_t index) {
    const std::vector<char> all(fields_.size(), 1);
    const Sample sample = set.get(index, 0, all);
    std::vector<double> found{double(sample.back().number)};
    for (std::size_t f = 1; f + 1 < sample.size(); ++f) found.push_back(double(sample[f].number));
    for (std::int64_t d = 0; d < sample[0].tensor.size(0); ++d)
      found.push_back(sample[0].tensor[d].item<double>());
    return found;
  }
  static double log_of(double count) { return double(static_cast<float>(std::log1p(count))); }

  fs::path root_;
  std::string part_;
  std::vector<FieldSpec> fields_;
};

TEST_F(Clicks, MetasRowsAreReadAsTheKitReadsThem) {
  write("kit/day_train.bin", packed<std::int32_t>({1, 0, 5, 3, 299, 0, -2, 7, 0, 4, 1, 1, 1, 1, 1}));
  write("kit/day_test.bin", packed<std::int32_t>({0, 9, 9, 2, 2}));
  const auto train = open("kit"), test = open("kit", DataSplit::Test);
  ASSERT_TRUE(train && test) << problem("kit");
  EXPECT_EQ((*train)->size(), 3);
  EXPECT_EQ((*test)->size(), 1);
  EXPECT_EQ(values(**train, 0), (std::vector<double>{1, 3, 299, 0, log_of(5)}));
  EXPECT_EQ(values(**train, 1), (std::vector<double>{0, 0, 4, 0, log_of(7)})) << "negative counts are 0";
  EXPECT_EQ(values(**test, 0), (std::vector<double>{0, 2, 2, log_of(9), log_of(9)}));
  const auto files = open("kit/day_test.bin,kit/day_train.bin", DataSplit::Test);
  ASSERT_TRUE(files);
  EXPECT_EQ((*files)->size(), 3) << "the second one is the test set";
}

TEST_F(Clicks, AnEpochPermutesStepsOfAFile) {
  std::vector<std::int64_t> numbers;
  for (int row = 0; row < 31; ++row) numbers.insert(numbers.end(), {0, 0, 0, 0, row});
  write("a_train.bin", packed<std::int32_t>(numbers));
  const auto set = open("a_train.bin");
  ASSERT_TRUE(set);
  const auto order = (*set)->order({.seed = 7, .epoch = 2, .per_step = 3});
  ASSERT_EQ(order.size(), 31u);
  EXPECT_EQ(std::set(order.begin(), order.end()).size(), 31u);
  for (std::size_t i = 0; i < 30; ++i)
    EXPECT_EQ(order[i], order[i - i % 3] + std::int64_t(i % 3)) << "steps stay whole";
  EXPECT_EQ(order[30], 30);
  EXPECT_NE(order, (*set)->order({.seed = 7, .epoch = 3, .per_step = 3}));
}

TEST_F(Clicks, NvidiasColumnsAreReadAsTheyAre) {
  write("n/train/label.bin", packed<std::int8_t>({1, 0, 1}));
  write("n/train/numerical.bin", packed<std::uint16_t>({0x3c00, 0x4000, 0, 0xc000, 0x3800, 0x3c00}));
  write("n/train/cat_0.bin", packed<std::int8_t>({3, 0, 1}));
  write("n/train/cat_1.bin", packed<std::int16_t>({299, 128, 2}));
  const auto set = open("n");
  ASSERT_TRUE(set) << problem("n");
  EXPECT_EQ((*set)->size(), 3);
  EXPECT_EQ((*set)->left_out(), 0);
  EXPECT_EQ(values(**set, 0), (std::vector<double>{1, 3, 299, 1, 2}));
  EXPECT_EQ(values(**set, 1), (std::vector<double>{0, 0, 128, 0, -2}));
  const auto part = open("n/train");
  ASSERT_TRUE(part);
  EXPECT_EQ(values(**part, 2), values(**set, 2));
  EXPECT_FALSE(*open("n/train", DataSplit::Test));
  write("n/train/cat_2.bin", packed<std::int8_t>({3, 0, 1}));
  EXPECT_EQ((*open("n"))->left_out(), 1) << "a column that the model has no table for";
}

TEST_F(Clicks, TextIsNumberedByOccurrence) {
  std::string text = "label,I1,I2,C1,C2\n";
  for (int row = 0; row < 20; ++row)
    text += std::to_string(row % 2) + ",," + std::to_string(row) + ".0," +
            (row % 3 == 0 ? "aa" : "05db9164") + "," + (row % 4 == 0 ? "" : "x" + std::to_string(row)) + "\n";
  write("rows.txt", text);
  const auto train = open("rows.txt"), test = open("rows.txt", DataSplit::Test);
  ASSERT_TRUE(train && test) << problem("rows.txt");
  EXPECT_EQ((*train)->size(), 18);
  EXPECT_EQ((*test)->size(), 2);
  EXPECT_EQ(values(**train, 0), (std::vector<double>{0, 1, 0, 0, log_of(0)}));
  EXPECT_EQ(values(**train, 2), (std::vector<double>{0, 2, 2, 0, log_of(2)}));
  EXPECT_EQ(values(**test, 1), (std::vector<double>{1, 2, 15, 0, log_of(19)})) << "both splits number alike";
  write("tabs.txt", "1\t3\t-1\tq\tr\n0\t\t\t\t\n");
  const auto tabs = open("tabs.txt");
  ASSERT_TRUE(tabs) << problem("tabs.txt");
  EXPECT_EQ(values(**tabs, 0), (std::vector<double>{1, 1, 1, log_of(3), 0}));
}

TEST_F(Clicks, WhatDoesNotFitIsSaid) {
  const auto says = [&](const std::string& path, const std::string& expected,
                        DataSplit split = DataSplit::Train) {
    const std::string found = problem(path, split);
    EXPECT_NE(found.find(expected), std::string::npos) << found;
  };
  says("nowhere", "does not exist");
  fs::create_directories(root_ / "empty");
  says("empty", "has neither a *_train.bin nor a folder train");
  write("short_train.bin", std::string(39, 'x'));
  says("short_train.bin", "has 39 bytes, no whole number of rows of 20");
  write("two/a_train.bin", packed<std::int32_t>({0, 0, 0, 0, 0}));
  write("two/b_train.bin", packed<std::int32_t>({0, 0, 0, 0, 0}));
  says("two", "has 2 files *_train.bin");
  write("n/train/numerical.bin", "xxxx");
  write("n/train/cat_0.bin", "x");
  says("n", "n/train/label.bin: is missing");
  says("n", "n/train/cat_1.bin: is missing");
  write("n/train/label.bin", std::string(2, '\0'));
  write("n/train/cat_1.bin", "xxx");
  says("n", "has 4 bytes; 2 labels need 8");
  says("n", "has 3 bytes, not 1, 2 or 4 for each of 2 labels");
  write("columns.txt", "1,2,3,a\n");
  says("columns.txt", "columns.txt:1: has 4 columns, the model reads 5");
  write("word.txt", "1,2,x,a,b\n");
  says("word.txt", "dense feature 2 'x' is no number");

  // Rows are only looked at when they are read.
  write("bad_train.bin", packed<std::int32_t>({0, 0, 0, 4, 1, 2, 0, 0, 1, 1, 0, 0, 0, -1, 0}));
  const auto set = open("bad_train.bin");
  ASSERT_TRUE(set);
  const auto error = [&](std::int64_t row) {
    try {
      values(**set, row);
    } catch (const DataError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_NE(error(0).find("bad_train.bin row 0: category0 is 4, its table has 4 rows"), std::string::npos)
      << error(0);
  EXPECT_NE(error(1).find("the label is 2, expected 0 or 1"), std::string::npos) << error(1);
  EXPECT_NE(error(2).find("category0 is -1"), std::string::npos) << error(2);
}

TEST_F(Clicks, ACappedTableTakesIndicesModuloTheCap) {
  write("c_train.bin", packed<std::int32_t>({0, 0, 0, 11, 7}));
  const auto set = open("c_train.bin", DataSplit::Train, {{4, true}, {8}});
  ASSERT_TRUE(set);
  EXPECT_EQ(values(**set, 0), (std::vector<double>{0, 3, 7, 0, 0}));
}

TEST_F(Clicks, GeneratedFilesAreReadAndTheirCountsAreCompared) {
  const GenerateOptions options{.workload = Workload::Clicks,
                                .out = root_ / "made",
                                .size = 160 * 3000,
                                .seed = 4,
                                .threads = 2,
                                .table_rows_cap = 50};
  const auto made = generate_workload(options, {});
  ASSERT_TRUE(made) << to_string(made.problems());
  EXPECT_GT(*made->auc_ceiling, 0.75);
  EXPECT_LT(*made->auc_ceiling, 0.95);
  fields_ = click_fields_of(13, std::vector<ClickTable>(26, ClickTable{50, true}));
  DatasetOptions reads{.path = "criteo:" + options.out.string(), .fields = fields_};
  const auto set = make_dataset(reads);
  ASSERT_TRUE(set) << to_string(set.problems());
  EXPECT_EQ((*set)->size(), 3000);
  int clicks = 0;
  for (std::int64_t row = 0; row < 3000; ++row) clicks += values(**set, row)[0] == 1;
  EXPECT_NEAR(clicks / 3000.0, kClickRate, 0.015);
  reads.fields = click_fields_of(13, std::vector<ClickTable>(26, ClickTable{49}));
  const auto small = make_dataset(reads);
  ASSERT_FALSE(small);
  EXPECT_NE(to_string(small.problems()).find("category0 has 50 values, its table has 49 rows"),
            std::string::npos);
}

/// The chances themselves, as scores of the labels that were drawn, come as close as their number allows.
TEST(ClickModel, TheCeilingIsTheAucOfItsOwnChances) {
  const ClickModel model(3, 13, std::vector<std::int64_t>(26, 100));
  constexpr std::int64_t kRows = 60'000;
  std::vector<double> negatives(kRocBins, 0.0), positives(kRocBins, 0.0);
  std::vector<std::int32_t> row(model.row_numbers());
  std::map<std::int32_t, int> seen;
  for (std::int64_t i = 0; i < kRows; ++i) {
    const double chance = model.draw(1, static_cast<std::uint64_t>(i), row);
    ++(row[0] == 1 ? positives : negatives)[roc_bin(std::log(chance / (1 - chance)))];
    ++seen[row[20]];
  }
  const double ceiling = model.auc_ceiling(1, kRows);
  EXPECT_NEAR(roc_auc(negatives, positives), ceiling, 0.02);
  EXPECT_EQ(seen.size(), 100u);
  int most = 0;
  for (const auto& [category, count] : seen) most = std::max(most, count);
  EXPECT_GT(most, kRows / 10) << "Zipf: few categories are frequent";
}

TEST(ClickModel, SyntheticSplitsShareTheHiddenModel) {
  const auto fields = click_fields_of(3, {{5}, {1}, {70}});
  const auto train = make_dataset({.path = "synthetic:64", .fields = fields, .seed = 9});
  const auto test =
      make_dataset({.path = "synthetic:64", .split = DataSplit::Test, .fields = fields, .seed = 9});
  ASSERT_TRUE(train && test);
  EXPECT_EQ((*test)->size(), 8);
  EXPECT_NE((*train)->describe().find("AUC at most 0."), std::string::npos) << (*train)->describe();
  const std::vector<char> all(fields.size(), 1);
  const Sample a = (*train)->get(5, 0, all), b = (*train)->get(5, 1, all), c = (*test)->get(5, 0, all);
  EXPECT_TRUE(at::equal(a[0].tensor, b[0].tensor));
  EXPECT_FALSE(at::equal(a[0].tensor, c[0].tensor) && a[3].number == c[3].number);
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_GE(a[1 + k].number, 0);
    EXPECT_LT(a[1 + k].number, fields[1 + k].limit);
  }
}

}  // namespace
}  // namespace millrace
