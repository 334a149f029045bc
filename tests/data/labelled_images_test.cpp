// Images with labels from folders of several formats and from tables, and what is held out of them.
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <ATen/ops/equal.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "data/files/images.h"
#include "data/files/webp.h"
#include "data/loading/dataset.h"
#include "data/readers/decode_image.h"
#include "runtime/base/files.h"
#include "tests/data/jpeg_maker.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr char kBoth[] = {1, 1};

class LabelledImages : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-labelled-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(root_ / name, bytes));
  }
  DatasetOptions options(DataSplit split = DataSplit::Train, int classes = 10) {
    return {
        .path = root_.string(), .split = split, .fields = classifier("test", {3, 32, 32}, classes).fields};
  }
  DatasetOptions table(const std::string& paths, DataSplit split = DataSplit::Train, int classes = 10) {
    DatasetOptions of = options(split, classes);
    of.path = "csv:";
    for (std::size_t at = 0; at <= paths.size();) {
      const std::size_t comma = std::min(paths.find(',', at), paths.size());
      of.path += (at ? "," : "") + (root_ / paths.substr(at, comma - at)).string();
      at = comma + 1;
    }
    return of;
  }
  static std::string message(const DatasetOptions& of) {
    const auto made = make_dataset(of);
    return made ? std::string("accepted") : to_string(made.problems());
  }
  static std::map<std::string, std::int64_t> labels(const Dataset& set) {
    std::map<std::string, std::int64_t> found;
    for (std::int64_t i = 0; i < set.size(); ++i)
      found[fs::path(set.name_of(i)).filename()] = set.get(i, 1, std::array<char, 2>{0, 1})[1].number;
    return found;
  }
  static std::set<std::string> names(const Dataset& set) {
    std::set<std::string> found;
    for (std::int64_t i = 0; i < set.size(); ++i) found.insert(set.name_of(i));
    return found;
  }
  fs::path root_;
};

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

/// 8 x 6 pixels (30 x, 40 y, 7 x y), as Pillow wrote them without loss.
std::string webp_of_pillow() {
  constexpr std::string_view kHex =
      "5249464630000000574542505650384c230000002f07400100b93244f43f7611d1ff8082b66d98c0297f8c6f63301e73101300"
      "e4"
      "05fa3f00";
  return from_hex(kHex);
}

TEST(WebP, HasThePixelsThatPillowWrote) {
  const auto image = decode_webp(webp_of_pillow(), "a.webp");
  ASSERT_TRUE(image) << to_string(image.problems());
  ASSERT_EQ(image->width, 8);
  ASSERT_EQ(image->height, 6);
  for (int y = 0; y < 6; ++y) {
    for (int x = 0; x < 8; ++x) {
      const int expected[] = {30 * x, 40 * y, 7 * x * y};
      for (int c = 0; c < 3; ++c)
        EXPECT_EQ(static_cast<unsigned char>(image->pixels[static_cast<std::size_t>((y * 8 + x) * 3 + c)]),
                  expected[c] % 256);
    }
  }
}

TEST(WebP, AFileThatIsCutAnywhereIsAProblem) {
  const std::string whole = webp_of_pillow();
  for (std::size_t length = 0; length + 4 < whole.size(); ++length)
    EXPECT_FALSE(decode_webp(whole.substr(0, length), "a.webp")) << length;
}

/// A chunk of PNG.
std::string chunk(const std::string& kind, const std::string& data) {
  const auto big_endian = [](std::size_t value) {
    return std::string{static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                       static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  const std::string checked = kind + data;
  return big_endian(data.size()) + checked +
         big_endian(
             ::crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size())));
}

/// A PNG of `width` pixels in one row. `before` is chunks before the samples, `after` bytes behind the end.
std::string png_of(int width, int depth, int colour_type, const std::string& samples,
                   const std::string& before = "", const std::string& after = "", int height = 1) {
  const std::string row = '\0' + samples;
  std::string packed(1000, '\0');
  uLongf size = packed.size();
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(row.data()),
             static_cast<uLong>(row.size()));
  packed.resize(size);
  std::string head{0, 0, 0, static_cast<char>(width), 0,
                   0, 0, 1, static_cast<char>(depth), static_cast<char>(colour_type),
                   0, 0, 0};
  head[4] = static_cast<char>(height >> 24), head[5] = static_cast<char>(height >> 16),
  head[6] = static_cast<char>(height >> 8), head[7] = static_cast<char>(height);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", head) + before + chunk("IDAT", packed) + chunk("IEND", "") +
         after;
}

