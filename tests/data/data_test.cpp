#include <gtest/gtest.h>
#include <turbojpeg.h>
#include <unistd.h>

#include <ATen/ops/equal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "data/dataset.h"
#include "data/readers/jpeg.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

std::string jpeg_of(int width, int height, int format, int shade) {
  const int channels = tjPixelSize[format];
  std::vector<unsigned char> pixels(static_cast<std::size_t>(width * height * channels));
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<unsigned char>((shade * 40 + static_cast<int>(i) * 7) % 256);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  tjhandle handle = tjInitCompress();
  tjCompress2(handle, pixels.data(), width, 0, height, format, &out, &size,
              format == TJPF_GRAY ? TJSAMP_GRAY : TJSAMP_444, 90, 0);
  std::string bytes(reinterpret_cast<char*>(out), size);
  tjFree(out);
  tjDestroy(handle);
  return bytes;
}

constexpr char kAll[] = {1, 1};

std::vector<FieldSpec> image_fields(int size, int classes = 10) {
  return classifier("test", {3, size, size}, classes).fields;
}

LoaderOptions loader_for(LoaderOptions options) {
  options.fields = image_fields(32);
  return options;
}

class ImageFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-images-XXXXXX";
    root_ = ::mkdtemp(name);
    for (const char* split : {"train", "test"}) {
      for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < 4; ++i)
          put(std::string(split) + "/class" + std::to_string(c) + "/" + std::to_string(i) + ".jpg",
              jpeg_of(40 + i, 50, TJPF_RGB, c * 4 + i));
      }
    }
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(root_ / name, bytes));
  }

  Result<std::shared_ptr<const Dataset>> open(const std::string& split = "train", int classes = 3,
                                              int size = 32) {
    return make_dataset({.path = root_.string(), .split = split, .fields = image_fields(size, classes)});
  }

  fs::path root_;
};

std::vector<Batch> read_all(const std::shared_ptr<const Dataset>& dataset, LoaderOptions options, int count,
                            int from = 0) {
  auto loader = make_loader(dataset, options);
  EXPECT_TRUE(loader);
  std::vector<Batch> batches;
  for (int i = from; i < count; ++i) batches.push_back((*loader)->get(i));
  return batches;
}

void expect_same(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (int field : {0, 1})
      EXPECT_TRUE(at::equal(a[i].fields.at(field), b[i].fields.at(field))) << i << ", field " << field;
  }
}

TEST_F(ImageFolderTest, BatchesDoNotDependOnThreadsAndResumeAnywhere) {
  const auto dataset = *open();
  const LoaderOptions base =
      loader_for({.microbatch = 3, .microbatches_per_step = 2, .seed = 5, .workers = 0});
  const auto reference = read_all(dataset, base, 12);
  for (int workers : {1, 4}) {
    LoaderOptions options = base;
    options.workers = workers;
    expect_same(read_all(dataset, options, 12), reference);
    expect_same(read_all(dataset, options, 12, 7), {reference.begin() + 7, reference.end()});
  }
}

TEST_F(ImageFolderTest, ARankGetsItsOwnPositions) {
  const auto dataset = *open();
  LoaderOptions options = loader_for({.microbatch = 2, .microbatches_per_step = 2, .seed = 5, .workers = 2});
  const auto all = read_all(dataset, options, 10);
  options.mine = [](std::int64_t position) { return position % 2 == 1; };
  auto loader = *make_loader(dataset, options);
  for (int i = 1; i < 10; i += 2)
    EXPECT_TRUE(at::equal(loader->get(i).fields[0], all[static_cast<std::size_t>(i)].fields[0]));
}

TEST_F(ImageFolderTest, LabelsAloneEqualTheLabelsOfImages) {
  const auto dataset = *open();
  LoaderOptions options = loader_for({.microbatch = 4, .microbatches_per_step = 1, .workers = 0});
  const auto all = read_all(dataset, options, 6);
  options.wanted = {0, 1};
  const auto labels = read_all(dataset, options, 6);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(at::equal(all[i].fields[1], labels[i].fields[1]));
    EXPECT_FALSE(labels[i].fields[0].defined());
  }
}

