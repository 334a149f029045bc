// Times of whole models on devices, in the layout of the GPU emulator's profiles.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/plan/device_table.h"

namespace millrace {
namespace {

constexpr const char* kTable =
    "v100\t32510MiB\tresnet50\t64\t\t\t0.003\t0.184\t20018\t64.058\t3689.361\t\n"
    "P100\t16280MiB\tresnet50\t64\t\t\t0.0035\t0.3\t20018\t69\t6039\t\n"
    "p100\t\tResNet50\t128\t\t\t0.0067\t0.58\t10009\t66\t5758\t\n"
    "P100\t16280MiB\tdensenet161\t64\t\t\tN/A\tN/A\t20018\t#VALUE!\t#VALUE!\t\n"
    "p100\t\twide_resnet50_2\t64\t\t\t0.003\t0.55\t\t\t#DIV/0!";  // no line end

std::string problems_of(const Result<double>& result) {
  return result ? "" : to_string(result.problems());
}

TEST(DeviceTable, HasTimesByDeviceModelAndBatch) {
  const Result<DeviceTable> table = DeviceTable::parse(kTable, "t.tsv");
  ASSERT_TRUE(table) << to_string(table.problems());
  EXPECT_EQ(table->devices(), (std::vector<std::string>{"p100", "v100"}));
  EXPECT_EQ(*table->seconds("V100", "resnet50", 64), 0.184);
  EXPECT_EQ(*table->seconds("p100", "resnet50", 64), 0.3) << "not that of wide_resnet50_2";
  EXPECT_EQ(*table->seconds("P100", "wide_resnet50_2", 64), 0.55);
  EXPECT_NEAR(*table->seconds("p100", "resnet50", 96), 0.44, 1e-12) << "half-way";
}

TEST(DeviceTable, RefusesWhatItHasNotMeasured) {
  const Result<DeviceTable> table = DeviceTable::parse(kTable, "t.tsv");
  ASSERT_TRUE(table);
  for (const auto& [device, model, batch, part] :
       {std::tuple("k80", "resnet50", 64, "it has no device k80"),
        {"v10", "resnet50", 64, "did you mean v100"},
        {"p100", "densenet161", 64, "no figure of p100 for model densenet161"},
        {"p100", "resnet50", 32, "in batches of 64, 128, not of 32"},
        {"p100", "resnet50", 129, "not extended beyond"}}) {
    const std::string text = problems_of(table->seconds(device, model, batch));
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("t.tsv"), std::string::npos) << text;
  }
}

TEST(DeviceTable, SaysWhichLineIsWrong) {
  for (const auto& [line, part] : {std::pair("v100\tx\tresnet50\t64", "has 4 columns"),
                                   {"v100\t\tresnet50\tmany\t\t\t\t1", "batch is many"},
                                   {"v100\t\tresnet50\t64\t\t\t\tfast", "time is fast"},
                                   {"v100\t\tresnet50\t64\t\t\t\t-1", "time is -1"},
                                   {"V100\t\tresnet50\t64\t\t\t\t0.2", "line 1 has another time"}}) {
    const Result<DeviceTable> table =
        DeviceTable::parse("v100\t\tresnet50\t64\t\t\t\t0.1\n" + std::string(line) + "\n", "t.tsv");
    ASSERT_FALSE(table) << line;
    EXPECT_NE(to_string(table.problems()).find("t.tsv:2: "), std::string::npos)
        << to_string(table.problems());
    EXPECT_NE(to_string(table.problems()).find(part), std::string::npos) << to_string(table.problems());
  }
  EXPECT_FALSE(DeviceTable::parse("", "t.tsv"));
}

TEST(DeviceTable, APublishedTableIsRead) {
  const char* data = std::getenv("MILLRACE_DATA");
  const std::string folder = std::string(data ? data : "") + "/gpu-profiles/";
  if (!data || !std::filesystem::exists(folder)) GTEST_SKIP() << "MILLRACE_DATA has no gpu-profiles";
  const Result<DeviceTable> fast = DeviceTable::load(folder + "gpufs_profile_cudnn.tsv"),
                            slow = DeviceTable::load(folder + "osre_profile_nocudnn_b64.tsv");
  ASSERT_TRUE(fast) << to_string(fast.problems());
  ASSERT_TRUE(slow) << to_string(slow.problems());
  EXPECT_EQ(*fast->seconds("p100", "resnet50", 64), 0.3017);
  EXPECT_EQ(*slow->seconds("P100", "resnet50", 64), 0.8224);
  // Held out: of three batches the middle one lies near the line between the others.
  EXPECT_NEAR(*fast->seconds("p100", "resnet50", 128) / 0.5753, 1, 1e-9);
  EXPECT_FALSE(slow->seconds("P100", "densenet161", 64)) << "its cells are N/A";
}

TEST(DeviceTable, RescaledLayersKeepTheirShares) {
  LayerGraph graph{.model = "m", .microbatch = 8, .loss_s = 1, .update_s_per_byte = 0.01};
  graph.nodes = {{.name = "a",
                  .kind = "k",
                  .forward_s = 2,
                  .backward_input_s = 1,
                  .backward_weight_s = 3,
                  .parameter_bytes = 200},
                 {.name = "b", .kind = "k", .forward_s = 1}};
  EXPECT_DOUBLE_EQ(batch_seconds(graph), 10);
  const LayerGraph there = rescaled(graph, 0.5, "gpu");
  EXPECT_EQ(there.device, "gpu");
  EXPECT_DOUBLE_EQ(batch_seconds(there), 0.5);
  EXPECT_DOUBLE_EQ(there.nodes[0].forward_s, 0.1);
  EXPECT_DOUBLE_EQ(there.nodes[0].backward_weight_s, 0.15);
  EXPECT_DOUBLE_EQ(there.update_s_per_byte, 0.0005);
  EXPECT_EQ(there.nodes[0].parameter_bytes, 200);
}

}  // namespace
}  // namespace millrace
