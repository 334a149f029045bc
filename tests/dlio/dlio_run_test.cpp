// Emulated runs: order and coverage, the meeting of processes, metrics, and `millrace dlio` as a whole.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include "experiments/io/dlio/dlio_output.h"
#include "experiments/io/dlio/process_group.h"
#include "experiments/io/dlio/sample_order.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "tests/driver/temporary_folder.h"
#include "tests/harness/shell.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

TEST(SampleOrder, PermutationsAreOneToOne) {
  for (std::int64_t count = 1; count < 300; ++count) {
    const Permutation permutation(count, static_cast<std::uint64_t>(count) * 77);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t place = permutation(i);
      ASSERT_TRUE(place >= 0 && place < count);
      seen.insert(place);
    }
    ASSERT_EQ(static_cast<std::int64_t>(seen.size()), count);
  }
  // Another key, another order; the same key, the same.
  const Permutation a(100'000, 1), b(100'000, 2), c(100'000, 1);
  int equal = 0;
  for (std::int64_t i = 0; i < 1000; ++i) equal += a(i) == b(i);
  EXPECT_LT(equal, 10);
  EXPECT_EQ(a(77), c(77));
}

TEST(SampleOrder, RanksReadEachSampleOnceForAnyNumbers) {
  for (std::int64_t samples = 1; samples <= 40; ++samples) {
    for (std::int64_t ranks = 1; ranks <= 9; ++ranks) {
      for (std::int64_t batch = 1; batch <= 7; ++batch) {
        std::vector<int> taken(samples, 0);
        const std::int64_t steps = num_steps(samples, ranks, batch);
        for (std::int64_t step = 0; step < steps; ++step) {
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            const Share share = share_of(samples, ranks, batch, step, rank);
            ASSERT_LE(share.count, batch);
            for (std::int64_t i = 0; i < share.count; ++i) ++taken.at(share.begin + i);
          }
        }
        for (const int times : taken) ASSERT_EQ(times, 1) << samples << " " << ranks << " " << batch;
      }
    }
  }
}

TEST(SampleOrder, FilesAreShuffledWhole) {
  const SampleOrder order({.files = 10, .samples_per_file = 4, .shuffle_files = true, .key = 5});
  std::set<std::int64_t> files;
  for (std::int64_t i = 0; i < 40; i += 4) {
    const std::int64_t file = order.at(i).file;
    files.insert(file);
    for (std::int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(order.at(i + j).file, file);
      EXPECT_EQ(order.at(i + j).sample, j);
    }
  }
  EXPECT_EQ(files.size(), 10u);
}

TEST(ProcessGroup, MeetsExchangesAndNamesWhoIsMissing) {
  const TemporaryFolder folder;
  const std::string path = folder.path("segment");
  ProcessGroup::create(path, 3);
  std::vector<std::vector<double>> last(3);
  {
    std::vector<std::jthread> threads;
    for (int p = 0; p < 3; ++p) {
      threads.emplace_back([&, p] {
        ProcessGroup group(path, p, {.timeout = std::chrono::seconds(60)});
        for (int round = 0; round < 2000; ++round) {
          const double mine = p + 10.0 * round;
          double sum = 0;
          for (const auto& values : group.exchange({&mine, 1}, "test")) sum += values[0];
          if (sum != 3 + 30.0 * round) return;
        }
        last[p] = {group.maximum(p, "test")};
      });
    }
  }
  for (const auto& values : last) EXPECT_EQ(values, std::vector<double>{2});
  ProcessGroup::create(folder.path("lonely"), 2);
  ProcessGroup alone(folder.path("lonely"), 0, {.timeout = std::chrono::milliseconds(50)});
  try {
    alone.barrier("training step");
    FAIL();
  } catch (const PeerError& error) {
    EXPECT_NE(std::string(error.what()).find("for process 1"), std::string::npos) << error.what();
  }
}