/// Returns "WIDTHxHEIGHT: bytes" of the RGB pixels, or the error.
std::string pixels_of(const std::string& bytes) {
  RgbImage image;
  std::string error;
  if (!decode_image(bytes, image, error)) return error;
  std::string text = std::to_string(image.width) + "x" + std::to_string(image.height) + ":";
  for (int i = 0; i < 3 * image.width * image.height; ++i)
    text += " " + std::to_string(image.pixels[static_cast<std::size_t>(i)]);
  return text;
}

const std::string kTurned =
    from_hex("4d4d002a00000008000101120003000000010006000000000000");  // orientation 6

TEST(Pictures, SamplesAreAsTheyAreStored) {
  const std::string linear = chunk("gAMA", from_hex("000186a0"));
  const std::string half =
      from_hex("524946461e000000574542505650384c110000002f000000100750b2ca14b9808188e87f0000");
  const struct {
    const char* what;
    std::string file, pixels;
  } cases[] = {
      {"grey of 16 bits: the high byte", png_of(2, 16, 0, from_hex("64640064")), "2x1: 100 100 100 0 0 0"},
      {"RGB of 16 bits", png_of(1, 16, 2, from_hex("3232646400c8")), "1x1: 50 100 0"},
      {"gamma changes nothing", png_of(1, 8, 2, from_hex("3264c8"), linear), "1x1: 50 100 200"},
      {"gamma of 16 bits", png_of(1, 16, 0, from_hex("6464"), linear), "1x1: 100 100 100"},
      {"half transparent", png_of(1, 8, 6, from_hex("3264c880")), "1x1: 25 50 100"},
      {"half transparent, 16 bits", png_of(1, 16, 6, from_hex("32006400c8008000")), "1x1: 25 50 100"},
      {"half transparent grey", png_of(1, 8, 4, from_hex("6480")), "1x1: 50 50 50"},
      {"half transparent colour of a palette",
       png_of(1, 8, 3, from_hex("00"), chunk("PLTE", from_hex("3264c8")) + chunk("tRNS", "\x80")),
       "1x1: 25 50 100"},
      {"a transparent colour",
       png_of(2, 8, 2, from_hex("3264c83264c9"), chunk("tRNS", from_hex("0032006400c8"))),
       "2x1: 0 0 0 50 100 201"},
      {"half transparent WebP", half, "1x1: 25 50 100"},
      {"bytes behind the end", png_of(1, 8, 0, "d", "", "\n"), "1x1: 100 100 100"},
      {"EXIF turns no PNG", png_of(2, 8, 0, from_hex("0a14"), chunk("eXIf", kTurned)),
       "2x1: 10 10 10 20 20 20"},
  };
  for (const auto& c : cases) EXPECT_EQ(pixels_of(c.file), c.pixels) << c.what;
  // EXIF turns no WebP and no JPEG.
  const std::string webp = webp_of_pillow(), jpeg = jpeg_of(24, 8, TJPF_RGB, 1);
  std::string body = "WEBPVP8X" + from_hex("0a00000008000000070000050000") + webp.substr(12) + "EXIF" +
                     std::string{static_cast<char>(kTurned.size()), 0, 0, 0} + kTurned;
  EXPECT_EQ(pixels_of("RIFF" + std::string{static_cast<char>(body.size()), 0, 0, 0} + body), pixels_of(webp));
  const std::string exif = "Exif" + std::string(2, '\0') + kTurned;
  EXPECT_EQ(pixels_of(jpeg.substr(0, 2) + "\xff\xe1" + '\0' + static_cast<char>(exif.size() + 2) + exif +
                      jpeg.substr(2)),
            pixels_of(jpeg));
}

