// Times of whole models on devices, in the layout of the GPU emulator's profiles.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/plan/device_table.h"
#include "runtime/plan/device_table_check.h"

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
  EXPECT_NEAR(table->copy_seconds("P100", "resnet50", 120), 0.0067 * 120 / 128, 1e-12);
  EXPECT_NEAR(*table->seconds("p100", "resnet50", 96), 0.44, 1e-12) << "half-way";
}

DeviceTable parsed(const std::string& text, const std::string& name) {
  Result<DeviceTable> table = DeviceTable::parse(text, name);
  EXPECT_TRUE(table) << to_string(table.problems());
  return *std::move(table);
}

std::string row(const std::string& device, const std::string& model, int batch, double seconds,
                const std::string& stack = "") {
  return device + "\t\t" + model + "\t" + std::to_string(batch) + "\t\t\t\t" + std::to_string(seconds) +
         "\t\t\t\t" + stack + "\n";
}

TEST(DeviceTable, TimesBetweenBatchesNeverFall) {
  // Powers of the batch: 0.01 (flat), 0.8 (filling), 1 (full).
  const std::vector<DeviceTime> times = {
      {1, 1, 0, 1, ""}, {2, 1.01, 0, 2, ""}, {4, 1.7585, 0, 3, ""}, {8, 3.517, 0, 4, ""}};
  double before = 0;
  for (int batch = 1; batch <= 8; ++batch) {
    EXPECT_GT(interpolated(times, batch), before) << batch;
    before = interpolated(times, batch);
  }
  EXPECT_NEAR(interpolated(times, 3), 3 / ((2 / 1.01 + 4 / 1.7585) / 2), 1e-12) << "throughput half-way";
  EXPECT_GT(interpolated(times, 3), (1.01 + 1.7585) / 2) << "above the line";
  EXPECT_NEAR(interpolated(times, 6), (1.7585 + 3.517) / 2, 1e-12) << "on the line";
}

TEST(DeviceTable, GoesBeyondItsTimesOnlyIfTold) {
  const DeviceTable table =
      parsed(row("a", "m", 8, 1, "cudnn") + row("a", "m", 16, 1.5) + row("a", "one", 8, 1), "t.tsv");
  EXPECT_FALSE(table.seconds("a", "m", 32));
  EXPECT_NEAR(*table.seconds("a", "m", 32, {.extrapolate = true}), 2.5, 1e-12);
  EXPECT_NEAR(*table.seconds("a", "m", 4, {.extrapolate = true}), 0.75, 1e-12);
  EXPECT_NEAR(*table.seconds("a", "one", 12, {.extrapolate = true}), 1.5, 1e-12);
  const std::string mixed = problems_of(table.seconds("a", "m", 12));
  EXPECT_NE(mixed.find("line 1 (cudnn) and line 2 (not told)"), std::string::npos) << mixed;
  EXPECT_NEAR(*table.seconds("a", "m", 12, {.mix_stacks = true}), 1.25, 1e-12);
}

TEST(DeviceTable, FindsLabelsThatCannotBeRight) {
  std::string fast, slow, wrong, invented;
  for (int i = 0; i < 6; ++i) {
    const std::string model = "m" + std::to_string(i);
    const double seconds = 0.1 * (i + 1);
    fast += row("v100", model, 64, seconds);
    slow += row("v100", model, 64, seconds * (i % 2 ? 2.5 : 3));
    wrong += row("k80", model, 64, seconds * (i % 2 ? 0.95 : 1.02));
  }
  invented = row("quick", "m0", 64, 1e-4);
  const DeviceReport good = check_devices({parsed(fast, "one.tsv")});
  EXPECT_TRUE(good.suspects.empty()) << to_string(good.suspects);
  const DeviceReport bad =
      check_devices({parsed(fast + invented, "one.tsv"), parsed(slow + wrong, "two.tsv")});
  const std::string text = to_string(bad.suspects);
  ASSERT_EQ(bad.suspects.size(), 3U) << text;
  EXPECT_NE(text.find("it has the times of k80 (two.tsv)"), std::string::npos) << text;
  EXPECT_NE(text.find("they are of other software"), std::string::npos) << text;
  EXPECT_NE(text.find("quick (one.tsv): it is at least 1000 times as fast"), std::string::npos) << text;
  const DeviceReport falls = check_devices({parsed(row("a", "m", 1, 2) + row("a", "m", 2, 1), "t.tsv")});
  EXPECT_NE(to_string(falls.suspects).find("falls by 50.0 %"), std::string::npos)
      << to_string(falls.suspects);
}

TEST(DeviceTable, ForetellsHeldOutBatches) {
  std::string text;
  for (int batch = 1; batch <= 8; ++batch) text += row("a", "line", batch, 1 + 0.1 * batch);
  text += row("a", "three", 64, 1) + row("a", "three", 96, 1.6) + row("a", "three", 100, 2);
  const std::vector<HeldOut> errors = held_out_errors(parsed(text, "t.tsv"));
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0].model, "line");
  EXPECT_EQ(errors[0].known, 4);
  EXPECT_EQ(errors[0].held_out, 4);
  EXPECT_NEAR(errors[0].mean, 0, 1e-6);
  EXPECT_GT(errors[0].proportional, 0.1);
  EXPECT_EQ(errors[1].held_out, 1);
  EXPECT_NEAR(errors[1].mean, errors[1].line, 1e-6);
  EXPECT_NEAR(errors[1].line, (1 + 32.0 / 36) / 1.6 - 1, 1e-6);
}

TEST(DeviceTable, ACellThatIsEmptyIsSeenInTheMessage) {
  const std::string text =
      to_string(DeviceTable::parse("v100\t\tresnet50\t\t\t\t0.1\t0.3", "t.tsv").problems());
  EXPECT_NE(text.find("the batch is ''"), std::string::npos) << text;
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
                                   {"v100\t\tresnet50\tmany\t\t\t\t1", "batch is 'many'"},
                                   {"v100\t\tresnet50\t64\t\t\t\tfast", "time is 'fast'"},
                                   {"v100\t\tresnet50\t64\t\t\t\t-1", "time is '-1'"},
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
  EXPECT_FALSE(slow->seconds("P100", "densenet161", 64)) << "its cells are N/A";
  const std::string suspects = to_string(check_devices({*fast, *slow}).suspects);
  EXPECT_NE(suspects.find("fast (gpufs_profile_cudnn.tsv): it is at least"), std::string::npos) << suspects;
  EXPECT_NE(suspects.find("it takes 0.35 times as long as p100 (osre_profile_nocudnn_b64.tsv)"),
            std::string::npos)
      << suspects;
  for (const HeldOut& one : held_out_errors(*fast)) {
    EXPECT_EQ(one.held_out, 1) << one.model << ": batch 128";
    EXPECT_LT(one.mean, 0.16) << one.model;
  }
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
