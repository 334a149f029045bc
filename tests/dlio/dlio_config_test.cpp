// DLIO's configuration: shipped workloads, overrides, refusals; durations; the rules of MLPerf Storage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "experiments/export/convert_command.h"
#include "experiments/io/data/data_command.h"
#include "experiments/io/dlio/checkpoint_writer.h"
#include "experiments/io/dlio/dlio_command.h"
#include "experiments/io/dlio/dlio_config.h"
#include "experiments/io/dlio/dlio_output.h"
#include "experiments/io/dlio/mlperf_storage.h"
#include "experiments/io/dlio/time_spec.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

DlioConfig config_of(const std::vector<std::string>& words) {
  Result<DlioConfig> config = load_dlio_config(words);
  EXPECT_TRUE(config) << to_string(config ? Problems{} : config.problems());
  return config ? *config : DlioConfig{};
}

std::string problems_of(const std::vector<std::string>& words) {
  const Result<DlioConfig> config = load_dlio_config(words);
  return config ? "" : to_string(config.problems());
}

TEST(DlioConfig, EveryShippedWorkloadIsReadAndS3IsRefusedByName) {
  EXPECT_EQ(shipped_workloads().size(), 24u);
  for (const std::string& name : shipped_workloads()) {
    const std::string problems = problems_of({"workload=" + name});
    if (name.ends_with("_s3")) {
      EXPECT_NE(problems.find("workload.storage.storage_type: is 's3', which is not supported"),
                std::string::npos)
          << problems;
    } else if (!problems.empty()) {
      ADD_FAILURE() << name << ": " << problems;
    }
  }
  const DlioConfig unet = config_of({"workload=unet3d_h100"});
  EXPECT_EQ(unet.reader.batch_size, 7);
  EXPECT_EQ(unet.train.computation_time.a, 0.323);
  EXPECT_EQ(unet.dataset.record_length, 146600628);
  EXPECT_EQ(unet.model.size_bytes, 499153191);
  EXPECT_EQ(config_of({"workload=resnet50_a100"}).reader.batch_size, 400);
  EXPECT_EQ(config_of({"workload=cosmoflow_a100"}).expected_au, 0.70);
  EXPECT_TRUE(config_of({"workload=llama_405b"}).only_checkpoints());
  // Workloads on object stores differ from the others in some settings.
  const auto on_disk = [](const std::string& name) {
    return config_of({"workload=" + name, "++workload.storage.storage_type=local_fs"});
  };
  EXPECT_EQ(on_disk("unet3d_h100_s3").train.epochs, 7);
  EXPECT_EQ(on_disk("unet3d_a100_s3").train.epochs, 5);
  EXPECT_EQ(on_disk("unet3d_v100_s3").dataset.format, SampleFormat::Npy);
  EXPECT_EQ(on_disk("unet3d_h100_s3").dataset.format, SampleFormat::Npz);
}

TEST(DlioConfig, OverridesAsHydraWritesThem) {
  const DlioConfig config =
      config_of({"workload=unet3d_v100", "++workload.reader.batch_size=3", "+workload.train.seed=9",
                 "workload.train.epochs=2", "~workload.dataset.record_length_bytes_stdev",
                 "++workload.workflow.checkpoint=False",
                 "++workload.train.computation_time={type: gamma, shape: 2, scale: 0.25}"});
  EXPECT_EQ(config.reader.batch_size, 3);
  EXPECT_EQ(config.train.seed, 9);
  EXPECT_EQ(config.train.epochs, 2);
  EXPECT_EQ(config.dataset.record_length_stdev, 0);
  EXPECT_FALSE(config.workflow.checkpoint);
  EXPECT_EQ(config.train.computation_time.mean(), 0.5);
}

TEST(DlioConfig, EverythingThatIsWrongIsSaidAtOnceAndByName) {
  const std::string problems =
      problems_of({"workload=default", "++workload.reader.batch_sise=3", "++workload.reader.read_threads=-1",
                   "++workload.dataset.format=parquet", "++workload.reader.data_loader=dali",
                   "++workload.reader.reader_classname=a.B", "++workload.train.epochs=1.5", "nonsense"});
  for (const char* part : {"reader.batch_sise is not a key of DLIO. Hint: did you mean reader.batch_size?",
                           "reader.read_threads", "'parquet'", "'dali', which is not supported",
                           "reader_classname", "expected a whole number", "nonsense: is no override"})
    EXPECT_NE(problems.find(part), std::string::npos) << part << " in\n" << problems;
  EXPECT_NE(problems_of({"workload=unet3d_h10"}).find("did you mean unet3d_h100?"), std::string::npos);
}

