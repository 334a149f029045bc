// Step times of many runs: the kit's tables and fits, configurations, our own runs.
#include <gtest/gtest.h>

#include <cmath>

#include "experiments/io/instrument/scaling_fit.h"
#include "experiments/io/instrument/step_data.h"
#include "experiments/io/instrument/workload_file.h"
#include "runtime/base/random.h"
#include "tests/experiments/trace_run.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// Numbers within 1e-9, everything else alike. BERT's profiles come in no order: `sorted` compares arrays as
/// sets.
void expect_close(const Json& a, const Json& b, bool sorted, const std::string& where) {
  ASSERT_EQ(a.is_number(), b.is_number()) << where;
  if (a.is_number()) {
    EXPECT_NEAR(a.as_double(), b.as_double(), 1e-9 * std::max(1.0, std::abs(a.as_double()))) << where;
  } else if (a.is_array()) {
    ASSERT_EQ(a.size(), b.size()) << where;
    std::vector<double> x, y;
    for (const Json& value : a.items()) x.push_back(value.as_double());
    for (const Json& value : b.items()) y.push_back(value.as_double());
    if (sorted) std::sort(x.begin(), x.end()), std::sort(y.begin(), y.end());
    for (std::size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(x[i], y[i], 1e-9 * std::max(1.0, std::abs(x[i]))) << where;
  } else if (a.is_object()) {
    ASSERT_EQ(a.size(), b.size()) << where;
    for (std::size_t i = 0; i < a.members().size(); ++i) {
      ASSERT_EQ(a.members()[i].first, b.members()[i].first) << where;
      expect_close(a.members()[i].second, b.members()[i].second, sorted, where + "/" + a.members()[i].first);
    }
  }
}

/// The numbers in a text, for files with numbers between words.
std::vector<double> numbers_in(const std::string& text) {
  std::vector<double> numbers;
  const char* p = text.c_str();
  while (*p) {
    char* end = nullptr;
    const double value = std::strtod(p, &end);
    if (end == p) {
      ++p;
    } else {
      numbers.push_back(value);
      p = end;
    }
  }
  return numbers;
}

class KitInstrument : public testing::TestWithParam<const char*> {};

TEST_P(KitInstrument, TablesAndFitsAreTheKits) {
  const char* const data = std::getenv("MILLRACE_DATA");
  if (!data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  const bool bert = std::string(GetParam()) == "bert";
  const fs::path kit = fs::path(data) / "kit-traces",
                 expected = kit / "expected" / ("instru_" + std::string(GetParam()));
  const Result<StepData> steps =
      read_step_data({.source = bert ? StepSource::Bert : StepSource::Unet3d,
                      .folders = {(kit / ("instru_" + std::string(GetParam()))).string()}});
  ASSERT_TRUE(steps) << to_string(steps.problems());
  const auto golden = [&](const char* name) { return file_text(expected / name); };
  const auto golden_json = [&](const char* name) { return *parse_json(golden(name), name); };
  expect_close(golden_json("all_data.json"), all_data_json(*steps), bert, "all_data");
  EXPECT_EQ(golden(bert ? "bert_step_analysis.txt" : "UNET3D_step_analysis.log"),
            step_analysis(*steps, bert ? "BERT" : "UNET3D", bert));
  const Result<KitFits> fits = kit_fits(*steps);
  ASSERT_TRUE(fits);
  expect_close(golden_json("compute_time_fit.json"), compute_time_fit_json(*fits), false, "fit");
  const std::vector<double> ours = numbers_in(distribution_fits_text(*fits));
  const std::vector<double> theirs = numbers_in(golden("ditribution_fits.txt"));
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-9);
  if (!bert) return;
  EXPECT_EQ(golden("BERT_plotting_data.json"), python_json(plotting_data_json(*steps), -1));
  EXPECT_EQ(golden("dlio_sleep_times.json"), python_json(sleep_times_json(*steps), 4));
}

INSTANTIATE_TEST_SUITE_P(Sets, KitInstrument, testing::Values("unet3d", "bert"),
                         [](const auto& info) { return info.param; });

TEST(Configurations, AreReadWholeFromNames) {
  const auto of = [](const char* name) {
    const auto c = configuration_in_name(name);
    return c ? std::to_string(c->ranks) + "x" + std::to_string(c->batch) : "none";
  };
  EXPECT_EQ(of("UNET3D_16g_4b"), "16x4");
  EXPECT_EQ(of("UNET3D_8GPU_16batch"), "8x16");
  EXPECT_EQ(of("BERT_profiler_2g_4b"), "2x4");
  EXPECT_EQ(of("dlrm_4gpus_2048batch_r3"), "4x2048");
  EXPECT_EQ(of("DLRM_8g_32kb"), "8x32768");
  EXPECT_EQ(of("UNET3D_benchmark_2g_4b_2023-02-11"), "2x4");
  for (const char* wrong : {"UNET3D", "unet3d_4b", "x8g", "UNET3D_0g_4b", "a_2g_3g_4b", "99999999999g_1b"})
    EXPECT_EQ(of(wrong), "none") << wrong;
}

std::string mllog_set(int steps, int ranks = 1) {
  std::string text = "[\n";
  const auto event = [&](const std::string& key, const std::string& value, int rank = 0) {
    text += (text.size() > 2 ? ",\n" : "") +
            ("{\"time_ms\": \"2023-02-11T13:00:00.000\", \"key\": \"" + key + "\", \"value\": " + value +
             ", \"metadata\": {\"rank\": " + std::to_string(rank) + "}}");
  };
  event("world_size", "2");
  for (int epoch = 0; epoch < 2; ++epoch) {
    event("epoch_start", "null");
    for (int s = 0; s < steps; ++s) {
      for (int rank = 0; rank < ranks; ++rank)
        for (const char* key : {"sample_load", "sample_preproc", "load_batch_mem", "all_compute", "step_end"})
          event(key, "{\"duration\": " + std::to_string((s + 1) * 100'000'000) + "}", rank);
    }
  }
  return text + "\n]\n";
}

std::string dlio_log() {
  std::string text;
  for (int epoch = 1; epoch <= 2; ++epoch) {
    text +=
        "[INFO] 2023-02-11T13:00:00.000000 Starting epoch " + std::to_string(epoch) + ": 3 steps expected\n";
    for (int s = 1; s <= 3; ++s) {
      for (const char* name :
           {"sample_load", "load_batch_inner", "load_batch_mem", "all_compute", "step_end"})
        text += "[INFO] " + std::string(name) + " " + std::to_string(s * 10'000'000) + "\n";
    }
  }
  return text;
}

class StepSets : public testing::Test {
 protected:
  StepSets() { fs::create_directories(folder_.path("set/raw_data")); }
  Result<StepData> read(StepDataOptions options = {}) {
    if (options.folders.empty()) options.folders = {folder_.path("set")};
    return read_step_data(options);
  }
  std::string says(const Result<StepData>& result) { return result ? "" : to_string(result.problems()); }
  TemporaryFolder folder_;
};

TEST_F(StepSets, WarmUpIsTheFirstEpochAndTheFirstStepOfEach) {
  folder_.write("set/raw_data/UNET3D_2g_4b.json", mllog_set(5));
  const Result<StepData> data = read();
  ASSERT_TRUE(data) << says(data);
  EXPECT_EQ(*find_metric(data->by_configuration.at({2, 4}), "step_end"),
            (std::vector<double>{0.2, 0.3, 0.4, 0.5}));
  EXPECT_EQ(find_metric(data->by_configuration.at({2, 4}), "data_proc_throughput")->front(), 4 / 0.2);
  const Result<StepData> all = read({.keep_warm_up = true});
  EXPECT_EQ(find_metric(all->by_configuration.at({2, 4}), "step_end")->size(), 10u);
}

/// A log of all ranks: the first step of each warms up, not only that of the rank that is the first to end
/// it.
TEST_F(StepSets, EachRankWarmsUp) {
  folder_.write("set/raw_data/UNET3D_2g_4b.json", mllog_set(2, 2));
  const Result<StepData> data = read();
  ASSERT_TRUE(data) << says(data);
  EXPECT_EQ(*find_metric(data->by_configuration.at({2, 4}), "all_compute"), (std::vector<double>{0.2, 0.2}));
}

TEST_F(StepSets, RefusesWhatItCannotTrust) {
  EXPECT_NE(says(read()).find("has nothing to process"), std::string::npos);
  folder_.write("set/raw_data/some_run.json", mllog_set(5));
  EXPECT_NE(says(read()).find("does not tell ranks and batch"), std::string::npos);
  EXPECT_TRUE(read({.ranks = 2, .batch = 4}));
  EXPECT_NE(says(read({.ranks = 8, .batch = 4})).find("was run on 2 ranks"), std::string::npos);
  const std::string manifest = folder_.write(
      "manifest.json", R"({"runs": [{"path": "raw_data/some_run.json", "ranks": 2, "batch": 7}]})");
  const Result<StepData> by_manifest = read({.manifest = manifest});
  ASSERT_TRUE(by_manifest) << says(by_manifest);
  EXPECT_EQ(by_manifest->by_configuration.begin()->first.batch, 7);
  EXPECT_NE(says(read({.folders = {folder_.path("absent")}})).find("is not a folder"), std::string::npos);
  fs::remove(folder_.path("set/raw_data/some_run.json"));
  folder_.write("set/raw_data/UNET3D_2g_4b.json", mllog_set(1));
  EXPECT_NE(says(read()).find("has no step after the warm-up"), std::string::npos);
  folder_.write("set/raw_data/UNET3D_2g_4b.json", "[\n");
  EXPECT_NE(says(read()).find("holds no event"), std::string::npos);
}

TEST_F(StepSets, ALogOfAnotherWorkloadIsRefused) {
  folder_.write("set/raw_data/UNET3D_2g_4b.json", mllog_set(5));
  const std::string as_dlrm = says(read({.source = StepSource::Dlrm, .by_sample = false}));
  EXPECT_NE(as_dlrm.find("is a log of unet3d: it has epoch_start, sample_load, sample_preproc"),
            std::string::npos)
      << as_dlrm;
  EXPECT_NE(as_dlrm.find("--workload unet3d"), std::string::npos) << as_dlrm;
  fs::create_directories(folder_.path("dlio/UNET3D_2g_4b"));
  folder_.write("dlio/UNET3D_2g_4b/dlio.log", dlio_log());
  const auto dlio = [&](bool by_sample) {
    return read({.source = StepSource::Dlio, .folders = {folder_.path("dlio")}, .by_sample = by_sample});
  };
  EXPECT_TRUE(dlio(true)) << says(dlio(true));
  EXPECT_NE(says(dlio(false)).find("loads samples (sample_load), not batches"), std::string::npos)
      << says(dlio(false));
}

TEST_F(StepSets, TruncatedFilesAreCounted) {
  const std::string text = mllog_set(5);
  folder_.write("set/raw_data/UNET3D_2g_4b.json", text.substr(0, text.size() - 30));
  const Result<StepData> data = read();
  ASSERT_TRUE(data) << says(data);
  EXPECT_EQ(data->dropped.at("a last event that is cut off"), 1);
}

TEST_F(StepSets, OurOwnRunsAreReadOfEveryRank) {
  for (int rank : {0, 1, 3}) {
    std::string text = R"({"format":"millrace-steps-1","rank":)" + std::to_string(rank) +
                       R"(,"stage":0,"ranks":4})"
                       "\n";
    for (int step = 0; step < 5; ++step)
      text += R"({"step":)" + std::to_string(step) +
              R"(,"loss":1.5,"samples_per_s":80,"step_s":0.1,"forward_s":)" +
              std::to_string(0.01 * (rank + 1)) +
              R"(,"backward_s":0.02,"data_s":0.001})"
              "\n";
    folder_.write("set/steps.rank" + std::to_string(rank) + ".jsonl", text);
  }
  const Result<StepData> data = read({.source = StepSource::Own});
  ASSERT_TRUE(data) << says(data);
  EXPECT_EQ(data->by_configuration.begin()->first.batch, 8);
  EXPECT_EQ(data->by_configuration.begin()->first.ranks, 4);
  EXPECT_EQ(find_metric(data->by_configuration.begin()->second, "step_end")->size(), 3u * 4u);
  EXPECT_EQ(data->dropped.at("ranks without steps"), 1) << "rank 2's file is missing, and counted";
  const Json ranks = ranks_json(*data);
  EXPECT_EQ(ranks.find("set")->find("slowest_rank")->as_int(), 3);
}

TEST_F(StepSets, DliosLogsAreReadWithAWholeStepOfWarmUp) {
  fs::create_directories(folder_.path("set/UNET3D_2g_4b"));
  folder_.write("set/UNET3D_2g_4b/dlio.log", dlio_log());
  const Result<StepData> data = read({.source = StepSource::Dlio});
  ASSERT_TRUE(data) << says(data);
  const Metrics& metrics = data->by_configuration.at({2, 4});
  EXPECT_EQ(*find_metric(metrics, "step_end"), (std::vector<double>{0.02, 0.03}));
  EXPECT_EQ(*find_metric(metrics, "data_loading_throughput"), (std::vector<double>{4 / 0.02, 4 / 0.03}));
}

// ---- mean and spread by ranks and batch

TEST(ScalingFits, FindAPlaneAndAPowerLaw) {
  std::vector<ScalingPoint> plane, power;
  for (double ranks : {1, 2, 4, 8}) {
    for (double batch : {1, 2, 5}) {
      plane.push_back({ranks, batch, 0.002 * ranks + 0.27 * batch + 0.28});
      power.push_back({ranks, batch, 0.3 * std::pow(ranks, -0.2) * std::pow(batch, 0.7)});
    }
  }
  const Scaling a = *fit_scaling(plane), b = *fit_scaling(power);
  EXPECT_EQ(a.form, Scaling::Form::Plane);
  EXPECT_NEAR(a.a, 0.002, 1e-9);
  EXPECT_NEAR(a.b, 0.27, 1e-9);
  EXPECT_NEAR(a.c, 0.28, 1e-9);
  EXPECT_EQ(b.form, Scaling::Form::Power);
  EXPECT_NEAR(b.a, -0.2, 1e-9);
  EXPECT_NEAR(b.at(16, 9), 0.3 * std::pow(16, -0.2) * std::pow(9, 0.7), 1e-9);
}

TEST(ScalingFits, SayNothingOfWhatDidNotVary) {
  const Scaling one = *fit_scaling({{4, 2, 0.5}});
  EXPECT_EQ(one.a, 0);
  EXPECT_EQ(one.b, 0);
  EXPECT_EQ(one.at(100, 100), 0.5);
  EXPECT_TRUE(std::isnan(one.r2) && std::isnan(one.worst_error));
  EXPECT_FALSE(one.ranks_varied || one.batch_varied);
  EXPECT_TRUE(one.json()["r2"].is_null());
  const Scaling batches = *fit_scaling({{4, 1, 0.3}, {4, 2, 0.5}, {4, 4, 0.9}});
  EXPECT_EQ(batches.a, 0) << "ranks were the same";
  EXPECT_NEAR(batches.b, 0.2, 1e-9);
  EXPECT_NEAR(batches.c, 0.1, 1e-9);
  EXPECT_TRUE(batches.batch_varied && !batches.ranks_varied);
  // Two points cannot bear out a law of two coefficients.
  const Scaling two = *fit_scaling({{1, 2, 1.0}, {2, 2, 1.5}});
  EXPECT_EQ((two.a != 0) + (two.b != 0) + (two.c != 0), 1);
  EXPECT_LT(two.r2, 0.999);
}

TEST(ScalingFits, AreNeverNegative) {
  RandomStream random(9);
  for (int round = 0; round < 300; ++round) {
    std::vector<ScalingPoint> points(1 + random.below(9));
    for (ScalingPoint& point : points)
      point = {1.0 + static_cast<double>(random.below(16)), 1.0 + static_cast<double>(random.below(64)),
               random.below(5) == 0 ? 0 : random.uniform() * random.uniform()};
    const Result<Scaling> scaling = fit_scaling(points);
    ASSERT_TRUE(scaling);
    for (double ranks : {1, 3, 100}) {
      for (double batch : {1, 7, 10'000}) {
        ASSERT_GE(scaling->at(ranks, batch), 0);
        ASSERT_TRUE(std::isfinite(scaling->at(ranks, batch)));
      }
    }
  }
}

TEST(WorkloadFiles, AreYamlWithTheFittedTime) {
  const WorkloadFile file{.name = "unet3d",
                          .ranks = 8,
                          .batch = 4,
                          .computation = {Family::LogNormalMixture, {0.53, -4.9, 0.2, -1.3, 0.1}},
                          .comment = "c"};
  const Result<Json> yaml = parse_yaml(workload_yaml(file), "w.yaml");
  ASSERT_TRUE(yaml) << to_string(yaml.problems());
  EXPECT_EQ(yaml->find("reader")->find("batch_size")->as_int(), 4);
  const Json* time = yaml->find("train")->find("computation_time");
  EXPECT_EQ(time->find("type")->as_string(), "mixture");
  const Json& second = time->find("components")->items()[1];
  EXPECT_DOUBLE_EQ(second.find("weight")->as_double(), 0.47);
  EXPECT_DOUBLE_EQ(second.find("time")->find("mu")->as_double(), -1.3);
}

}  // namespace
}  // namespace millrace
