#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <ATen/ops/equal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "data/loading/dataset.h"
#include "data/readers/jpeg.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "tests/data/jpeg_maker.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

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

  Result<std::shared_ptr<const Dataset>> open(DataSplit split = DataSplit::Train, int classes = 3,
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
  for (int i = 1; i < 10; i += 2) EXPECT_TRUE(at::equal(loader->get(i).fields[0], all[i].fields[0]));
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
  const auto odd = dataset->odd_samples();
  std::map<std::string, unsigned> named;
  for (const auto& [index, bits] : odd) named[fs::path(dataset->name_of(index)).filename()] = bits;
  EXPECT_EQ(named, (std::map<std::string, unsigned>{{"grey.jpg", kGreySample},
                                                    {"cmyk.jpg", kCmykSample},
                                                    {"cut.jpg", kDamagedSample},
                                                    {"empty.jpg", kDamagedSample},
                                                    {"text.jpg", kDamagedSample}}));
  for (std::int64_t i = 0; i < dataset->size(); ++i) dataset->get(i, 1, kAll);
  EXPECT_EQ(dataset->odd_samples(), odd) << "distinct files are counted, not readings";
}

TEST_F(ImageFolderTest, AnImageDoesNotDependOnThoseDecodedBefore) {
  const std::string whole = jpeg_of(64, 64, TJPF_RGB, 3), other = jpeg_of(64, 64, TJPF_RGB, 4);
  RgbImage first, again;
  std::string error;
  ASSERT_TRUE(decode_jpeg(whole, first, error));
  for (const std::string& broken :
       {whole.substr(0, whole.size() / 2), std::string("no image"), without_segments(other, 0xdb),
        std::string(), other.substr(0, 300), jpeg_of(30, 30, TJPF_CMYK, 1).substr(0, 700)}) {
    EXPECT_FALSE(decode_jpeg(broken, again, error)) << "tables of the image before must not help";
    ASSERT_TRUE(decode_jpeg(whole, again, error)) << error;
    EXPECT_EQ(again.pixels, first.pixels);
  }
}

TEST_F(ImageFolderTest, DamageDoesNotSpreadWhateverTheThreads) {
  for (int i = 0; i < 120; ++i)
    put("train/class" + std::to_string(i % 3) + "/many" + std::to_string(i) + ".jpg",
        jpeg_of(33 + i % 5, 41, TJPF_RGB, i));
  const std::string whole = jpeg_of(64, 64, TJPF_RGB, 3);
  for (int i = 0; i < 3; ++i) {
    put("train/class" + std::to_string(i) + "/many5-cut.jpg", whole.substr(0, whole.size() / 2));
    put("train/class" + std::to_string(i) + "/many7-tableless.jpg",
        without_segments(jpeg_of(50, 50, TJPF_RGB, 7 + i), 0xdb));
  }
  const LoaderOptions base =
      loader_for({.microbatch = 6, .microbatches_per_step = 1, .seed = 5, .workers = 0});
  std::vector<Batch> reference;
  for (int workers : {0, 1, 2, 4}) {
    const auto dataset = *open();
    LoaderOptions options = base;
    options.workers = workers;
    const auto batches = read_all(dataset, options, 46);
    if (workers == 0) reference = batches;
    expect_same(batches, reference);
    EXPECT_EQ(dataset->odd_samples().size(), 6u) << workers << " workers";
  }
}

TEST_F(ImageFolderTest, AnImageOfTheSameClassStandsInForADamagedOne) {
  put("train/class1/9.jpg", "no image");
  const auto dataset = *open();
  const auto index = [&](const std::string& name) {
    for (std::int64_t i = 0; i < dataset->size(); ++i) {
      if (dataset->name_of(i) == root_ / name) return i;
    }
    return std::int64_t{-1};
  };
  EXPECT_TRUE(at::equal(dataset->get(index("train/class1/9.jpg"), 1, kAll)[0].tensor,
                        dataset->get(index("train/class1/0.jpg"), 1, kAll)[0].tensor));
  EXPECT_EQ(dataset->get(index("train/class1/9.jpg"), 1, kAll)[1].number, 1);
}