TEST(Metrics, AreDliosRules) {
  DlioConfig config;
  // Four steps of 1 s computation and 0.25 s load; the first one is slow and does not count.
  RankBlock block{.load = {2, 0.25, 0.25, 0.25},
                  .compute = {1, 1, 1, 1},
                  .asked = {1, 0.9, 0.9, 0.9},
                  .proc = {3, 1.25, 1.25, 1.25},
                  .wall = 7};
  const BlockMetrics raw = block_metrics(config, block, 8, 0);
  EXPECT_DOUBLE_EQ(raw.au, 100 * 3.0 / 4.0);
  EXPECT_DOUBLE_EQ(raw.throughput, 3 * 8 / 4.0);
  EXPECT_DOUBLE_EQ(raw.au_asked, 100 * 2.7 / 4.0);
  EXPECT_DOUBLE_EQ(block_metrics(config, block, 8, 0.1).au, 100 * 3.0 / 3.7);
  EXPECT_DOUBLE_EQ(block_metrics(config, block, 8, 99).au, 100);  // never above
  config.output.exclude_end = 1;
  EXPECT_DOUBLE_EQ(block_metrics(config, block, 8, 0).au, 100 * 2.0 / 2.75);
  config.output.exclude_start = 4;
  EXPECT_EQ(block_metrics(config, block, 8, 0).au, 0);
}

class DlioProgram : public testing::Test {
 protected:
  Answer run(const std::string& words) {
    return shell("cd " + folder_.path() + " && " + MILLRACE_BIN_DIR + "/millrace dlio " + words);
  }
  Json summary() { return *read_json(folder_.path("out/summary.json")); }
  static double number(const Json& json, std::initializer_list<const char*> path) {
    const Json* at = &json;
    for (const char* key : path) {
      at = at->find(key);
      if (!at) return -1;
    }
    return at->as_double();
  }
  const std::string base_ =
      "workload=default ++workload.dataset.num_subfolders_train=0 ++workload.workflow.evaluation=False "
      "++workload.train.epochs=2 "
      "++workload.train.computation_time=0.0005 --output-dir out --calibration-steps 5 --timeout 60 ";
  TemporaryFolder folder_;
};

TEST_F(DlioProgram, EveryFormatIsGeneratedReadAndChecked) {
  for (const char* format :
       {"npz", "npy", "tfrecord", "csv", "jpeg", "png", "hdf5", "indexed_binary", "mmap_indexed_binary"}) {
    const bool image = std::string(format) == "jpeg" || std::string(format) == "png";
    const std::string samples = image ? "1" : "3";
    const Answer answer = run(base_ +
                              "++workload.workflow.generate_data=True ++workload.dataset.num_files_train=5 "
                              "++workload.dataset.num_samples_per_file=" +
                              samples + " ++workload.dataset.format=" + format +
                              " ++workload.dataset.data_folder=data_" + format +
                              " ++workload.reader.sample_shuffle=seed ++workload.reader.batch_size=2 --ranks "
                              "3 --processes 2 --check contents");
    ASSERT_EQ(answer.code, 0) << format << "\n" << answer.text;
    EXPECT_EQ(number(summary(), {"millrace", "epochs_with_each_sample_once"}), 2) << format;
    EXPECT_EQ(number(summary(), {"millrace", "samples_read"}), image ? 10 : 30) << format;
    EXPECT_TRUE(fs::is_directory(folder_.path(std::string("data_") + format + "/valid")))
        << "DLIO lists it, with and without files";
    EXPECT_GT(number(summary(), {"millrace", "bytes_read"}), 0) << format;
  }
}

TEST_F(DlioProgram, OddNumbersNeitherHangNorLoseASample) {
  for (const char* numbers :
       {"++workload.dataset.num_files_train=1 --ranks 5",
        "++workload.dataset.num_files_train=7 ++workload.reader.batch_size=3 --ranks 4 --processes 3",
        "++workload.dataset.num_files_train=13 ++workload.reader.batch_size=100 --ranks 2 "
        "++workload.reader.read_threads=0",
        "++workload.dataset.num_files_train=11 ++workload.reader.batch_size=1 --ranks 3 "
        "++workload.reader.read_threads=7 ++workload.reader.prefetch_size=0"}) {
    const Answer answer =
        run(base_ + "++workload.workflow.generate_data=True ++workload.dataset.data_folder=\"d$(echo '" +
            std::string(numbers) + "' | md5sum | cut -c1-8)\" " + numbers);
    ASSERT_EQ(answer.code, 0) << numbers << "\n" << answer.text;
    EXPECT_EQ(number(summary(), {"millrace", "epochs_with_each_sample_once"}), 2) << numbers;
  }
}