TEST_F(ImageFolderTest, GreyCmykAndDamagedFollowThePolicy) {
  put("train/class0/grey.jpg", jpeg_of(40, 40, TJPF_GRAY, 1));
  put("train/class1/cmyk.jpg", jpeg_of(40, 40, TJPF_CMYK, 2));
  const std::string whole = jpeg_of(64, 64, TJPF_RGB, 3);
  put("train/class2/cut.jpg", whole.substr(0, whole.size() / 2));
  put("train/class2/empty.jpg", "");
  put("train/class2/text.jpg", "this is no image");
  const auto dataset = *open();
  for (std::int64_t i = 0; i < dataset->size(); ++i)
    EXPECT_EQ(dataset->get(i, 1, kAll)[0].tensor.sizes().vec(), (std::vector<std::int64_t>{3, 32, 32}));
  const auto counters = dataset->counters();
  EXPECT_EQ(counters.at("damaged"), 3);
  EXPECT_GE(counters.at("grey"), 1);
  EXPECT_GE(counters.at("cmyk"), 1);
}

TEST_F(ImageFolderTest, TooManyDamagedImagesAreAnError) {
  for (int i = 0; i < 12; ++i) put("train/class2/bad" + std::to_string(i) + ".jpg", "no image");
  const auto dataset = *open();
  EXPECT_THROW(
      {
        for (std::int64_t i = 0; i < dataset->size(); ++i) dataset->get(i, 1, kAll);
      },
      DataError);
}

TEST_F(ImageFolderTest, LargeImagesAreCroppedFromTheWhole) {
  put("test/class0/large.jpg", jpeg_of(900, 700, TJPF_RGB, 1));
  const auto train = *open("train", 3, 224), test = *open("test", 3, 224);
  EXPECT_EQ(train->get(0, 1, kAll)[0].tensor.sizes().vec(), (std::vector<std::int64_t>{3, 224, 224}));
  EXPECT_FALSE(at::equal(train->get(0, 1, kAll)[0].tensor, train->get(0, 2, kAll)[0].tensor));
  EXPECT_TRUE(at::equal(test->get(0, 1, kAll)[0].tensor, test->get(0, 2, kAll)[0].tensor));
}

TEST_F(ImageFolderTest, NamesWhatIsWrong) {
  const auto message = [](const auto& result) {
    return result ? std::string("accepted") : to_string(result.problems());
  };
  EXPECT_NE(message(open("train", 2)).find("has 3 classes, the model 2"), std::string::npos);
  fs::create_directories(root_ / "train/empty");
  EXPECT_NE(message(open("train", 9)).find("class folder without .jpg"), std::string::npos);
  EXPECT_NE(message(make_dataset({.path = "/nonexistent", .fields = image_fields(32)}))
                .find("not a readable folder"),
            std::string::npos);
  EXPECT_NE(message(make_dataset({.path = "synthetic:x", .fields = image_fields(4)})).find("no valid size"),
            std::string::npos);
  EXPECT_NE(message(make_loader(*make_dataset({.path = "synthetic:4", .fields = image_fields(4)}),
                                loader_for({.microbatch = 8})))
                .find("one step needs 8"),
            std::string::npos);
}

TEST(Sampler, IsAPermutationOfEachEpoch) {
  auto order = epoch_order(1000, 3, 0, true);
  EXPECT_NE(order, epoch_order(1000, 3, 1, true));
  EXPECT_EQ(order, epoch_order(1000, 3, 0, true));
  std::ranges::sort(order);
  EXPECT_EQ(order, epoch_order(1000, 3, 0, false));
}

TEST(RealData, DecodesEveryImageNetSample) {
  const char* data = std::getenv("MILLRACE_DATA");
  if (!data) GTEST_SKIP() << "MILLRACE_DATA is not set";
  char name[] = "/tmp/millrace-imagenet-XXXXXX";
  const std::string root = ::mkdtemp(name);
  ASSERT_EQ(std::system(
                ("tar -xzf '" + std::string(data) + "/imagenet-sample/imagenet-sample-200.tar.gz' -C " + root)
                    .c_str()),
            0);
  const auto dataset =
      make_dataset({.path = root + "/imagenet-sample", .split = "train", .fields = image_fields(224, 1000)});
  ASSERT_TRUE(dataset) << to_string(dataset.problems());
  EXPECT_EQ((*dataset)->size(), 200);
  for (std::int64_t i = 0; i < 200; i += 4) EXPECT_TRUE((*dataset)->get(i, 1, kAll)[0].tensor.defined());
  EXPECT_EQ((*dataset)->counters().at("damaged"), 0);
  fs::remove_all(root);
}

}  // namespace
}  // namespace millrace
