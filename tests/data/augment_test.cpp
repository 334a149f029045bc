// Augmentation: what `--augment` accepts, what it does to pixels, and that nothing but the seed decides it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "data/files/augmentation.h"
#include "data/loading/dataset.h"
#include "data/readers/augment_image.h"
#include "data/readers/decode_image.h"
#include "data/readers/rand_augment.h"
#include "runtime/base/files.h"
#include "runtime/base/random.h"
#include "runtime/model/mixed_targets.h"
#include "tests/data/jpeg_maker.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr std::array<char, 4> kWanted{1, 1, 1, 1}, kNoImage{0, 1, 1, 1};

TEST(AugmentSteps, AreReadWithTheirNumbers) {
  const auto steps = augment_steps_from("random-crop:2,color-jitter:0.1:0.2,random-horizontal-flip");
  ASSERT_TRUE(steps) << to_string(steps.problems());
  ASSERT_EQ(steps->size(), 3u);
  EXPECT_EQ((*steps)[0].numbers, std::vector<double>{2});
  EXPECT_EQ((*steps)[1].numbers, (std::vector<double>{0.1, 0.2, 0.4, 0.1}));
  EXPECT_EQ((*steps)[2].numbers, std::vector<double>{0.5});
  EXPECT_TRUE(augment_steps_from("none")->empty());
  EXPECT_NE(find_step(*steps, Augmentation::ColorJitter), nullptr);
  EXPECT_EQ(find_step(*steps, Augmentation::Mixup), nullptr);
}

TEST(AugmentSteps, SayWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"flip", "unknown augmentation 'flip'"},
      {"", "unknown augmentation ''"},
      {"RandAugment", "did you mean 'rand-augment'?"},
      {"random-crop:2:3", "too many numbers"},
      {"random-crop:-1", "'-1' is no PADDING"},
      {"random-crop:1.5", "needs whole numbers"},
      {"random-crop:x", "'x' is no PADDING"},
      {"random-horizontal-flip:2", "from 0 to 1"},
      {"color-jitter:0.1:0.1:0.1:0.6", "from 0 to 0.5"},
      {"random-resized-crop:0.5:0.2", "least above its most"},
      {"mixup:0", "is no ALPHA"},
      {"mixup,mixup", "comes twice"},
      {"none,mixup", "unknown augmentation 'none'"}};
  for (const auto& [text, part] : cases) {
    const auto steps = augment_steps_from(text);
    ASSERT_FALSE(steps) << text;
    EXPECT_NE(to_string(steps.problems()).find(part), std::string::npos)
        << text << to_string(steps.problems());
  }
}

at::Tensor pixel(float red, float green, float blue) {
  at::Tensor image = at::empty({3, 1, 1}, at::kFloat);
  float* value = image.mutable_data_ptr<float>();
  value[0] = red, value[1] = green, value[2] = blue;
  return image;
}

TEST(Colours, TurnAndFade) {
  at::Tensor image = pixel(1, 0, 0);
  adjust_hue_(image, 1.0f / 3);
  EXPECT_TRUE(at::allclose(image, pixel(0, 1, 0), 1e-5, 1e-5)) << image;
  adjust_hue_(image, -0.5f);
  EXPECT_TRUE(at::allclose(image, pixel(1, 0, 1), 1e-5, 1e-5)) << image;
  adjust_brightness_(image, 0.5f);
  EXPECT_TRUE(at::allclose(image, pixel(0.5, 0, 0.5), 1e-5, 1e-5)) << image;
  adjust_saturation_(image, 0);
  EXPECT_NEAR(image[0].item<float>(), (0.2989 + 0.114) / 2, 1e-5);
  EXPECT_TRUE(at::equal(image[0], image[1]));
}

TEST(RandomCrops, ComeFromEveryPlaceAndPadWithBlack) {
  at::Tensor image = at::empty({3, 3, 3}, at::kFloat);
  for (int i = 0; i < 27; ++i) image.mutable_data_ptr<float>()[i] = static_cast<float>(i % 9 + 1);
  std::set<float> centres;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    at::Tensor cut = image.clone();
    random_crop_(cut, 1, random);
    const float centre = cut[0][1][1].item<float>();
    centres.insert(centre);
    // A shift to the right leaves black on the right.
    const bool right = static_cast<int>(centre - 1) % 3 == 2;
    EXPECT_EQ(cut[2].select(1, 2).eq(0).all().item<bool>(), right);
  }
  EXPECT_EQ(centres.size(), 9u);
}

