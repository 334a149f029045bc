// Data stalls: caches against closed forms, storage models, the split of an epoch, and `millrace stalls` as a
// whole.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "data/files/images.h"
#include "data/files/storage_names.h"
#include "experiments/io/stalls/data_state.h"
#include "experiments/io/stalls/fetch_stage.h"
#include "experiments/io/stalls/stall_analysis.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"
#include "tests/driver/temporary_folder.h"
#include "tests/harness/shell.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double mean_hits(CachePolicy policy, double fraction) {
  const std::int64_t files = 4000;
  const std::vector<EpochReads> epochs =
      simulate_cache({.sizes = std::vector<Bytes>(files, 100),
                      .policy = policy,
                      .capacity = static_cast<Bytes>(fraction * files * 100),
                      .epochs = 16});
  double hits = 0;
  for (std::size_t i = 6; i < epochs.size(); ++i) hits += epochs[i].hit_ratio() / 10;
  return hits;
}

TEST(Caches, ComeToTheirClosedForms) {
  for (const CachePolicy policy :
       {CachePolicy::None, CachePolicy::Lru, CachePolicy::Random, CachePolicy::MinIo})
    for (const double fraction : {0.35, 0.65}) {
      const std::optional<double> expected = expected_hit_ratio(policy, fraction);
      ASSERT_TRUE(expected);
      EXPECT_NEAR(mean_hits(policy, fraction), *expected, 0.005) << to_string(policy) << " " << fraction;
    }
  // Measured of the kernel's page cache (PVLDB 14(5), 4.3.2): 15 % and 47 %.
  EXPECT_NEAR(*expected_hit_ratio(CachePolicy::Random, 0.35), 0.141, 0.004);
  EXPECT_NEAR(*expected_hit_ratio(CachePolicy::Random, 0.65), 0.466, 0.004);
  EXPECT_GT(mean_hits(CachePolicy::Fifo, 0.5), mean_hits(CachePolicy::Lru, 0.5));
  for (const CachePolicy policy : {CachePolicy::Lru, CachePolicy::Random, CachePolicy::MinIo}) {
    EXPECT_EQ(*expected_hit_ratio(policy, 0), 0);
    EXPECT_EQ(*expected_hit_ratio(policy, 1), 1);
  }
}

TEST(Caches, MinIoIsExactFromTheSecondEpochAndPartsOfItMakeAWhole) {
  CacheStudy study{.sizes = std::vector<Bytes>(1000, 10), .capacity = 3500, .epochs = 4};
  std::vector<EpochReads> epochs = simulate_cache(study);
  EXPECT_EQ(epochs[0].hits, 0);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(epochs[i].hits, 350) << i;
  study.capacity = 5000, study.nodes = 2;
  EXPECT_GT(simulate_cache(study)[1].misses, 0);
  study.partitioned = true;
  epochs = simulate_cache(study);
  EXPECT_EQ(epochs[0].misses, 1000);
  for (int i = 1; i < 4; ++i) EXPECT_EQ(epochs[i].misses, 0) << i;
  EXPECT_GT(epochs[1].peer_hits, 0);
}

TEST(Caches, NeverHoldMoreThanTheirBytes) {
  for (const CachePolicy policy :
       {CachePolicy::None, CachePolicy::Random, CachePolicy::Lru, CachePolicy::Fifo, CachePolicy::MinIo}) {
    const std::unique_ptr<Cache> cache = make_cache(policy, 1000, 3);
    RandomStream random(5);
    for (int i = 0; i < 3000; ++i) {
      const auto item = static_cast<std::int64_t>(random.below(60));
      cache->read(item, 1 + item * 37 % 400);
      ASSERT_LE(cache->used(), 1000) << to_string(policy);
    }
    EXPECT_FALSE(cache->read(1000, 1001));
    EXPECT_FALSE(cache->read(1000, 1001)) << "a file larger than the cache is kept";
  }
}