TEST(Pictures, ADamagedPngIsRefused) {
  const std::string samples = from_hex("000102010200"),
                    palette = chunk("PLTE", from_hex("010203040506070809"));
  const std::string whole = png_of(6, 8, 3, samples, palette + chunk("tRNS", "\x80\x40"));
  ASSERT_EQ(pixels_of(whole).substr(0, 4), "6x1:");
  for (std::size_t length = 8; length < whole.size(); ++length)
    EXPECT_NE(pixels_of(whole.substr(0, length)).find("its end is missing"), std::string::npos) << length;
  const std::size_t transparency = whole.find("tRNS");
  for (std::size_t i = 8; i < whole.size(); ++i) {
    if (i >= transparency && i < transparency + 4) continue;  // a chunk of another name changes nothing
    std::string broken = whole;
    broken[i] = static_cast<char>(broken[i] ^ 1);
    EXPECT_NE(pixels_of(broken).find("cannot be decoded"), std::string::npos) << i;
  }
  EXPECT_NE(pixels_of(png_of(6, 8, 3, samples.substr(1), palette)).find("Not enough image data"),
            std::string::npos);
  EXPECT_NE(pixels_of(png_of(100, 8, 0, samples, "", "", 1'000'000)).find("more than 64 megapixels"),
            std::string::npos);
}

TEST(Pictures, EveryFormIsAsPillowReadsIt) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  char name[] = "/tmp/millrace-pictures-XXXXXX";
  const fs::path folder = ::mkdtemp(name);
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/png_forms.py " + folder.string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".raw") continue;
    const std::string picture = entry.path().stem(), raw = *read_file(entry.path());
    RgbImage image;
    std::string error;
    ASSERT_TRUE(decode_image(*read_file(folder / picture), image, error)) << picture << ": " << error;
    ASSERT_EQ(raw.size(), static_cast<std::size_t>(3 * image.width * image.height)) << picture;
    int most = 0;
    for (std::size_t i = 0; i < raw.size(); ++i)
      most = std::max(most, std::abs(static_cast<unsigned char>(raw[i]) - image.pixels[i]));
    EXPECT_LE(most, picture.ends_with(".jpeg") ? 1 : 0) << picture;
    ++compared;
  }
  EXPECT_EQ(compared, 124);
  fs::remove_all(folder);
}

TEST_F(LabelledImages, OfAllFormatsStandInOneClassFolder) {
  const Image plain{.height = 32, .width = 32, .channels = 3, .pixels = std::string(32 * 32 * 3, '\x40')};
  put("train/a/0.png", encode_png(plain));
  put("train/a/1.webp", webp_of_pillow());
  put("train/a/2.jpg", jpeg_of(40, 40, TJPF_GRAY, 1));
  put("train/a/3.JPEG", jpeg_of(40, 40, TJPF_CMYK, 1));
  put("train/b/a_png.jpg", encode_png(plain));  // ImageNet has one too
  put("test/b/cut.webp", webp_of_pillow().substr(0, 40));
  put("test/b/whole.png", encode_png(plain));
  const auto train = *make_dataset(options()), test = *make_dataset(options(DataSplit::Test));
  EXPECT_EQ(labels(*train), (std::map<std::string, std::int64_t>{
                                {"0.png", 0}, {"1.webp", 0}, {"2.jpg", 0}, {"3.JPEG", 0}, {"a_png.jpg", 1}}));
  for (std::int64_t i = 0; i < train->size(); ++i) train->get(i, 1, kBoth);
  EXPECT_EQ(train->odd_samples(), (std::map<std::int64_t, unsigned>{{2, kGreySample}, {3, kCmykSample}}));
  EXPECT_TRUE(at::equal(test->get(0, 1, kBoth)[0].tensor, test->get(1, 1, kBoth)[0].tensor));
  EXPECT_EQ(test->odd_samples(), (std::map<std::int64_t, unsigned>{{0, kDamagedSample}}));
}