TEST(DlioConfig, WhatDoesNotGoTogetherIsRefused) {
  const std::map<std::string, std::vector<std::string>> cases{
      {"num_samples_per_file",
       {"++workload.dataset.format=jpeg", "++workload.dataset.num_samples_per_file=2"}},
      {"reader.odirect", {"++workload.dataset.format=hdf5", "++workload.reader.odirect=True"}},
      {"zip is not for hdf5", {"++workload.dataset.format=hdf5", "++workload.dataset.compression=zip"}},
      {"zero_stage",
       {"++workload.model.parallelism.zero_stage=3", "++workload.model.parallelism.pipeline=2"}},
      {"has nothing to do", {"++workload.workflow.train=False", "++workload.workflow.evaluation=False"}},
      {"num_files_train", {"++workload.dataset.num_files_train=0"}}};
  for (const auto& [expected, words] : cases) {
    std::vector<std::string> all{"workload=default"};
    all.insert(all.end(), words.begin(), words.end());
    EXPECT_NE(problems_of(all).find(expected), std::string::npos) << expected << ": " << problems_of(all);
  }
}

TEST(DlioConfig, OfAWorkloadWithCheckpointsTheDataAloneAreGenerated) {
  const std::string workload = "workload=unet3d_h100", idle = "++workload.workflow.train=False";
  const auto config = load_dlio_config({workload, idle, "++workload.workflow.generate_data=True"});
  ASSERT_TRUE(config) << to_string(config.problems());
  EXPECT_TRUE(config->only_generates());
  EXPECT_FALSE(load_dlio_config({workload, idle})) << "nothing to do";
}

TEST(DlioConfig, AFilesOwnDefectsAreReadAsMeant) {
  const Result<DlioConfig> config = parse_dlio_config(
      "model: {name: m, model_size: 499153191}\nworkflow:\n  train: True\n  debug: False\ndataset: "
      "{record_length_bytes: 114660.07, num_files_train: 4}\n"
      "reader: {sample_shuffle: off}\ntrain: {computation_time: 0.1, computation_time_stdev: "
      "0.01}\nevaluation:\n",
      "file.yaml", {});
  ASSERT_TRUE(config) << to_string(config.problems());
  EXPECT_EQ(config->model.size_bytes, 499153191);
  EXPECT_EQ(config->reader.sample_shuffle, Shuffle::Off);
  EXPECT_EQ(config->train.computation_time.b, 0.01);
  EXPECT_FALSE(config->notes.empty());
}

TEST(TimeSpec, DrawsHaveTheirMeanAndAreNeverNegative) {
  for (const char* text : {"0.25", "{mean: 0.5, stdev: 0.1}", "{type: normal, mean: 2, stdev: 0.5}",
                           "{type: uniform, min: 1, max: 3}", "{type: gamma, shape: 0.5, scale: 2}",
                           "{type: gamma, shape: 9, scale: 0.1}", "{type: exponential, scale: 0.7}",
                           "{type: poisson, lam: 3}", "{type: poisson, lam: 1234}",
                           "{type: lognormal, mu: -1, sigma: 0.4}", "{type: empirical, values: [1, 2, 6]}",
                           "{type: mixture, components: [{weight: 3, time: 1}, {weight: 1, time: {type: "
                           "exponential, scale: 5}}]}"}) {
    const Result<TimeSpec> spec = parse_time_spec(*parse_yaml(text, "t"), "t");
    ASSERT_TRUE(spec) << text << to_string(spec.problems());
    RandomStream random(3);
    double sum = 0, squares = 0;
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) {
      const double value = draw(*spec, random);
      ASSERT_GE(value, 0) << text;
      sum += value, squares += value * value;
    }
    const double mean = sum / kDraws, error = std::sqrt((squares / kDraws - mean * mean) / kDraws);
    EXPECT_NEAR(mean, spec->mean(), 5 * error + 1e-12) << text;
  }
  for (const char* text : {"-1", "{type: normal, mean: 1}", "{type: weird}", "{mean: 1, sd: 2}",
                           "{type: gamma, shape: 0, scale: 1}", "{type: uniform, min: 3, max: 1}", "[1]",
                           "soon", "{type: empirical, values: []}", "1e9"}) {
    const Result<Json> json = parse_yaml(text, "t");
    EXPECT_FALSE(parse_time_spec(*json, "t")) << text;
  }
}