TEST(Storage, ServesAsItsNumbersSay) {
  const TimePoint start{};
  const auto after = [&](TimePoint when) { return Seconds(when - start).count(); };
  StorageModel one({.latency_s = 0.01, .bytes_per_s = 1000, .queue_depth = 1});
  EXPECT_NEAR(after(one.served_at(start, 100)), 0.11, 1e-9);
  EXPECT_NEAR(after(one.served_at(start, 100)), 0.22, 1e-9);  // waits for the first
  StorageModel two({.latency_s = 0.01, .bytes_per_s = 1000, .queue_depth = 2});
  EXPECT_NEAR(after(two.served_at(start, 100)), 0.11, 1e-9);
  EXPECT_NEAR(after(two.served_at(start, 100)), 0.21, 1e-9);  // its latency passes meanwhile
  EXPECT_DOUBLE_EQ(storage_rate({.latency_s = 0.01, .bytes_per_s = 1000, .queue_depth = 1}, 100, 4),
                   1 / 0.11);
  EXPECT_DOUBLE_EQ(storage_rate({.latency_s = 0.01, .bytes_per_s = 1000, .queue_depth = 2}, 100, 4), 10);
}

TEST(Storage, IsReadFromNamesAndNumbers) {
  EXPECT_TRUE(storage_from("disk")->is_real);
  EXPECT_EQ(storage_from("nvme")->bytes_per_s, 3e9);
  const Result<StorageSpec> own = storage_from("100us,20MiB,8");
  ASSERT_TRUE(own);
  EXPECT_DOUBLE_EQ(own->latency_s, 1e-4);
  EXPECT_EQ(own->bytes_per_s, 20.0 * kMiB);
  EXPECT_EQ(own->queue_depth, 8);
  for (const char* wrong :
       {"", "ssd", "8ms", "8,20MB", "8ms,0", "8ms,20MB,0", "8ms,20MB,1,1", "-1ms,20MB", "8ms,fast"})
    EXPECT_FALSE(storage_from(wrong)) << wrong;
}

TEST(Stalls, MissesTakeTheStoragesTimeByFileAndByByte) {
  const StorageSpec seeks{.latency_s = 1, .bytes_per_s = 1e12, .queue_depth = 1},
      streams{.latency_s = 0, .bytes_per_s = 1000, .queue_depth = 1}, disk{.is_real = true};
  const std::vector<Bytes> alike(200, 1000);
  for (const StorageSpec& storage : {seeks, streams, disk})
    EXPECT_NEAR(simulated_miss_share(alike, CachePolicy::MinIo, 0.35, storage, 4), 0.65, 1e-9);
  // The cache has no room for another large file, and takes a small one instead.
  const std::vector<Bytes> mixed{900, 10, 10, 10, 10, 10, 10, 10, 10, 20};
  const double by_byte = simulated_miss_share(mixed, CachePolicy::MinIo, 0.1, streams, 4);
  EXPECT_NEAR(by_byte, 0.9, 1e-9) << "all but the large one are cached";
  EXPECT_EQ(by_byte, simulated_miss_share(mixed, CachePolicy::MinIo, 0.1, disk, 4));
  EXPECT_NEAR(simulated_miss_share(mixed, CachePolicy::MinIo, 0.1, seeks, 4), 0.1, 1e-6) << "one file of ten";
}