/// torchvision's ImageFolder: every folder below a class, links to folders too, in the order of sorted().
TEST_F(LabelledImages, FoldersBelowAClassFolderBelongToTheClass) {
  const std::vector<std::string> expected{"a/9.jpg",          "a/images/0.jpg",  "a/images/again.jpg/8.jpg",
                                          "a/images-x/0.jpg", "b/deep/er/0.png", "b/link/0.jpg"};
  for (const std::string& name : expected)
    if (!name.starts_with("b/link")) put("train/" + name, plain_jpeg(32, 32, 0));
  fs::create_directory_symlink(root_ / "train/a/images-x", root_ / "train/b/link");
  fs::create_directory_symlink("../..", root_ / "train/b/deep/loop");
  for (const char* name : {"a/notes.txt", "a/images/scan.BMP", "a/images/._0.jpg", "b/.DS_Store",
                           "__MACOSX/a/._9.jpg", "labels.csv"})
    put(std::string("train/") + name, "no image");
  const auto set = make_dataset(options());
  ASSERT_TRUE(set) << to_string(set.problems());
  std::vector<std::string> found;
  for (std::int64_t i = 0; i < (*set)->size(); ++i) {
    found.push_back((*set)->name_of(i).substr((root_ / "train/").string().size()));
    EXPECT_EQ((*set)->get(i, 1, std::array<char, 2>{0, 1})[1].number, found.back()[0] - 'a');
  }
  // Text orders folders: '-' is below '/'.
  EXPECT_EQ(found, (std::vector<std::string>{expected[0], expected[1], expected[3], expected[2], expected[4],
                                             expected[5]}));
  EXPECT_EQ((*set)->left_out(), 7);
  std::string notes;
  for (const std::string& note : (*set)->notes()) notes += note + "\n";
  for (const char* part :
       {"5 images in folders below class folders", "2 files and folders that macOS added to an archive",
        "1 hidden files and folders: ", "1 files beside the class folders: ", "1 files that are not images: ",
        "1 images in formats that are not read: ", "1 links to a folder around them: "})
    EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
  // A folder too far up would be one class of everything.
  fs::create_directories(root_ / "up/set");
  fs::rename(root_ / "train/a", root_ / "up/set/a");
  fs::rename(root_ / "train/b", root_ / "up/set/b");
  DatasetOptions up = options();
  up.path = (root_ / "up").string();
  EXPECT_NE(message(up).find("has one class folder, and all of its images lie in"), std::string::npos)
      << message(up);
}

TEST_F(LabelledImages, TinyImageNetIsReadAsItsArchiveHasIt) {
  const std::string train_n2 = "train/n2/images/n2_0.JPEG";
  for (const std::string& name :
       {std::string("train/n1/images/n1_0.JPEG"), train_n2, std::string("val/images/val_0.JPEG"),
        std::string("val/images/val_1.JPEG"), std::string("val/images/rest.JPEG"),
        std::string("test/images/test_0.JPEG")})
    put(name, plain_jpeg(64, 64, 0));
  put("train/n1/n1_boxes.txt", "n1_0.JPEG\t0\t0\t9\t9\n");
  put("val/val_annotations.txt", "val_0.JPEG\tn2\t0\t0\t9\t9\r\nval_1.JPEG\tn1\t0\t0\t9\t9\r\n");
  const auto train = make_dataset(options()), test = make_dataset(options(DataSplit::Test));
  ASSERT_TRUE(train) << to_string(train.problems());
  ASSERT_TRUE(test) << to_string(test.problems());
  EXPECT_EQ(labels(**train), (std::map<std::string, std::int64_t>{{"n1_0.JPEG", 0}, {"n2_0.JPEG", 1}}));
  EXPECT_EQ(labels(**test), (std::map<std::string, std::int64_t>{{"val_0.JPEG", 1}, {"val_1.JPEG", 0}}));
  EXPECT_EQ((*train)->left_out(), 1);
  EXPECT_EQ((*test)->left_out(), 1);
  EXPECT_NE((*test)->notes().at(0).find("1 folders of evaluation beside"), std::string::npos)
      << (*test)->notes().at(0);
  put("val/val_annotations.txt", "val_0.JPEG\tn2\nval_1.JPEG\tn3\nval_7.JPEG\tn1\nval_0.JPEG\tn1\n");
  const std::string refused = message(options(DataSplit::Test));
  EXPECT_NE(refused.find("val_annotations.txt:2: 'val_1.JPEG\\x09n3' has no class of training"),
            std::string::npos)
      << refused;
  EXPECT_NE(refused.find("val_annotations.txt:3: there is no file"), std::string::npos) << refused;
  EXPECT_NE(refused.find("val_annotations.txt:4: val_0.JPEG has a line already"), std::string::npos)
      << refused;
}