TEST_F(DlioProgram, VirtualTimeIsExact) {
  const Answer answer = run(base_ +
                            "++workload.reader.data_loader=synthetic ++workload.dataset.num_files_train=1000 "
                            "++workload.train.computation_time=10 --clock virtual --ranks 4");
  ASSERT_EQ(answer.code, 0) << answer.text;  // 1,240 s of steps
  EXPECT_DOUBLE_EQ(number(summary(), {"metric", "train_au_mean_percentage"}), 100);
  // 62 of the 63 steps of 16 samples count, 10 s each.
  EXPECT_NEAR(number(summary(), {"metric", "train_throughput_mean_samples_per_second"}), 1.6, 0.03);
}

TEST_F(DlioProgram, VirtualReadersOverlapAsThreadsDo) {
  // Four samples of 1 s preprocessing for 2 s of computation: one thread needs 4 s a step, four need 1 s.
  const std::string words =
      base_ +
      "++workload.reader.data_loader=synthetic ++workload.dataset.num_files_train=400 "
      "++workload.train.computation_time=2 ++workload.reader.preprocess_time=1 --clock virtual ";
  ASSERT_EQ(run(words + "++workload.reader.read_threads=1").code, 0);
  EXPECT_NEAR(number(summary(), {"metric", "train_au_mean_percentage"}), 50, 2);
  ASSERT_EQ(run(words + "++workload.reader.read_threads=4").code, 0);
  EXPECT_GT(number(summary(), {"metric", "train_au_mean_percentage"}), 98);
}

TEST_F(DlioProgram, CheckpointsAreWrittenAndReadBack) {
  const std::string words =
      "workload=llama_7b --ranks 2 --output-dir out ++workload.model.num_layers=2 "
      "++workload.model.transformer.hidden_size=64 ++workload.model.transformer.vocab_size=128 "
      "++workload.model.transformer.ffn_hidden_size=128 ++workload.model.transformer.num_attention_heads=4 "
      "++workload.model.transformer.num_kv_heads=4 ++workload.model.type=transformer "
      "++workload.checkpoint.time_between_checkpoints=0 ++workload.checkpoint.num_checkpoints_write=2 "
      "++workload.checkpoint.num_checkpoints_read=2 ++workload.checkpoint.recovery_rank_shift=True ";
  const Answer answer = run(words);
  ASSERT_EQ(answer.code, 0) << answer.text;
  EXPECT_GT(number(summary(), {"metric", "save_checkpoint_io_mean_GB_per_second"}), 0);
  EXPECT_GT(number(summary(), {"metric", "load_checkpoint_duration_mean_seconds"}), 0);
  EXPECT_TRUE(fs::exists(folder_.path(
      "checkpoints/llama_7b/global_epoch1_step2/zero_pp_rank_1_mp_rank_0_optim_states.safetensors")));
  // A damaged one is not read as whole.
  fs::resize_file(
      folder_.path(
          "checkpoints/llama_7b/global_epoch1_step1/zero_pp_rank_1_mp_rank_0_optim_states.safetensors"),
      100);
  EXPECT_EQ(run(words + "++workload.checkpoint.num_checkpoints_write=0").code, 4);
}