TEST(Stalls, DataThatChangesDuringARunIsFound) {
  const TemporaryFolder folder;
  const std::vector<std::string> files{folder.path("b"), folder.path("a")};
  for (const std::string& file : files) std::ofstream(file) << "four";
  const DataState before = state_of(files);
  EXPECT_NO_THROW(require_unchanged(before, files));
  const auto said = [&](const std::vector<std::string>& now) -> std::string {
    try {
      require_unchanged(before, now);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(said({files[0], files[1], folder.path("c")}).find("c: was added"), std::string::npos);
  fs::last_write_time(files[0], before.times[1] + std::chrono::seconds(1));
  EXPECT_NE(said(files).find("b: was written to"), std::string::npos) << said(files);
  std::ofstream(files[0]) << "seven b";
  EXPECT_NE(said(files).find("b: went from 4 to 7 bytes"), std::string::npos) << said(files);
  fs::remove(files[0]);
  EXPECT_NE(said({files[1]}).find("b: was taken away"), std::string::npos) << said({files[1]});
}

TEST(Stalls, AnEpochIsSplitWithoutARestAndNeverBelowNothing) {
  const EpochSplit split = split_epoch(1, 3, 7);
  EXPECT_EQ(split.compute_s, 1);
  EXPECT_EQ(split.preparation_s, 2);
  EXPECT_EQ(split.fetch_s, 4);
  for (const auto& [a, b, c] :
       std::vector<std::array<double, 3>>{{2, 1, 3}, {3, 2, 1}, {1, 3, 2}, {2, 3, 1}, {1, 1, 1}}) {
    const EpochSplit noisy = split_epoch(a, b, c);
    EXPECT_DOUBLE_EQ(noisy.total(), c);
    EXPECT_GE(std::min({noisy.compute_s, noisy.preparation_s, noisy.fetch_s}), 0);
  }
}

TEST(Stalls, TheSlowestPartBoundsAndTheSmallestCacheIsWhereItStops) {
  const StallRates rates{.device = 400, .preparation = 300, .storage = 100};
  EXPECT_EQ(predict(rates, 0, 1).bound, "storage");
  EXPECT_EQ(predict(rates, 0, 1).speed, 100);
  EXPECT_EQ(predict(rates, 1, 0).bound, "preparation");
  EXPECT_EQ(predict({.device = 200, .preparation = 300, .storage = 100}, 1, 0).bound, "device");
  const double smallest = *smallest_cache(rates, CachePolicy::MinIo);
  EXPECT_NEAR(smallest, 2.0 / 3, 1e-9);  // F = 100 / (1 - x) = 300
  EXPECT_GT(*smallest_cache(rates, CachePolicy::Random), smallest);
  EXPECT_EQ(*smallest_cache({.device = 50, .preparation = 300, .storage = 100}, CachePolicy::Lru), 0);
  EXPECT_FALSE(smallest_cache(rates, CachePolicy::Fifo));
  EXPECT_NEAR(estimate_of({1, 2, 3}).half, 4.303 / std::sqrt(3.0), 1e-9);
}

class StallCommand : public ::testing::Test {
 protected:
  Answer stalls(const std::string& rest) {
    return shell("cd " + folder_.path("") + " && timeout 120 " MILLRACE_BIN_DIR "/millrace stalls " + rest);
  }
  Answer analyze(const std::string& rest) {
    return stalls(
        "analyze workload=default ++workload.dataset.num_files_train=40 "
        "++workload.workflow.generate_data=True ++workload.train.computation_time=0.002 " +
        rest);
  }
  const TemporaryFolder folder_;
};

TEST_F(StallCommand, SplitsTheEpochOfARealLoop) {
  const Answer answer = analyze("--storage 1ms,50MB,2 --cache 0.5 --measure 0,0.25,1 --repeats 2 -o out");
  ASSERT_EQ(answer.code, 0) << answer.text;
  const Result<Json> json = read_json(folder_.path("out/stalls.json"));
  ASSERT_TRUE(json);
  const auto number = [&](const char* name) { return json->find(name)->as_double(); };
  EXPECT_NEAR(number("compute_s") + number("preparation_stall_s") + number("fetch_stall_s"),
              number("epoch_s"), 1e-12);
  // The files have one size, and MinIO keeps half of them.
  EXPECT_EQ(json->find("cache")->find("hit_ratio")->as_double(), 0.5);
  const Json::Array& measured = json->find("measured")->items();
  ASSERT_EQ(measured.size(), 3u);
  EXPECT_EQ(measured[0].find("hit_ratio")->as_double(), 0);
  EXPECT_EQ(measured[1].find("hit_ratio")->as_double(), 0.25);
  EXPECT_EQ(measured[2].find("hit_ratio")->as_double(), 1);
  // 40 waits of at least 1 ms, two at once, cannot be faster.
  EXPECT_LE(json->find("rates_samples_per_s")->find("storage")->as_double(), 2000);
  EXPECT_NE(answer.text.find("fetch stall"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_.path("out/stalls.svg")));
  EXPECT_TRUE(read_file(folder_.path("out/stalls.csv"))->starts_with("cache_fraction,"));

  const Answer faster = stalls("what-if out/stalls.json --storage nvme --cache 0 --format json");
  ASSERT_EQ(faster.code, 0) << faster.text;
  EXPECT_NE(faster.text.find("\"bound\": \""), std::string::npos);
  EXPECT_EQ(faster.text.find("\"bound\": \"storage\""), std::string::npos) << faster.text;

  // Again in the same folder; a real disk; a policy that evicts.
  EXPECT_EQ(analyze("--storage disk --policy random --cache 0.5 --repeats 1 -o out").code, 0);
  const Result<Json> again = read_json(folder_.path("out/stalls.json"));
  EXPECT_EQ(again->find("cache")->find("policy")->as_string(), "random");
}

TEST_F(StallCommand, ImagesAreOfEveryKindThatTrainingReads) {
  fs::create_directories(folder_.path("images"));
  const Image image{.height = 8, .width = 8, .channels = 3, .pixels = std::string(8 * 8 * 3, 'x')};
  for (int i = 0; i < 6; ++i) {
    std::ofstream(folder_.path("images/" + std::to_string(i) + ".jpg")) << encode_jpeg(image);
    std::ofstream(folder_.path("images/" + std::to_string(i) + ".PNG")) << encode_png(image);
  }
  const Answer answer = stalls(
      "analyze workload=default --images images --repeats 1 "
      "++workload.train.computation_time=0.001 ++workload.reader.batch_size=4");
  EXPECT_EQ(answer.code, 0) << answer.text;
  EXPECT_NE(answer.text.find("12 files, "), std::string::npos) << answer.text;
}

TEST_F(StallCommand, MeasuresAndDrawsFigures) {
  std::ofstream(folder_.path("gpus.tsv"))
      << "p100\t\tlight\t4\t\t\t0.001\t0.002\np100\t\theavy\t4\t\t\t0.001\t0.005\n";
  const auto figure = [&](const std::string& name, const std::string& models, const std::string& rest) {
    return stalls("figure " + name +
                  " workload=default ++workload.dataset.num_files_train=24 ++workload.reader.batch_size=4 "
                  "++workload.workflow.generate_data=True --table gpus.tsv --device P100 -o out " +
                  (models.empty() ? "" : "--models " + models + " ") + rest);
  };
  for (const auto& [name, models, rest, points] :
       {std::tuple("3", "light,heavy", "--repeats 1 --storage 4ms,50MB,1", 2),
        {"4a", "heavy", "--repeats 1 --cache 0.25,1 --storage 2ms,50MB,2", 2},
        {"4b", "heavy", "--repeats 1 --cache 0.25,0.5 --storage 2ms,50MB,2", 4},
        {"5", "light,heavy", "--repeats 1 --threads 1,2", 4},
        {"6", "light,heavy", "--repeats 2", 2}}) {
    const Answer answer = figure(name, models, rest);
    ASSERT_EQ(answer.code, 0) << name << ": " << answer.text;
    const std::string file = std::string("out/figure") + name;
    EXPECT_GT(fs::file_size(folder_.path(file + ".png")), 1000U);
    EXPECT_NE(read_file(folder_.path(file + ".svg"))->find("</svg>"), std::string::npos);
    std::vector<std::string> lines = split(*read_file(folder_.path(file + ".csv")), '\n');
    lines.pop_back();
    ASSERT_EQ(lines.size(), static_cast<std::size_t>(points) + 1) << name;
    for (std::size_t i = 1; i < lines.size(); ++i) {
      // The storage's name has commas, in quotes.
      const std::vector<std::string> quoted = split(lines[i], '"');
      const std::vector<std::string> cells = split(quoted.at(2), ',');
      const auto number = [&](std::size_t column) { return std::strtod(cells.at(column).c_str(), nullptr); };
      EXPECT_EQ(number(3), 24) << lines[i];
      // Speed is samples that were read / epoch. Of several epochs it is the mean of theirs.
      if (number(4) == 1) {
        EXPECT_NEAR(number(7) * number(5), 24, 1e-3) << lines[i];
      } else {
        EXPECT_GT(number(6), 0) << "no error bar: " << lines[i];
      }
      EXPECT_NEAR(number(9) + number(10) + number(11) + number(13), number(5), 0.005 * number(5)) << lines[i];
      for (const std::size_t share : {15U, 17U}) EXPECT_GE(number(share), 0) << lines[i];
      const bool heavy = lines[i].find("heavy") != std::string::npos;
      EXPECT_NEAR(number(10) / number(9), heavy ? 0.2 : 0.5, 1e-3) << "copy beside computation";
      if (std::string(name) == "5" || std::string(name) == "6") {
        EXPECT_EQ(number(17), 0) << lines[i];
      }
    }
  }
  // A file in 4 ms, four of them beside a step of 3 ms or of 6: the light model waits more for storage.
  const std::vector<std::string> by_model = split(*read_file(folder_.path("out/figure3.csv")), '\n');
  const auto fetch_share = [&](int row) {
    return std::strtod(split(split(by_model.at(row), '"').at(2), ',').at(17).c_str(), nullptr);
  };
  EXPECT_GT(fetch_share(1), fetch_share(2));
  // Without --models the models are those of the figure that the table has.
  const Answer none = figure("6", "", "");
  EXPECT_EQ(none.code, 3);
  EXPECT_NE(none.text.find("for model alexnet. Hint: it has heavy, light"), std::string::npos) << none.text;
  EXPECT_EQ(none.text.find("resnet18"), std::string::npos) << none.text;
  std::ofstream(folder_.path("gpus.tsv"), std::ios::app) << "p100\t\tresnet18\t4\t\t\t0.001\t0.002\n";
  const Answer one = figure("6", "", "--repeats 1");
  EXPECT_EQ(one.code, 0) << one.text;
  EXPECT_EQ(split(*read_file(folder_.path("out/figure6.csv")), '\n').size(), 3U) << "a head and one row";
  EXPECT_EQ(figure("7", "light", "").code, 2);
  const Answer other = figure("6", "vgg11", "");
  EXPECT_EQ(other.code, 3);
  EXPECT_NE(other.text.find("no figure of P100 for model vgg11"), std::string::npos) << other.text;
  EXPECT_NE(figure("6", "light", "++workload.reader.batch_size=8").text.find("--extrapolate"),
            std::string::npos);
  EXPECT_NE(figure("6", "light", "--gpus 3").text.find("does not divide among 3 devices"), std::string::npos);
}

TEST_F(StallCommand, SaysWhatIsWrong) {
  ASSERT_EQ(analyze("--storage 1ms,50MB --repeats 1 -o out").code, 0);
  const auto expect = [&](const Answer& answer, int code, const char* text) {
    EXPECT_EQ(answer.code, code) << answer.text;
    EXPECT_NE(answer.text.find(text), std::string::npos) << answer.text;
  };
  expect(stalls("analyze workload=default --storage fast"), 2, "is not a storage");
  expect(stalls("analyze workload=default --cache 1.5"), 2, "--cache");
  expect(stalls("analyze workload=default --measure 0.5,2"), 2, "2 is not a share of the data");
  expect(stalls("analyze workload=bert_v100"), 2, "samples in a file");
  expect(stalls("analyze workload=default ++workload.reader.data_loader=synthetic"), 2, "no files are read");
  expect(stalls("analyze workload=default ++workload.dataset.data_folder=nowhere"), 3,
         "files that end in .npz");
  expect(stalls("analyze workload=default --images nowhere"), 3, "nowhere");
  fs::create_directories(folder_.path("empty"));
  expect(stalls("analyze workload=default --images empty"), 3, "has no .jpg");
  expect(stalls("what-if nothing.json"), 3, "nothing.json");
  const std::string whole = *read_file(folder_.path("out/stalls.json"));
  std::ofstream(folder_.path("half.json")) << whole.substr(0, whole.size() / 2);
  expect(stalls("what-if half.json"), 3, "half.json");
  std::ofstream(folder_.path("other.json")) << "{\"format\": \"millrace-stalls-1\"}";
  expect(stalls("what-if other.json"), 3, "is not what `millrace stalls analyze` writes");
  expect(stalls("what-if out/stalls.json --storage disk"), 2, "is not known before it is measured");
  expect(stalls("cache --policy lru --partitioned"), 2, "these policies evict");
  // A file that cannot be read ends the run: nobody waits for it.
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path("data/default/train")))
    if (entry.is_regular_file()) std::ofstream(entry.path()) << "damaged";
  expect(stalls("analyze workload=default ++workload.dataset.num_files_train=40 --storage disk -o damaged"),
         3, ".npz");
  EXPECT_FALSE(fs::exists(folder_.path("damaged/stalls.json")));
}

}  // namespace
}  // namespace millrace