TEST(Beta, HasItsMeanAndVariance) {
  for (const double alpha : {0.2, 1.0, 4.0}) {
    RandomStream random(7);
    constexpr int kDraws = 20'000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double x = draw_beta(alpha, random);
      ASSERT_TRUE(x >= 0 && x <= 1);
      sum += x, squares += (x - 0.5) * (x - 0.5);
    }
    // Five deviations of the mean; the variance of the squares is below 1/16.
    EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.5 / std::sqrt(kDraws));
    EXPECT_NEAR(squares / kDraws, 1 / (4 * (2 * alpha + 1)), 5 * 0.25 / std::sqrt(kDraws));
  }
}

class Augmented : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-augment-XXXXXX";
    root_ = ::mkdtemp(name);
    for (int i = 0; i < 12; ++i) {
      const fs::path folder = root_ / ("class" + std::to_string(i % 3));
      fs::create_directories(folder);
      ASSERT_TRUE(
          write_file_atomically(folder / (std::to_string(i) + ".jpg"), jpeg_of(40 + i, 36, TJPF_RGB, i)));
    }
  }
  void TearDown() override { fs::remove_all(root_); }
  std::shared_ptr<const Dataset> open(const std::string& augment, DataSplit split = DataSplit::Train,
                                      bool mixes = false) {
    LayeredModel model = classifier("test", {3, 32, 32}, 3);
    if (mixes) {
      for (const char* field : {"partner", "share"}) model.fields.push_back({.name = field});
      model.fields[2].dtype = at::kLong;
    }
    fields_ = model.fields;
    const auto made =
        make_dataset({.path = root_.string(), .split = split, .fields = fields_, .augment = augment});
    EXPECT_TRUE(made) << to_string(made.problems());
    return *made;
  }
  static Sample get(const Dataset& set, std::int64_t index, std::uint64_t seed, bool mixes = false) {
    return set.get(index, seed, std::span(kWanted).first(mixes ? 4 : 2));
  }
  fs::path root_;
  std::vector<FieldSpec> fields_;
};

TEST_F(Augmented, BatchesDependOnTheSeedAlone) {
  const auto set =
      open("random-resized-crop,random-crop,random-horizontal-flip,color-jitter,rand-augment,mixup",
           DataSplit::Train, true);
  LoaderOptions options{
      .microbatch = 3, .microbatches_per_step = 2, .seed = 5, .workers = 0, .fields = fields_};
  const auto read = [&](int from) {
    auto loader = *make_loader(set, options);
    std::vector<Batch> batches;
    for (int i = from; i < 10; ++i) batches.push_back(loader->get(i));
    return batches;
  };
  const auto reference = read(0);
  EXPECT_FALSE(at::equal(reference[0].fields[0], reference[1].fields[0]));
  for (const int workers : {1, 4}) {
    options.workers = workers;
    for (const int from : {0, 7}) {
      const auto again = read(from);
      for (std::size_t i = 0; i < again.size(); ++i)
        for (std::size_t f = 0; f < 4; ++f)
          EXPECT_TRUE(at::equal(again[i].fields[f], reference[static_cast<std::size_t>(from) + i].fields[f]));
    }
  }
}

TEST_F(Augmented, EvaluationAndNoneChangeNothing) {
  const auto test = open("color-jitter,random-crop", DataSplit::Test), none = open("none");
  for (std::uint64_t seed = 0; seed < 5; ++seed)
    EXPECT_TRUE(at::equal(get(*none, 3, seed)[0].tensor, get(*test, 3, 77)[0].tensor));
}

TEST_F(Augmented, AStepDrawsTheSameBesideOthers) {
  const auto alone = open("random-horizontal-flip"), beside = open("random-crop:0,random-horizontal-flip");
  int differ = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_TRUE(at::equal(get(*alone, 3, seed)[0].tensor, get(*beside, 3, seed)[0].tensor));
    differ += !at::equal(get(*alone, 3, seed)[0].tensor, get(*alone, 3, 0)[0].tensor);
  }
  EXPECT_GT(differ, 3);
  EXPECT_LT(differ, 17);
}

TEST_F(Augmented, MixupMixesWhatItSays) {
  const auto mixed = open("mixup:1", DataSplit::Train, true), plain = open("none");
  std::set<std::int64_t> partners;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Sample sample = get(*mixed, 5, seed, true), labels = mixed->get(5, seed, kNoImage);
    const float share = sample[3].tensor.item<float>();
    EXPECT_EQ(labels[1].number, sample[1].number);
    EXPECT_EQ(labels[2].number, sample[2].number);
    EXPECT_EQ(labels[3].tensor.item<float>(), share);
    partners.insert(sample[2].number);
    // One of the images of the partner's class is the other part.
    bool found = false;
    for (std::int64_t i = 0; i < plain->size(); ++i) {
      const Sample other = get(*plain, i, 1), own = get(*plain, 5, 1);
      found =
          found || (other[1].number == sample[2].number &&
                    at::equal(own[0].tensor.mul(share).add(other[0].tensor, 1 - share), sample[0].tensor));
    }
    EXPECT_TRUE(found) << seed;
  }
  EXPECT_EQ(partners.size(), 3u);
  const Sample judged = get(*open("mixup:1", DataSplit::Test, true), 5, 1, true);
  EXPECT_EQ(judged[3].tensor.item<float>(), 1);
  EXPECT_TRUE(at::equal(judged[0].tensor, get(*plain, 5, 1)[0].tensor));
}