TEST_F(DlioProgram, LeavesDliosFiles) {
  ASSERT_EQ(
      run(base_ + "++workload.workflow.generate_data=True ++workload.dataset.num_files_train=8 "
                  "++workload.reader.batch_size=1 --ranks 2 ++workload.workflow.evaluation=True "
                  "++workload.dataset.num_subfolders_eval=3 ++workload.evaluation.eval_time=0.001 "
                  "++workload.workflow.checkpoint=True ++workload.checkpoint.steps_between_checkpoints=2")
          .code,
      0)
      << folder_.read("answer");
  for (const char* file :
       {"summary.json", "0_output.json", "1_output.json", "0_per_epoch_stats.json", "1_per_epoch_stats.json",
        "per_epoch_stats.json", "dlio.log", ".hydra/config.yaml", ".hydra/overrides.yaml"})
    EXPECT_TRUE(fs::exists(folder_.path(std::string("out/") + file))) << file;
  for (const char* made : {"0", "1", "2"})
    EXPECT_TRUE(fs::is_directory(folder_.path(std::string("data/default/valid/") + made))) << made;
  const Json output = *read_json(folder_.path("out/1_output.json"));
  for (const char* key : {"host_memory_GB", "host_cpu_count", "host_processor_name", "potential_caching",
                          "host_cpuinfo", "host_meminfo", "hostname"})
    EXPECT_NE(output.find(key), nullptr) << key;
  EXPECT_NE(output.find("host_meminfo")->find("MemTotal"), nullptr);
  const Json* epoch = output.find("2");
  ASSERT_NE(epoch, nullptr);
  for (const char* key : {"throughput", "au", "host_meminfo", "end"})
    EXPECT_NE(epoch->find(key), nullptr) << key;
  for (const char* part : {"load", "proc", "compute"}) {
    EXPECT_EQ(epoch->find(part)->find("block1")->size(), 2u) << part;
    EXPECT_EQ(epoch->find(part)->find("eval")->size(), 4u) << part;
  }
  const Json stats = *read_json(folder_.path("out/per_epoch_stats.json"));
  for (const char* phase : {"block1", "block2", "eval", "save_ckpt1", "save_ckpt2"}) {
    ASSERT_NE(stats.find("1")->find(phase), nullptr) << phase;
    for (const char* key : {"start", "end", "duration"})
      EXPECT_NE(stats.find("1")->find(phase)->find(key), nullptr) << phase << key;
  }
  const Json metric = *summary().find("metric");
  for (const char* key : {"train_au_percentage", "train_au_mean_percentage", "train_au_stdev_percentage",
                          "train_au_meet_expectation", "train_throughput_samples_per_second",
                          "train_throughput_mean_samples_per_second", "train_io_mean_MB_per_second",
                          "eval_au_percentage", "eval_throughput_mean_samples_per_second",
                          "save_checkpoint_io_mean_GB_per_second", "checkpoint_size_GB"})
    EXPECT_NE(metric.find(key), nullptr) << key;
}

TEST_F(DlioProgram, BadInputIsSaidWithItsCode) {
  EXPECT_EQ(run("workload=nothing").code, 2);
  EXPECT_EQ(run("workload=unet3d_a100_s3").code, 2);
  EXPECT_EQ(run("workload=llama_70b --ranks 3").code, 2);
  const Answer missing = run(base_ + "++workload.dataset.data_folder=absent");
  EXPECT_EQ(missing.code, 3) << missing.text;
  EXPECT_NE(missing.text.find("generate_data=True"), std::string::npos) << missing.text;
  ASSERT_EQ(run(base_ + "++workload.workflow.generate_data=True ++workload.dataset.num_files_train=4 "
                        "++workload.workflow.train=False")
                .code,
            0);
  const std::string read =
      base_ + "++workload.dataset.num_files_train=4 ++workload.dataset.num_files_eval=8 --ranks 2 ";
  ASSERT_EQ(run(read + "--check contents").code, 0) << folder_.read("answer");
  // Other options than the data's are refused, not regenerated over them.
  EXPECT_EQ(
      run(read + "++workload.workflow.generate_data=True ++workload.dataset.record_length_bytes=9000").code,
      2);
  // One changed byte: the archive's checksum finds it.
  const std::string file = folder_.path("data/default/train/img_2_of_4.npz");
  std::string bytes = *read_file(file);
  bytes[2000] ^= 1;
  folder_.write("data/default/train/img_2_of_4.npz", bytes);
  const Answer damaged = run(read);
  EXPECT_EQ(damaged.code, 3) << damaged.text;
  EXPECT_NE(damaged.text.find("img_2_of_4.npz"), std::string::npos) << damaged.text;
  // A format without one: compared with what was generated, byte by byte.
  const std::string plain = read + "++workload.dataset.format=npy ++workload.dataset.data_folder=plain ";
  ASSERT_EQ(run(plain + "++workload.workflow.generate_data=True ++workload.workflow.train=False").code, 0);
  bytes = *read_file(folder_.path("plain/train/img_2_of_4.npy"));
  const std::size_t header = bytes.size() - 4096;
  bytes[header + 1000] ^= 1;
  folder_.write("plain/train/img_2_of_4.npy", bytes);
  EXPECT_EQ(run(plain).code, 0) << "contents are not read unless they are asked for";
  const Answer differs = run(plain + "--check contents");
  EXPECT_EQ(differs.code, 3) << differs.text;
  EXPECT_NE(differs.text.find("img_2_of_4.npy: sample 0: byte 1000 is 0x"), std::string::npos)
      << differs.text;
}