/// GiB of all ranks.
double checkpoint_gib(const std::vector<std::string>& words, int ranks) {
  const DlioConfig config = config_of(words);
  EXPECT_TRUE(check_checkpoint_shape(config, ranks).empty());
  double bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const CheckpointFile& file : checkpoint_files(config, rank, ranks))
      bytes += static_cast<double>(file.bytes());
  }
  return bytes / static_cast<double>(kGiB);
}

TEST(Checkpoints, HaveThePublishedSizes) {
  EXPECT_NEAR(checkpoint_gib({"workload=llama_8b_zero3"}, 8), 105, 1);
  EXPECT_NEAR(checkpoint_gib({"workload=llama_70b_zero3"}, 64), 912, 9);
  EXPECT_NEAR(checkpoint_gib({"workload=llama_405b"}, 512), 5290, 53);
  EXPECT_NEAR(checkpoint_gib({"workload=unet3d_a100"}, 4) * static_cast<double>(kGiB), 499153191, 1);
}

TEST(Checkpoints, LayersArePartitionedOverStagesOnce) {
  for (const int pipeline : {1, 2, 3, 5}) {
    const DlioConfig config =
        config_of({"workload=llama_7b", "++workload.model.parallelism.pipeline=" + std::to_string(pipeline),
                   "++workload.model.parallelism.tensor=2"});
    std::map<std::string, int> seen;
    for (int rank = 0; rank < 2 * pipeline; ++rank) {
      for (const CheckpointFile& file : checkpoint_files(config, rank, 2 * pipeline)) {
        for (const CheckpointTensor& tensor : file.tensors) {
          if (tensor.name.starts_with("layer_")) ++seen[tensor.name];
        }
      }
    }
    EXPECT_EQ(seen.size(), 32u * 6 + 3) << pipeline;                     // layers, embedding, head, norm
    for (const auto& [name, count] : seen) EXPECT_EQ(count, 2) << name;  // both tensor-parallel halves
  }
}

TEST(Checkpoints, AJobsShapeIsChecked) {
  const DlioConfig config = config_of({"workload=llama_70b"});
  EXPECT_FALSE(check_checkpoint_shape(config, 7).empty());
  EXPECT_TRUE(check_checkpoint_shape(config, 32).empty());
  const DlioConfig subset = config_of(
      {"workload=llama_70b", "++workload.checkpoint.mode=subset", "++workload.model.parallelism.data=2"});
  EXPECT_TRUE(check_checkpoint_shape(subset, 7).empty());
  EXPECT_FALSE(check_checkpoint_shape(subset, 65).empty());
}

TEST(CommandDocs, EveryExampleParses) {
  for (const CommandSpec& spec : {data_generate_spec(), data_check_spec(), dlio_spec(), convert_spec()}) {
    for (const std::string& example : spec.examples) {
      std::vector<std::string> args;
      std::istringstream words(example.substr(("millrace " + spec.command).size()));
      for (std::string word; words >> word;) args.push_back(word);
      EXPECT_TRUE(parse_arguments(spec, args)) << example;
    }
  }
}

TEST(MlperfStorage, TheDatasSizeFollowsStepsOrMemory) {
  const DlioConfig config = config_of({"workload=unet3d_h100"});
  const MlperfSize small = mlperf_size(config, 8, 1, 1 * kGiB);
  EXPECT_EQ(small.samples, 500 * 7 * 8);
  const MlperfSize large = mlperf_size(config, 1, 4, 512 * kGiB);
  EXPECT_EQ(large.samples, static_cast<std::int64_t>(std::ceil(4.0 * 512 * 5 * 1073741824.0 / 146600628)));
  const MlperfSize resnet = mlperf_size(config_of({"workload=resnet50_h100"}), 2, 1, 0);
  EXPECT_EQ(resnet.files, (500 * 400 * 2 + 1250) / 1251);
}

