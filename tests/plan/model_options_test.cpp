#include "runtime/plan/model_options.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

ModelDescription sample() {
  return {.name = "sample",
          .summary = "For this test.",
          .options = {integer_option("width", 256, {1, 1024}, "Width of the layers."),
                      recorded(number_option("dropout", -1, {-1, 0.999}, "Probability.", "P")),
                      choice_option("norm", "batch", {"batch", "layer"}, "Which."),
                      recorded(integers_option("cutoffs", {20, 100}, {1, 1000}, "Where.", "LIST"))}};
}

TEST(ModelOptions, WhatIsNotGivenHasItsDefault) {
  const auto none = options_for(sample(), {});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->integer("width"), 256);
  EXPECT_EQ(none->number("dropout"), -1);
  EXPECT_EQ(none->text("norm"), "batch");
  EXPECT_EQ(none->integers("cutoffs"), (std::vector<std::int64_t>{20, 100}));
  const auto some = options_for(sample(), {{"norm", "layer"}, {"width", "8"}, {"cutoffs", "7"}});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->integer("width"), 8);
  EXPECT_EQ(some->text("norm"), "layer");
  EXPECT_EQ(some->integers("cutoffs"), std::vector<std::int64_t>{7});
}

TEST(ModelOptions, SizesComeInAnyOrder) {
  const ModelDescription model{.name = "sizes",
                               .summary = "For this test.",
                               .options = {sizes_option("widths", {8}, {1, 99}, "Of layers.")}};
  const auto some = options_for(model, {{"widths", "9,2,9"}});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->integers("widths"), (std::vector<std::int64_t>{9, 2, 9}));
  for (const char* wrong : {"", "9,,2", "9,x", "9,100", "0"})
    EXPECT_FALSE(options_for(model, {{"widths", wrong}})) << wrong;
  EXPECT_EQ(to_string(options_for(model, {{"widths", "a"}}).problems()),
            "--widths: 'a' is no list of integers. Hint: for example 8");
}

TEST(ModelOptions, TextsAndPaths) {
  const std::vector<ModelDescription> models{
      {.name = "own",
       .summary = "For this test.",
       .options = {recorded(text_option("layout", "a b", "Of layers.")),
                   path_option("table", "", "A file.", "FILE")}}};
  EXPECT_TRUE(validate(models).empty());
  const auto none = options_for(models[0], {});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->text("layout"), "a b");
  EXPECT_EQ(none->text("table"), "");
  const auto some = options_for(models[0], {{"layout", "64,64-pool"}, {"table", "/"}});
  ASSERT_TRUE(some);
  EXPECT_EQ(some->text("layout"), "64,64-pool");
  EXPECT_EQ(recorded_values(models[0], *some).front().second, "64,64-pool");
  const auto wrong = options_for(models[0], {{"layout", "a\nb"}, {"table", "/nowhere/here"}});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(to_string(wrong.problems()),
            "--layout: 'a\\x0ab' has a line end. Hint: give one line\n"
            "--table: '/nowhere/here' is not there. Hint: give the path of a file or folder that exists");
  // The worker hands them on as JSON.
  const auto back = models_from(to_json(models));
  ASSERT_TRUE(back) << to_string(back.problems());
  EXPECT_EQ((*back)[0].options[0].kind, ModelOption::Kind::Text);
  EXPECT_EQ((*back)[0].options[1].kind, ModelOption::Kind::Path);
}

TEST(ModelOptions, EveryProblemAtOnce) {
  const auto wrong = options_for(sample(), {{"widht", "8"},
                                            {"width", "8x"},
                                            {"width", "0"},
                                            {"width", "9999999999999999999999"},
                                            {"dropout", "nan"},
                                            {"dropout", "1"},
                                            {"norm", "batch|layer"},
                                            {"norm", ""},
                                            {"cutoffs", ""},
                                            {"cutoffs", "20,20"},
                                            {"cutoffs", "20, 30"},
                                            {"cutoffs", "0,1001"},
                                            {"image-size", "3", "job.yaml:3:4"}});
  ASSERT_FALSE(wrong);
  const std::string all = to_string(wrong.problems());
  EXPECT_EQ(wrong.problems().size(), 13u) << all;
  for (const char* part :
       {"--widht: is not an option of sample. Hint: did you mean --width? sample takes --width, --dropout, "
        "--norm, --cutoffs",
        "--width: '8x' is not an integer. Hint: expected from 1 to 1024", "--width: 0 is out of range",
        "'9999999999999999999999' is not an integer", "--dropout: 'nan' is not a number",
        "--dropout: 1 is out of range. Hint: expected from -1 to 0.999",
        "--norm: 'batch|layer' is not one of batch|layer", "--norm: '' is not one of",
        "--cutoffs: '' is no list", "--cutoffs: '20,20' is no list of rising integers. Hint: for example",
        "--cutoffs: '20, 30' is no list", "--cutoffs: 0,1001 is out of range. Hint: expected from 1 to 1000",
        "job.yaml:3:4: is not an option of sample"})
    EXPECT_NE(all.find(part), std::string::npos) << part << "\n" << all;
}

TEST(ModelOptions, RecordedValuesHaveOneSpelling) {
  for (const char* spelling : {"0.5", "5e-1", "0.500"}) {
    const auto values = recorded_values(sample(), *options_for(sample(), {{"dropout", spelling}}));
    EXPECT_EQ(values,
              (std::vector<std::pair<std::string, std::string>>{{"dropout", "0.5"}, {"cutoffs", "20,100"}}));
  }
}

TEST(ModelOptions, DescriptionsGoThroughJson) {
  const std::vector<ModelDescription> models{sample(), {.name = "other", .summary = "Has none."}};
  const auto back = models_from(*parse_json(to_json(models).dump(1), "models"));
  ASSERT_TRUE(back) << to_string(back.problems());
  EXPECT_EQ(to_json(*back).dump(), to_json(models).dump());
  for (
      const char* damaged :
      {R"({"format": "x"})", R"({"format": "x", "models": [{"name": "a", "summary": "b"}]})",
       R"({"format": "x", "models": [{"name": "a", "summary": "b", "options": [{"name": "w", "kind": "int"}]}]})"})
    EXPECT_FALSE(models_from(*parse_json(damaged, "models"))) << damaged;
}

TEST(ModelOptions, WhatDoesNotGoTogetherIsFound) {
  EXPECT_TRUE(validate(std::vector{sample()}).empty());
  ModelDescription other = sample();
  other.options[0] = number_option("width", 5, {1, 2}, "Another kind, and a default out of range.");
  other.options.push_back(other.options[1]);
  EXPECT_EQ(validate({sample(), other}).size(), 4u) << to_string(validate({sample(), other}));
}

}  // namespace
}  // namespace millrace