TEST_F(LabelledImages, AHoldoutDividesEachClassAndForgetsNothing) {
  for (int i = 0; i < 20; ++i) put("a/" + std::to_string(i) + ".jpg", plain_jpeg(32, 32, 0));
  for (int i = 0; i < 10; ++i) put("b/" + std::to_string(i) + ".jpg", plain_jpeg(32, 32, 1));
  DatasetOptions train = options(), test = options(DataSplit::Test);
  const auto all = names(**make_dataset(train));
  EXPECT_NE((*make_dataset(test))->notes().at(0).find("--holdout 0.1"), std::string::npos);
  train.holdout = test.holdout = 0.2;
  test.seed = 9;  // of the run; it must not matter
  const auto kept = names(**make_dataset(train)), held = names(**make_dataset(test));
  EXPECT_EQ(kept.size(), 24u);
  EXPECT_EQ(held.size(), 6u);
  auto both = kept;
  both.insert(held.begin(), held.end());
  EXPECT_EQ(both, all);
  const auto in_a = std::ranges::count_if(
      held, [](const std::string& name) { return name.find("/a/") != std::string::npos; });
  EXPECT_EQ(in_a, 4);
  EXPECT_EQ(names(**make_dataset(test)), held);
  test.holdout_seed = 1;
  EXPECT_NE(names(**make_dataset(test)), held);
  // A folder elsewhere with the same names is divided alike, and a new file changes at most one other's lot.
  test.holdout_seed = 0;
  put("a/new.jpg", plain_jpeg(32, 32, 0));
  std::size_t gone = 0;
  const auto later = names(**make_dataset(test));
  for (const std::string& name : held) gone += !later.contains(name);
  EXPECT_LE(gone, 1u);
}

TEST_F(LabelledImages, AHoldoutThatSaysNothingIsRefused) {
  for (const char* name : {"a/0.jpg", "a/1.jpg", "b/0.jpg"}) put(name, plain_jpeg(32, 32, 0));
  DatasetOptions of = options(DataSplit::Test);
  of.holdout = 0.1;
  EXPECT_NE(message(of).find("leaves no images to evaluate on"), std::string::npos) << message(of);
  of = options();
  of.holdout = 0.99;
  EXPECT_NE(message(of).find("leaves no images to train on"), std::string::npos) << message(of);
  fs::create_directories(root_ / "train");
  fs::rename(root_ / "a", root_ / "train/a");
  put("test/a/0.jpg", plain_jpeg(32, 32, 0));
  of.holdout = 0.5;
  EXPECT_NE(message(of).find("has images to evaluate on already"), std::string::npos) << message(of);
  of.path = "synthetic";
  EXPECT_NE(message(of).find("is for images with labels"), std::string::npos) << message(of);
}