TEST(MlperfStorage, AVerdictSaysWhyNot) {
  const DlioConfig closed = config_of({"workload=unet3d_h100", "++workload.dataset.num_files_train=3500",
                                       "++workload.reader.read_threads=8"});
  const MlperfSize size = mlperf_size(closed, 1, 1, kGiB);
  const std::vector<MlperfRun> good(5, {.au = 95, .throughput = 20});
  EXPECT_TRUE(mlperf_verdict(closed, size, good).passes)
      << mlperf_verdict(closed, size, good).reasons.front();
  std::vector<MlperfRun> low = good;
  low[2].au = 89.9;
  EXPECT_NE(mlperf_verdict(closed, size, low).reasons.at(0).find("run 3: utilisation 89.90"),
            std::string::npos);
  for (const double error : {1.5, -34.0}) {
    std::vector<MlperfRun> late = good;
    late[1].compute_error = error;
    const MlperfVerdict verdict = mlperf_verdict(closed, size, late);
    EXPECT_FALSE(verdict.passes);
    EXPECT_NE(verdict.reasons.at(0).find("run 2 is invalid: its computation took"), std::string::npos);
  }
  EXPECT_STREQ(au_verdict(99.9, 34, 0.9), "invalid");
  EXPECT_STREQ(au_verdict(95, 94.5, 0.9), "success");
  EXPECT_STREQ(au_verdict(85, 85, 0.9), "fail");
  EXPECT_STREQ(au_verdict(0, 0, 0.9), "fail");  // no computation was asked for
  std::vector<MlperfRun> uneven = good;
  uneven[4].throughput = 22;
  EXPECT_NE(mlperf_verdict(closed, size, uneven).reasons.at(0).find("5 %"), std::string::npos);
  EXPECT_FALSE(mlperf_verdict(closed, size, {good[0]}).passes);
  const DlioConfig open = config_of(
      {"workload=unet3d_h100", "++workload.dataset.num_files_train=3500", "++workload.reader.batch_size=8"});
  EXPECT_NE(mlperf_verdict(open, size, good).reasons.at(0).find("reader.batch_size may not be changed"),
            std::string::npos);
  EXPECT_FALSE(
      mlperf_verdict(config_of({"workload=unet3d_h100"}), size, good).passes);  // 168 files are too few
}

/// A clock whose sleeps end late. It moves by a tenth of a microsecond each time that it is read.
class LateClock final : public Clock {
 public:
  explicit LateClock(std::vector<std::chrono::nanoseconds> late) : late_(std::move(late)) {}
  TimePoint now() const override { return now_ += std::chrono::nanoseconds(100); }
  void sleep_until(TimePoint when) override {
    now_ = std::max(now_, when + late_[static_cast<std::size_t>(sleeps_++) % late_.size()]);
  }
  bool wait_until(std::unique_lock<std::mutex>&, std::condition_variable&, TimePoint,
                  const std::function<bool()>&) override {
    return false;
  }
  void notify_all(std::condition_variable&) override {}
  void work(std::chrono::nanoseconds length) { now_ += length; }

 private:
  std::vector<std::chrono::nanoseconds> late_;
  int sleeps_ = 0;
  mutable TimePoint now_{};
};

/// 60 waits of 8 ms with 3 ms of work between them: only the last wait's lateness is left at the end.
TEST(PreciseWait, TheSumOfWaitsDoesNotDrift) {
  using namespace std::chrono_literals;
  for (const std::vector<std::chrono::nanoseconds>& late :
       {std::vector<std::chrono::nanoseconds>{20us}, {56us}, {0us, 400us}, {0us, 0us, 0us, 0us, 30ms}}) {
    for (const std::chrono::nanoseconds spin : {0us, 50us}) {
      LateClock clock(late);
      PreciseWait wait(spin, clock);
      const TimePoint start = clock.now();
      std::chrono::nanoseconds least = 1s, most = -1s;
      for (int step = 1; step <= 60; ++step) {
        clock.work(3ms);
        wait.until(wait.begin() + 8ms);
        const std::chrono::nanoseconds drift = clock.now() - start - step * 11ms;
        least = std::min(least, drift);
        most = std::max(most, drift);
      }
      const std::chrono::nanoseconds latest = *std::ranges::max_element(late);
      EXPECT_GE(least.count(), 0) << "a wait is never too short in sum";
      EXPECT_LE(most, latest + 60 * 1us) << latest.count() << " ns late, spin " << spin.count() << " ns";
    }
  }
}

}  // namespace
}  // namespace millrace