/// Reads float32 [3, size, size] or uint8 as the reference wrote them.
at::Tensor raw(const fs::path& path, at::ScalarType type, std::vector<std::int64_t> shape) {
  std::string bytes = *read_file(path);
  return at::from_blob(bytes.data(), shape, at::TensorOptions(type)).clone();
}

TEST_F(Augmented, PixelsArePillowsAndTorchvisions) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  const fs::path folder = root_ / "reference";
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/image_pixels.py " + folder.string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  // Lossless formats are equal; decoders of the others may round otherwise.
  const std::pair<const char*, int> files[] = {{"rgb.png", 0},       {"grey.png", 0},   {"palette.png", 0},
                                               {"lossless.webp", 0}, {"lossy.webp", 2}, {"rgb.jpg", 1},
                                               {"grey.jpg", 1},      {"cmyk.jpg", 2}};
  for (const auto& [name, most] : files) {
    RgbImage image;
    std::string error;
    ASSERT_TRUE(decode_image(*read_file(folder / name), image, error)) << name << ": " << error;
    const at::Tensor
        ours = at::from_blob(image.pixels.data(), {image.height, image.width, 3}, at::kByte).to(at::kInt),
        theirs = raw(folder / (std::string(name) + ".raw"), at::kByte, {image.height, image.width, 3});
    EXPECT_LE(ours.sub(theirs.to(at::kInt)).abs().max().item<int>(), most) << name;
  }
  int operations = 0;
  const std::tuple<const char*, void (*)(at::Tensor&, float), float> adjustments[] = {
      {"brightness", adjust_brightness_, 1.3f},
      {"contrast", adjust_contrast_, 0.6f},
      {"saturation", adjust_saturation_, 1.7f},
      {"hue", adjust_hue_, 0.2f},
      {"hue_back", adjust_hue_, -0.4f}};
  for (const auto& [name, adjust, factor] : adjustments) {
    at::Tensor image = raw(folder / "image.f32", at::kFloat, {3, 24, 20});
    adjust(image, factor);
    const at::Tensor theirs = raw(folder / (std::string(name) + ".f32"), at::kFloat, {3, 24, 20});
    EXPECT_LT(image.sub(theirs).abs().max().item<float>(), 1e-5) << name;
  }
  // Operations of RandAugment: torchvision rounds each result down to 256 levels.
  for (std::size_t i = 0; i < names_of(RandOperation{}).size(); ++i) {
    const auto operation = static_cast<RandOperation>(i);
    for (const double sign : {1.0, -1.0}) {
      const std::string name = to_string(operation) + (sign < 0 ? "_back" : "");
      if (!fs::exists(folder / (name + ".f32"))) continue;
      at::Tensor image = raw(folder / "photo.f32", at::kFloat, {3, 96, 90});
      apply_(image, operation, sign * std::stod(*read_file(folder / (to_string(operation) + ".magnitude"))));
      const at::Tensor theirs = raw(folder / (name + ".f32"), at::kFloat, {3, 96, 90});
      const at::Tensor far = image.sub(theirs).abs().gt(1.5f / 255);
      // A place between two pixels may be rounded to either.
      EXPECT_LE(far.sum().item<int>(), image.numel() / 200) << name;
      ++operations;
    }
  }
  EXPECT_EQ(operations, 23);
  // The whole of an evaluation: a square image, resampled with antialiasing and normalised.
  fs::create_directories(root_ / "square/a");
  fs::copy_file(folder / "rgb.png", root_ / "square/a/0.png");
  const auto set = make_dataset({.path = (root_ / "square").string(),
                                 .split = DataSplit::Test,
                                 .fields = classifier("test", {3, 32, 32}, 3).fields});
  ASSERT_TRUE(set) << to_string(set.problems());
  const at::Tensor theirs = raw(folder / "resized.f32", at::kFloat, {3, 32, 32});
  EXPECT_LT(get(**set, 0, 1)[0].tensor.sub(theirs).abs().max().item<float>(), 1e-4);
}

}  // namespace
}  // namespace millrace