TEST_F(ImageFolderTest, ClassesOfTheTestSetHaveTheNumbersOfTraining) {
  fs::remove_all(root_ / "test/class0");
  const auto test = open(DataSplit::Test);
  ASSERT_TRUE(test) << to_string(test.problems());
  for (std::int64_t i = 0; i < (*test)->size(); ++i) {
    const std::string folder = fs::path((*test)->name_of(i)).parent_path().filename();
    EXPECT_EQ("class" + std::to_string((*test)->get(i, 1, kAll)[1].number), folder);
  }
  ASSERT_EQ((*test)->notes().size(), 1u);
  EXPECT_NE((*test)->notes()[0].find("no images of 1 of the 3 classes: class0"), std::string::npos);
  EXPECT_TRUE((*open())->notes().empty());
}

TEST_F(ImageFolderTest, AClassThatTrainingDoesNotHaveIsAnError) {
  fs::rename(root_ / "test/class2", root_ / "test/klass2");
  const auto test = open(DataSplit::Test);
  ASSERT_FALSE(test);
  const std::string message = to_string(test.problems());
  EXPECT_NE(message.find("test/klass2"), std::string::npos) << message;
  EXPECT_NE(message.find("is a class that the training set does not have"), std::string::npos) << message;
  fs::remove_all(root_ / "test");
  const auto none = open(DataSplit::Test);
  ASSERT_TRUE(none) << "no evaluation is no error";
  EXPECT_EQ(*none, nullptr);
}