TEST_F(DlioProgram, MlperfDoesSixRunsAndSaysWhyItFails) {
  const Answer answer =
      run("workload=cosmoflow_h100 --mlperf run --ranks 2 --output-dir out --host-memory 1MB "
          "--calibration-steps 0 "
          "++workload.workflow.generate_data=True ++workload.dataset.num_files_train=8 "
          "++workload.reader.data_loader=synthetic");
  EXPECT_EQ(answer.code, 1) << answer.text;
  EXPECT_NE(answer.text.find("FAIL"), std::string::npos);
  const Json report = *read_json(folder_.path("out/mlperf_report.json"));
  EXPECT_EQ(report.find("verdict")->as_string(), "fail");
  EXPECT_EQ(report.find("runs")->size(), 5u);
  const std::string reasons = report.find("reasons")->dump();
  EXPECT_NE(reasons.find("reader.data_loader may not be changed"), std::string::npos) << reasons;
  EXPECT_NE(reasons.find("the data have 8 samples, at least 1000 are needed"), std::string::npos) << reasons;
  for (const char* run : {"warm-up", "run_1", "run_5"})
    EXPECT_TRUE(fs::exists(folder_.path(std::string("out/") + run + "/summary.json"))) << run;
}

/// A number that was meant as GiB would make the rule of five times the memory void.
TEST_F(DlioProgram, MlperfTakesNoHostMemoryWithoutAUnit) {
  const std::string ask = "workload=resnet50_h100 --mlperf datasize --ranks 8 --hosts 1 --host-memory ";
  const Answer bare = run(ask + "128");
  EXPECT_EQ(bare.code, 2) << bare.text;
  EXPECT_NE(bare.text.find("--host-memory: '128' has no unit. Hint: 128GiB"), std::string::npos) << bare.text;
  const Answer gib = run(ask + "128GiB");  // 5 * 128 * 2^30 bytes of 114,660 each
  EXPECT_EQ(gib.code, 0) << gib.text;
  EXPECT_NE(gib.text.find("at least 5993323 samples"), std::string::npos) << gib.text;
}

TEST_F(DlioProgram, InMemoryStepsLoseLessThanOnePercent) {
  // One rank alone, since other work on the machine's cores is a wait for a peer. The computation is what it
  // was.
  const Answer answer = run(base_ +
                            "++workload.workflow.generate_data=True ++workload.dataset.num_files_train=512 "
                            "++workload.dataset.format=npy ++workload.reader.batch_size=1 "
                            "++workload.reader.read_type=memory ++workload.train.computation_time=0.00038 "
                            "++workload.train.epochs=4");
  ASSERT_EQ(answer.code, 0) << answer.text;
  EXPECT_GT(number(summary(), {"millrace", "train_au_calibrated_mean_percentage"}), 99);
}

}  // namespace
}  // namespace millrace
