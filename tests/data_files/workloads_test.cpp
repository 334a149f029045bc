// The data sets of the I/O study: sizes, formats, resumption, and what a change of options means.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "data/files/npy.h"
#include "data/files/tfrecord.h"
#include "experiments/io/generate/workloads.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = *read_file(entry.path(), kGiB);
  }
  return files;
}

class EveryWorkload : public testing::TestWithParam<Workload> {
 protected:
  GenerateOptions options(const std::string& name, int threads = 2) const {
    const Bytes size = GetParam() == Workload::Imseg     ? 1
                       : GetParam() == Workload::Bert    ? 3'000'000
                       : GetParam() == Workload::Images  ? 300'001
                       : GetParam() == Workload::Kidneys ? 2'000'001
                                                         : 3'000'001;
    return {.workload = GetParam(),
            .out = folder_.path(name),
            .size = size,
            .seed = 25,
            .threads = threads,
            .image_side = 64};
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Workloads, EveryWorkload,
                         testing::Values(Workload::Imseg, Workload::Bert, Workload::Dlrm, Workload::Images,
                                         Workload::Text, Workload::Kidneys, Workload::Clicks),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(EveryWorkload, ThreadsDoNotChangeAByteAndCheckFindsAChangedOne) {
  const auto one = generate_workload(options("one", 1), {}), four = generate_workload(options("four", 4), {});
  ASSERT_TRUE(one && four);
  const auto files = files_below(folder_.path("one"));
  EXPECT_TRUE(files == files_below(folder_.path("four")));
  EXPECT_EQ(static_cast<std::int64_t>(files.size()), one->files + 1);  // and the manifest
  ASSERT_TRUE(check_workload(folder_.path("one"), 2, {}));
  for (const auto& [name, content] : files) {
    if (name == "millrace-dataset.json" || content.empty()) continue;
    std::string changed = content;
    changed[changed.size() / 2] ^= 0x10;
    folder_.write("one/" + name, changed);
    const auto says = [&]() -> std::string {
      try {
        (void)check_workload(folder_.path("one"), 2, {});
      } catch (const DataError& error) {
        return error.what();
      }
      return "nothing";
    };
    const std::string place = name + ": byte " + std::to_string(content.size() / 2) + " is ";
    EXPECT_NE(says().find(place), std::string::npos) << place << says();
    folder_.write("one/" + name, content.substr(0, content.size() - 1));
    EXPECT_NE(says().find(name + ": ends at byte " + std::to_string(content.size() - 1)), std::string::npos)
        << says();
    folder_.write("one/" + name, content + "x");
    EXPECT_NE(says().find(name + ": goes on after byte " + std::to_string(content.size())), std::string::npos)
        << says();
    fs::remove(folder_.path("one/" + name));
    EXPECT_NE(says().find(name), std::string::npos) << says();
    folder_.write("one/" + name, content);
  }
  EXPECT_TRUE(files == files_below(folder_.path("one"))) << "a check leaves nothing behind";
}

TEST_P(EveryWorkload, HasItsSizeToTheLastRecord) {
  const GenerateOptions wanted = options("a");
  const auto report = generate_workload(wanted, {});
  ASSERT_TRUE(report);
  EXPECT_GE(report->bytes, wanted.size);
  Bytes on_disk = 0, largest = 0;
  for (const auto& [name, content] : files_below(wanted.out)) {
    if (name == "millrace-dataset.json" || name == "terabyte_processed_test.bin" ||
        name == "day_fea_count.npz")
      continue;
    on_disk += static_cast<Bytes>(content.size());
    largest = std::max(largest, static_cast<Bytes>(content.size()));
  }
  EXPECT_EQ(on_disk, report->bytes);
  const bool is_volumes = GetParam() == Workload::Imseg || GetParam() == Workload::Kidneys;
  const Bytes record = GetParam() == Workload::Dlrm || GetParam() == Workload::Clicks ? 160
                       : GetParam() == Workload::Bert                                 ? 4096
                       : GetParam() == Workload::Text                                 ? 1024
                       : is_volumes                                                   ? 2 * largest
                                                                                      : largest;
  EXPECT_LT(report->bytes, wanted.size + record);
}

TEST_P(EveryWorkload, AnInterruptedRunIsCompletedToTheSameBytes) {
  ASSERT_TRUE(generate_workload(options("whole"), {}));
  const GenerateOptions cut = options("cut");
  struct Interrupt {};
  int calls = 0;
  // Throws in the writer's thread, as a failing disk would (for imseg in a worker).
  const auto interrupt = [&](Bytes) {
    if (++calls == 2) throw DataError("interrupted");
  };
  try {
    (void)generate_workload(cut, interrupt);
  } catch (const DataError&) {
  }
  const auto report = generate_workload(cut, {});
  ASSERT_TRUE(report) << to_string(report.problems());
  EXPECT_TRUE(files_below(folder_.path("whole")) == files_below(folder_.path("cut")));
  const auto again = generate_workload(cut, {});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->kept, again->bytes);
  EXPECT_EQ(again->records, report->records);
}

TEST_P(EveryWorkload, AnotherFoldersContentIsLeftAlone) {
  GenerateOptions wanted = options("a");
  ASSERT_TRUE(generate_workload(wanted, {}));
  const auto before = files_below(wanted.out);
  wanted.seed = 41;
  EXPECT_FALSE(generate_workload(wanted, {}));
  fs::create_directory(folder_.path("b"));
  folder_.write("b/notes", "mine");
  wanted.out = folder_.path("b");
  EXPECT_FALSE(generate_workload(wanted, {}));
  EXPECT_TRUE(before == files_below(folder_.path("a")));
  EXPECT_EQ(files_below(folder_.path("b")).size(), 1u);
}

TEST_P(EveryWorkload, SeedsDiffer) {
  GenerateOptions wanted = options("a");
  ASSERT_TRUE(generate_workload(wanted, {}));
  wanted.out = folder_.path("b");
  wanted.seed = 41;
  ASSERT_TRUE(generate_workload(wanted, {}));
  EXPECT_FALSE(files_below(folder_.path("a")) == files_below(folder_.path("b")));
}

TEST(Workloads, UnetVolumesAreInRangeWithLabelsOfTheirShape) {
  const TemporaryFolder folder;
  ASSERT_TRUE(
      generate_workload({.workload = Workload::Imseg, .out = folder.path("a"), .size = 1, .seed = 25}, {}));
  const std::string x = folder.read("a/case_00000_x.npy"), y = folder.read("a/case_00000_y.npy");
  const Result<NpyHeader> volume = parse_npy(x, "x"), labels = parse_npy(y, "y");
  ASSERT_TRUE(volume && labels);
  EXPECT_EQ(volume->data_offset, 128u);
  EXPECT_EQ(volume->descr, "<f4");
  EXPECT_EQ(labels->descr, "|u1");
  EXPECT_EQ(volume->shape, labels->shape);
  ASSERT_EQ(volume->shape.size(), 4u);
  EXPECT_EQ(volume->shape[2], volume->shape[3]);
  double sum = 0, ones = 0;
  const auto voxels = static_cast<std::size_t>(labels->data_bytes);
  for (std::size_t i = 0; i < voxels; ++i) {
    float value;
    std::memcpy(&value, x.data() + 128 + 4 * i, 4);
    ASSERT_GE(value, -2.340702f);
    ASSERT_LE(value, 2.639792f);
    sum += value;
    ASSERT_LE(static_cast<unsigned char>(y[labels->data_offset + i]), 1);
    ones += y[labels->data_offset + i];
  }
  EXPECT_NEAR(sum / static_cast<double>(voxels), (2.639792 - 2.340702) / 2, 0.01);
  EXPECT_NEAR(ones / static_cast<double>(voxels), 0.5, 0.01);
}

TEST(Workloads, BertRecordsAreMaskedSentences) {
  const TemporaryFolder folder;
  ASSERT_TRUE(generate_workload({.workload = Workload::Bert, .out = folder.path("a"), .size = 500'000}, {}));
  const std::string file = folder.read("a/part-00027-of-00500");
  TfRecordReader reader(file, "part");
  std::set<std::int64_t> lengths;
  while (!reader.at_end()) {
    const Result<Example> example = parse_example(*reader.next(), "part");
    ASSERT_TRUE(example) << to_string(example.problems());
    ASSERT_EQ(example->size(), 7u);
    const auto& ids = example->at("input_ids").integers;
    const auto& mask = example->at("input_mask").integers;
    ASSERT_EQ(ids.size(), 512u);
    ASSERT_EQ(mask.size(), 512u);
    ASSERT_EQ(example->at("segment_ids").integers.size(), 512u);
    const auto length = std::count(mask.begin(), mask.end(), 1);
    lengths.insert(length);
    for (const std::int64_t id : ids) ASSERT_TRUE(id >= 0 && id < 30522);
    const auto& places = example->at("masked_lm_positions").integers;
    const auto& labels = example->at("masked_lm_ids").integers;
    const auto& weights = example->at("masked_lm_weights").floats;
    ASSERT_EQ(places.size(), 76u);
    ASSERT_EQ(labels.size(), 76u);
    ASSERT_EQ(weights.size(), 76u);
    const auto masked = std::count(weights.begin(), weights.end(), 1.0f);
    EXPECT_EQ(masked, length * 15 / 100);
    for (long i = 0; i < masked; ++i) {
      EXPECT_EQ(labels[i], ids[places[i]]);
      if (i > 0) {
        EXPECT_GT(places[i], places[i - 1]);
      }
    }
    EXPECT_EQ(example->at("next_sentence_labels").integers.size(), 1u);
  }
  EXPECT_GT(lengths.size(), 50u);
}

TEST(Workloads, LessEntropyPacksSmaller) {
  const TemporaryFolder folder;
  const auto packed_share = [&](double entropy) {
    const std::string name = std::to_string(entropy);
    const auto made = generate_workload({.workload = Workload::Imseg,
                                         .out = folder.path(name),
                                         .size = 1,
                                         .seed = 25,
                                         .randomness = {.entropy = entropy}},
                                        {});
    EXPECT_TRUE(made);
    const std::string x = folder.read(name + "/case_00000_x.npy").substr(128, 4'000'000);
    std::string packed(x.size() * 2, '\0');
    uLongf bytes = packed.size();
    EXPECT_EQ(::compress2(reinterpret_cast<Bytef*>(packed.data()), &bytes,
                          reinterpret_cast<const Bytef*>(x.data()), x.size(), 6),
              Z_OK);
    return static_cast<double>(bytes) / static_cast<double>(x.size());
  };
  const double full = packed_share(8), half = packed_share(4), low = packed_share(1);
  EXPECT_GT(full, 0.85);
  EXPECT_LT(half, 0.7);
  EXPECT_LT(low, 0.3);
}

TEST(Workloads, TheChainOfWordsHasTheEntropyThatIsPrinted) {
  const TemporaryFolder folder;
  // Few words, so that counting pairs of them is an estimate of the true entropy.
  const auto made = generate_workload({.workload = Workload::Text,
                                       .out = folder.path("a"),
                                       .size = 20'000'000,
                                       .randomness = {.entropy = 2.5, .correlation = 0.6}},
                                      {});
  ASSERT_TRUE(made && made->entropy_per_word);
  const std::string text = folder.read("a/train.txt");
  std::map<std::string, std::map<std::string, int>> pairs;
  std::string before, word;
  for (const char c : text) {
    if (c != ' ' && c != '\n') {
      word += c;
      continue;
    }
    if (!before.empty()) ++pairs[before][word];
    before = c == '\n' ? "" : word;
    word.clear();
  }
  double all = 0, bits = 0;
  for (const auto& [first, next] : pairs) {
    double count = 0;
    for (const auto& [second, n] : next) count += n;
    for (const auto& [second, n] : next) bits -= n * std::log2(n / count);
    all += count;
  }
  EXPECT_NEAR(bits / all, *made->entropy_per_word, 0.02);
}

// The files in the hands of NumPy, h5py and Pillow: tests/reference/install makes the environment.
TEST(Reference, ReadersInPythonOpenEveryKind) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python) GTEST_SKIP() << "tests/reference/install makes it";
  const TemporaryFolder folder;
  for (const Workload workload :
       {Workload::Imseg, Workload::Bert, Workload::Dlrm, Workload::Images, Workload::Text})
    ASSERT_TRUE(generate_workload(
        {.workload = workload, .out = folder.path(to_string(workload)), .size = 2'000'000, .image_side = 64},
        {}));
  const std::string command =
      std::string(python) + " " + MILLRACE_SOURCE_DIR + "/tests/reference/open_data_sets.py " + folder.path();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