TEST_F(ImageFolderTest, WhatIsNoFileIsLeftOutAndNeverWaitedFor) {
  const auto before = *open();
  ASSERT_EQ(::mkfifo((root_ / "train/class0/fifo.jpg").c_str(), 0600), 0);
  fs::create_symlink("loop.jpg", root_ / "train/class1/loop.jpg");
  fs::create_symlink("nowhere", root_ / "train/class1/dangling.jpeg");
  fs::create_symlink(root_ / "train/class0/0.jpg", root_ / "train/class1/9-link.jpg");
  fs::create_directories(root_ / "train/class2/folder.jpg");
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (root_ / "train/class2/socket.jpg").string().copy(address.sun_path, sizeof address.sun_path - 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  const auto dataset = *open();
  ::close(socket);
  EXPECT_EQ(dataset->size(), before->size() + 1) << "a link to a file is a file";
  EXPECT_EQ(dataset->left_out(), 4);
  ASSERT_EQ(dataset->notes().size(), 1u);
  for (const char* part : {"left out: 4 named like images that are no files: ", "fifo.jpg (a FIFO), ",
                           "dangling.jpeg (a link", "loop.jpg (a link", " and 1 more"})
    EXPECT_NE(dataset->notes()[0].find(part), std::string::npos) << dataset->notes()[0];
  for (std::int64_t i = 0; i < dataset->size(); ++i) dataset->get(i, 1, kAll);
  EXPECT_TRUE(dataset->odd_samples().empty());
  // Turned into one after the listing.
  fs::remove(root_ / "train/class0/0.jpg");
  ASSERT_EQ(::mkfifo((root_ / "train/class0/0.jpg").c_str(), 0600), 0);
  EXPECT_TRUE(dataset->get(0, 1, kAll)[0].tensor.defined());
  EXPECT_EQ(dataset->odd_samples(), (std::map<std::int64_t, unsigned>{{0, kDamagedSample}}));
}

TEST_F(ImageFolderTest, LinksAmongTheFoldersThatLeadNowhereAreProblems) {
  fs::create_symlink("classX", root_ / "train/classX");
  const auto dataset = open(DataSplit::Train, 9);
  ASSERT_FALSE(dataset);
  EXPECT_NE(to_string(dataset.problems()).find("train/classX: is a link that leads to nothing"),
            std::string::npos)
      << to_string(dataset.problems());
  fs::remove_all(root_ / "train");
  fs::create_symlink("train", root_ / "train");
  EXPECT_FALSE(open()) << "and no exception";
}

/// A triangle filter as wide as the shrink factor over the whole image, in double.
double filtered(const RgbImage& image, int channel, double x0, double y0, double side, int size, int x,
                int y) {
  const double scale = side / size, support = std::max(1.0, scale), cx = x0 + (x + 0.5) * scale,
               cy = y0 + (y + 0.5) * scale;
  const auto weight = [&](double at, double centre) {
    return std::max(0.0, 1 - std::abs(at + 0.5 - centre) / support);
  };
  double sum = 0, weights = 0;
  for (int v = 0; v < image.height; ++v) {
    if (weight(v, cy) == 0) continue;
    for (int u = 0; u < image.width; ++u) {
      const double w = weight(u, cx) * weight(v, cy);
      sum += w * image.pixels[(static_cast<std::size_t>(v) * static_cast<std::size_t>(image.width) +
                               static_cast<std::size_t>(u)) *
                                  3 +
                              static_cast<std::size_t>(channel)];
      weights += w;
    }
  }
  return sum / weights;
}

TEST_F(ImageFolderTest, EvaluationSeesTheFullyDecodedImage) {
  constexpr double kMean[] = {0.485, 0.456, 0.406}, kDeviation[] = {0.229, 0.224, 0.225};
  put("test/class0/-large.jpg", jpeg_of(420, 300, TJPF_RGB, 1));
  RgbImage image;
  std::string error;
  ASSERT_TRUE(decode_jpeg(jpeg_of(420, 300, TJPF_RGB, 1), image, error));
  ASSERT_EQ(image.width, 420);
  for (int size : {32, 96}) {
    const at::Tensor input = (*open(DataSplit::Test, 3, size))->get(0, 1, kAll)[0].tensor;
    const double side = size > 64 ? 300 * 7 / 8.0 : 300, x0 = (420 - side) / 2, y0 = (300 - side) / 2;
    const float* value = input.const_data_ptr<float>();
    for (int c = 0; c < 3; ++c) {
      for (int y = 0; y < size; y += 5) {
        for (int x = 0; x < size; x += 5) {
          const double shown = (value[(c * size + y) * size + x] * kDeviation[c] + kMean[c]) * 255;
          ASSERT_NEAR(shown, filtered(image, c, x0, y0, side, size, x, y), 0.01)
              << size << " " << x << " " << y;
        }
      }
    }
  }
}

TEST(Jpeg, AsksForNoMoreThanTheLimits) {
  RgbImage image;
  std::string error;
  const std::string progressive = jpeg_of(64, 48, TJPF_RGB, 1, TJFLAG_PROGRESSIVE);
  const int scans = count_scans(progressive);
  EXPECT_GT(scans, 5);
  EXPECT_EQ(count_scans(jpeg_of(64, 48, TJPF_RGB, 1)), 1);
  ASSERT_TRUE(decode_jpeg(progressive, image, error)) << error;
  EXPECT_FALSE(decode_jpeg(with_size(progressive, 20'000, 20'000), image, error));
  EXPECT_NE(error.find("20000x20000 pixels are more than 64 megapixels"), std::string::npos) << error;
  EXPECT_FALSE(decode_jpeg(progressive, image, error, {.scans = scans - 1}));
  EXPECT_NE(error.find("scans are more than"), std::string::npos) << error;
  EXPECT_FALSE(decode_jpeg(progressive, image, error, {.scan_pixels = 64 * 48 * scans - 1}));
  EXPECT_NE(error.find("64x48 pixels in " + std::to_string(scans) + " scans are too many"), std::string::npos)
      << error;
  // Thousands of scans, each over all of 64 megapixels, in some kilobytes.
  const std::size_t scan = progressive.find("\xff\xda");
  std::string bomb = with_size(progressive, 8'000, 8'000).substr(0, progressive.size() - 2);
  for (int i = 0; i < 2'000; ++i) bomb += progressive.substr(scan, 16);
  EXPECT_FALSE(decode_jpeg(bomb + "\xff\xd9", image, error));
  EXPECT_NE(error.find("scans are more than 256"), std::string::npos) << error;
}

/// Decoding a part leaves rows and columns out. What is decoded has the bits of the whole, at its ends too.
TEST(Jpeg, PartsHaveThePixelsOfTheWhole) {
  constexpr int kWidth = 203, kHeight = 117;
  std::vector<unsigned char> pixels(3 * kWidth * kHeight);
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<unsigned char>((i % 3 * 50 + i / 7 + i / 609 * i / 1000) % 256);
  std::string error;
  for (const int sampling : {TJSAMP_444, TJSAMP_422, TJSAMP_420, TJSAMP_440, TJSAMP_411, TJSAMP_GRAY}) {
    for (const int flags : {0, TJFLAG_PROGRESSIVE}) {
      const std::string bytes = jpeg_of_pixels(pixels, kWidth, kHeight, TJPF_RGB, 80, flags, sampling);
      RgbImage whole, part;
      ASSERT_TRUE(decode_jpeg(bytes, whole, error)) << error;
      ASSERT_EQ(whole.held.width, kWidth);
      ASSERT_EQ(whole.pixels.size(), pixels.size());
      for (const PixelRegion& region :
           {PixelRegion{0, 0, 1, 1}, PixelRegion{50, 30, 60, 40}, PixelRegion{kWidth - 13, 100, 13, 17},
            PixelRegion{17, 0, 100, kHeight}, PixelRegion{0, 16, kWidth, 1}, PixelRegion{33, 47, 1, 1},
            PixelRegion{kWidth - 1, kHeight - 1, 1, 1}, PixelRegion{64, 64, 16, 16}}) {
        const auto wanted = [&](int width, int height) {
          EXPECT_EQ(width, kWidth);
          EXPECT_EQ(height, kHeight);
          return region;
        };
        ASSERT_TRUE(decode_jpeg(bytes, part, error, {}, wanted)) << error;
        ASSERT_EQ(part.width, kWidth);
        ASSERT_LE(part.held.left, region.left);
        ASSERT_LE(part.held.top, region.top);
        ASSERT_GE(part.held.left + part.held.width, region.left + region.width);
        ASSERT_GE(part.held.top + part.held.height, region.top + region.height);
        for (int y = region.top; y < region.top + region.height; ++y) {
          const unsigned char *there = whole.pixels.data() + 3 * (y * kWidth + region.left),
                              *here = part.pixels.data() + 3 * ((y - part.held.top) * part.held.width +
                                                                region.left - part.held.left);
          ASSERT_TRUE(std::equal(there, there + 3 * region.width, here))
              << "sampling " << sampling << ", flags " << flags << ", row " << y << " of " << region.left
              << "," << region.top << " " << region.width << "x" << region.height;
        }
      }
      // Damage beyond what is asked for is found.
      const auto first = [](int, int) { return PixelRegion{0, 0, 8, 8}; };
      std::string broken = bytes;
      broken.replace(broken.size() * 4 / 5, 12, 12, '\xff');
      EXPECT_EQ(decode_jpeg(broken, part, error, {}, first), decode_jpeg(broken, whole, error));
      for (const std::size_t cut : {2, 20, 200})
        EXPECT_FALSE(decode_jpeg(bytes.substr(0, bytes.size() - cut), part, error, {}, first))
            << sampling << " " << flags << " " << cut;
    }
  }
}

TEST(Jpeg, AThumbnailsScansAreNotTheImages) {
  const std::string inner = jpeg_of(16, 16, TJPF_RGB, 1, TJFLAG_PROGRESSIVE),
                    outer = jpeg_of(64, 48, TJPF_RGB, 1);
  const std::size_t length = inner.size() + 2;
  const std::string segment = {'\xff', '\xe1', static_cast<char>(length >> 8),
                               static_cast<char>(length & 255)};
  const std::string both = outer.substr(0, 2) + segment + inner + outer.substr(2);
  RgbImage image;
  std::string error;
  EXPECT_TRUE(decode_jpeg(both, image, error)) << error;
  EXPECT_EQ(count_scans(both), 1);
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
  const auto train = *open(DataSplit::Train, 3, 224), test = *open(DataSplit::Test, 3, 224);
  EXPECT_EQ(train->get(0, 1, kAll)[0].tensor.sizes().vec(), (std::vector<std::int64_t>{3, 224, 224}));
  EXPECT_FALSE(at::equal(train->get(0, 1, kAll)[0].tensor, train->get(0, 2, kAll)[0].tensor));
  EXPECT_TRUE(at::equal(test->get(0, 1, kAll)[0].tensor, test->get(0, 2, kAll)[0].tensor));
}

TEST_F(ImageFolderTest, NamesWhatIsWrong) {
  const auto message = [](const auto& result) {
    return result ? std::string("accepted") : to_string(result.problems());
  };
  EXPECT_NE(message(open(DataSplit::Train, 2)).find("has 3 classes, the model 2"), std::string::npos);
  fs::create_directories(root_ / "train/empty");
  EXPECT_NE(message(open(DataSplit::Train, 9)).find("class folder without .jpg"), std::string::npos);
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

/// Says which thread asked last; slow where it is told to be.
class WatchedDataset final : public Dataset {
 public:
  std::int64_t size() const override { return 64; }
  Sample get(std::int64_t index, std::uint64_t, Wanted) const override {
    maker_ = std::this_thread::get_id();
    if (slow_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {{.number = index}};
  }
  std::string describe() const override { return "watched"; }
  std::string fingerprint() const override { return "watched"; }
  mutable std::atomic<std::thread::id> maker_{};
  std::atomic<bool> slow_{false};
};

TEST(Loader, ShortBatchesAreMadeByWhoAsksUntilTheyAreLong) {
  const auto dataset = std::make_shared<WatchedDataset>();
  LoaderOptions options{.microbatch = 1, .workers = 1};
  options.fields = {{.name = "number", .shape = {}, .dtype = at::kLong}};
  auto loader = *make_loader(dataset, options);
  options.workers = 0;
  const auto plain = *make_loader(std::make_shared<WatchedDataset>(), options);
  std::int64_t position = 0;
  const auto next_is_made_here = [&] {
    dataset->maker_ = std::thread::id();
    EXPECT_TRUE(at::equal(loader->get(position).fields[0], plain->get(position).fields[0])) << position;
    ++position;
    return dataset->maker_.load() == std::this_thread::get_id();
  };
  EXPECT_FALSE(next_is_made_here()) << "nothing is known yet";
  while (!next_is_made_here()) ASSERT_LT(position, 1'000'000);
  dataset->slow_ = true;
  next_is_made_here();
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(next_is_made_here()) << position;
}

TEST(Loader, AnEpochsLastStepIsSpreadOverItsMicrobatches) {
  const auto dataset = *make_dataset({.path = "synthetic:23", .fields = image_fields(4)});
  LoaderOptions options =
      loader_for({.microbatch = 3, .microbatches_per_step = 3, .workers = 0, .keep_incomplete = true});
  options.fields = image_fields(4);
  EXPECT_EQ(steps_per_epoch(*dataset, options), 3);
  auto loader = *make_loader(dataset, options);
  const std::vector<std::int64_t> rows{3, 3, 3, 3, 3, 3, 1, 2, 2, 3};  // then the next epoch
  for (std::size_t m = 0; m < rows.size(); ++m) {
    const auto position = static_cast<std::int64_t>(m);
    EXPECT_EQ(loader->extent(position).samples, rows[m]) << m;
    const Batch batch = loader->get(position);
    EXPECT_EQ(batch.fields[0].size(0), rows[m]) << m;
    EXPECT_EQ(batch.fields[1].size(0), rows[m]) << m;
  }
  options.keep_incomplete = false;
  EXPECT_EQ(steps_per_epoch(*dataset, options), 2);
  // Two left are too few for three microbatches.
  const auto less = *make_dataset({.path = "synthetic:20", .fields = image_fields(4)});
  options.keep_incomplete = true;
  EXPECT_EQ(steps_per_epoch(*less, options), 2);
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
  const auto dataset = make_dataset(
      {.path = root + "/imagenet-sample", .split = DataSplit::Train, .fields = image_fields(224, 1000)});
  ASSERT_TRUE(dataset) << to_string(dataset.problems());
  EXPECT_EQ((*dataset)->size(), 200);
  EXPECT_EQ((*dataset)->num_classes(), 200);
  for (std::int64_t i = 0; i < 200; i += 4) EXPECT_TRUE((*dataset)->get(i, 1, kAll)[0].tensor.defined());
  for (const auto& [index, bits] : (*dataset)->odd_samples()) EXPECT_EQ(bits & kDamagedSample, 0u) << index;
  fs::remove_all(root);
}

}  // namespace
}  // namespace millrace