TEST_F(LabelledImages, ATableNamesFilesAndLabels) {
  for (const char* name : {"img/x.jpg", "img/y.png", "img/z, z.jpg", "img/rest.jpg"})
    put(name, plain_jpeg(32, 32, 0));
  put("labels.csv",
      "\xef\xbb\xbfid,split,label\r\nimg/x.jpg,1,dog\r\nimg/y.png,1,cat\r\n\"img/z, z.jpg\",1,dog\r\n");
  put("test.csv", "img/rest.jpg,cat\n");
  const auto train = *make_dataset(table("labels.csv,test.csv")),
             test = *make_dataset(table("labels.csv,test.csv", DataSplit::Test));
  EXPECT_EQ(labels(*train),
            (std::map<std::string, std::int64_t>{{"x.jpg", 1}, {"y.png", 0}, {"z, z.jpg", 1}}));
  EXPECT_EQ(labels(*test), (std::map<std::string, std::int64_t>{{"rest.jpg", 0}}));
  EXPECT_EQ(test->num_classes(), 2);
  EXPECT_TRUE(train->notes().empty()) << train->notes().front();
  EXPECT_EQ(train->get(0, 1, kBoth)[0].tensor.sizes().vec(), (std::vector<std::int64_t>{3, 32, 32}));
  // Without the second table, its image has no row, and nothing evaluates.
  EXPECT_EQ(*make_dataset(table("labels.csv", DataSplit::Test)), nullptr);
  const auto alone = *make_dataset(table("labels.csv"));
  ASSERT_EQ(alone->notes().size(), 1u);
  EXPECT_NE(alone->notes()[0].find("left out: 1 images without a row"), std::string::npos)
      << alone->notes()[0];
  EXPECT_NE(alone->notes()[0].find("rest.jpg"), std::string::npos) << alone->notes()[0];
  DatasetOptions divided = table("labels.csv", DataSplit::Test);
  divided.holdout = 0.5;
  EXPECT_EQ((*make_dataset(divided))->size(), 2);  // one of two dogs, and half of a cat is one
}

TEST_F(LabelledImages, NumbersInATableAreTheClasses) {
  put("x.jpg", plain_jpeg(32, 32, 0));
  put("y.jpg", plain_jpeg(32, 32, 1));
  put("labels.csv", "x.jpg,7\ny.jpg,2\n");
  EXPECT_EQ(labels(**make_dataset(table("labels.csv"))),
            (std::map<std::string, std::int64_t>{{"x.jpg", 7}, {"y.jpg", 2}}));
  const std::string refused = message(table("labels.csv", DataSplit::Train, 5));
  EXPECT_NE(refused.find("labels.csv:1: has 8 classes, the model 5"), std::string::npos) << refused;
}

TEST_F(LabelledImages, WhatIsWrongWithATableIsSaidWithItsLine) {
  put("x.jpg", plain_jpeg(32, 32, 0));
  put("y.jpg", plain_jpeg(32, 32, 0));
  put("train.csv", "file,label\nx.jpg,dog\n");
  const struct {
    std::string text, message;
  } cases[] = {
      {"file,label\nx.jpg,dog\nnone.jpg,dog\n", "labels.csv:3: there is no file"},
      {"file,label\nx.jpg\n", "labels.csv:2: has 1 columns"},
      {"file,label\nx.jpg,\n", "labels.csv:2: x.jpg has no label"},
      {"file,label\n,dog\n", "labels.csv:2: names no file"},
      {"file,label\nx.jpg,0\ny.jpg,-100\n", "labels.csv:3: has the label '-100', which is no class number"},
      {"file,label\nx.jpg,dog\nx.jpg,cat\n", "labels.csv:3: x.jpg stands in line 2 already"},
      {"file,label\nx.jpg,dog\n./x.jpg,cat\n", "labels.csv:3: ./x.jpg stands in line 2 already"},
      {"file,label\nsub/../x.jpg,dog\nx.jpg,dog\n", "labels.csv:3: x.jpg stands in line 2 already"},
      {"file,label\n", "labels.csv: has no rows"},
      {"", "labels.csv: has no rows"},
      {"a,b,c\nx.jpg,dog,1\n", "has the columns a, b, c"},
  };
  for (const auto& c : cases) {
    put("labels.csv", c.text);
    const std::string found = message(table("labels.csv"));
    EXPECT_NE(found.find(c.message), std::string::npos) << c.text << found;
  }
  put("labels.csv", "x.jpg,dog\ny.jpg,wolf\n");
  const std::string unknown = message(table("train.csv,labels.csv", DataSplit::Test));
  EXPECT_NE(unknown.find("labels.csv:2: the label 'wolf' is none of the training table"), std::string::npos)
      << unknown;
  EXPECT_NE(message(table("none.csv")).find("none.csv"), std::string::npos);
  EXPECT_NE(message(table("train.csv,train.csv,train.csv")).find("names 3 tables"), std::string::npos);
}

}  // namespace
}  // namespace millrace
