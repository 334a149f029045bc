// CIFAR's and MNIST's own files, and WebDataset's archives. The archives are made by tar itself.
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <ATen/ops/equal.h>

#include <cstdlib>
#include <filesystem>

#include "data/files/gzip.h"
#include "data/files/images.h"
#include "data/files/tar.h"
#include "data/loading/dataset.h"
#include "runtime/base/files.h"
#include "tests/data/jpeg_maker.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

class PackedImages : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-packed-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(root_ / name, bytes));
  }
  Result<std::shared_ptr<const Dataset>> open(DataSplit split = DataSplit::Train, int classes = 10,
                                              std::string path = {}, int size = 32) {
    if (path.empty()) path = root_.string();
    return make_dataset(
        {.path = path, .split = split, .fields = classifier("test", {3, size, size}, classes).fields});
  }
  std::string message(DataSplit split = DataSplit::Train, int classes = 10, const std::string& path = {}) {
    const auto made = open(split, classes, path);
    return made ? std::string("accepted") : to_string(made.problems());
  }
  void refuses(const std::string& part, DataSplit split = DataSplit::Train, int classes = 10,
               const std::string& path = {}) {
    const std::string found = message(split, classes, path);
    EXPECT_NE(found.find(part), std::string::npos) << part << "\n" << found;
  }
  static Sample sample(const Dataset& set, std::int64_t index) {
    return set.get(index, 1, std::array<char, 2>{1, 1});
  }
  /// Makes an archive of files of the folder, in this order, in the format that GNU tar calls so.
  void tar(const std::string& name, const std::string& files, const std::string& format = "gnu") {
    const std::string command =
        "cd " + root_.string() + " && tar --format=" + format + " -cf " + name + " " + files;
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  fs::path root_;
};

/// A record of CIFAR: labels, then a red, a green and a blue plane.
std::string record(const std::string& labels, char red, char green, char blue) {
  return labels + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

/// What a plane of this value becomes: ImageNet's mean and deviation.
float normalised(int value, int channel) {
  constexpr float kMean[] = {0.485f, 0.456f, 0.406f}, kDeviation[] = {0.229f, 0.224f, 0.225f};
  return (static_cast<float>(value) / 255 - kMean[channel]) / kDeviation[channel];
}

TEST_F(PackedImages, Cifar10HasItsPlanesAndLabels) {
  for (int i = 1; i <= 5; ++i)
    put("data_batch_" + std::to_string(i) + ".bin",
        record({static_cast<char>(i)}, 10, 20, 30) + record({'\x09'}, '\xff', 0, 0));
  put("test_batch.bin", record({'\x04'}, 100, 50, '\xc8'));
  const auto train = *open(), test = *open(DataSplit::Test);
  EXPECT_EQ(train->size(), 10);
  EXPECT_EQ(train->num_classes(), 10);
  EXPECT_EQ(sample(*train, 4)[1].number, 3);
  EXPECT_EQ(sample(*train, 9)[1].number, 9);
  EXPECT_EQ(train->name_of(9), (root_ / "data_batch_5.bin:1").string());
  const Sample one = sample(*test, 0);
  EXPECT_EQ(one[1].number, 4);
  for (int c = 0; c < 3; ++c) {
    const int value[] = {100, 50, 200};
    EXPECT_LT(one[0].tensor.select(0, c).sub(normalised(value[c], c)).abs().max().item<float>(), 1e-5);
  }
  EXPECT_NE(train->fingerprint(), test->fingerprint());
}

TEST_F(PackedImages, Cifar100HasFineAndCoarseLabels) {
  put("train.bin", record({'\x03', '\x4d'}, 1, 2, 3) + record({'\x13', '\x63'}, 1, 2, 3));
  put("test.bin", record({'\x01', '\x02'}, 1, 2, 3));
  put("fine_label_names.txt", "apple\n");
  EXPECT_EQ(sample(**open(DataSplit::Train, 100), 0)[1].number, 77);
  EXPECT_EQ(sample(**open(DataSplit::Train, 20), 0)[1].number, 3);
  EXPECT_EQ(sample(**open(DataSplit::Test, 20), 0)[1].number, 1);
  refuses("has 100 classes, the model 10", DataSplit::Train, 10);
}

TEST_F(PackedImages, DamagedCifarIsNamed) {
  for (int i = 1; i <= 4; ++i) put("data_batch_" + std::to_string(i) + ".bin", record({'\x01'}, 1, 2, 3));
  refuses("data_batch_5.bin");  // is missing
  put("data_batch_5.bin", record({'\x01'}, 1, 2, 3).substr(0, 2000));
  refuses("has 2000 bytes, which are no whole records of 3073");
  put("data_batch_5.bin", record({'\x01'}, 1, 2, 3) + record({'\x0a'}, 1, 2, 3));
  refuses("data_batch_5.bin:1: has the label 10, CIFAR-10 has labels 0 to 9");
}

std::string idx(const std::vector<int>& sizes, const std::string& values) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const int size : sizes)
    bytes += {'\0', '\0', static_cast<char>(size >> 8), static_cast<char>(size & 255)};
  return bytes + values;
}

std::string gzip_of(const std::string& bytes) {
  std::string packed(bytes.size() + 100, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST_F(PackedImages, MnistIsReadPlainAndPackedAndNotMirrored) {
  std::string left(28 * 28, '\0');  // white on the left half
  for (std::size_t i = 0; i < left.size(); ++i)
    if (i % 28 < 14) left[i] = '\xff';
  put("train-images-idx3-ubyte.gz", gzip_of(idx({3, 28, 28}, left + left + left)));
  put("train-labels-idx1-ubyte.gz", gzip_of(idx({3}, std::string("\x07\x00\x02", 3))));
  put("t10k-images.idx3-ubyte", idx({1, 28, 28}, left));
  put("t10k-labels.idx1-ubyte", idx({1}, "\x02"));
  const auto train = *open(), test = *open(DataSplit::Test);
  ASSERT_EQ(train->size(), 3);
  EXPECT_EQ(train->num_classes(), 8);
  EXPECT_EQ(sample(*train, 0)[1].number, 7);
  EXPECT_EQ(sample(*test, 0)[1].number, 2);
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_TRUE(
        at::equal(train->get(0, seed, std::array<char, 2>{1, 1})[0].tensor, sample(*test, 0)[0].tensor));
  EXPECT_NEAR(sample(*train, 0)[0].tensor[1][16][4].item<float>(), normalised(255, 1), 1e-5);
  EXPECT_NEAR(sample(*train, 0)[0].tensor[1][16][28].item<float>(), normalised(0, 1), 1e-5);
}

TEST_F(PackedImages, DamagedIdxIsNamed) {
  const std::string images = idx({2, 4, 4}, std::string(32, 'x')), labels = idx({2}, "\x01\x02");
  put("train-labels-idx1-ubyte", labels);
  refuses("has no train-images file beside the other");
  put("train-images-idx3-ubyte", images.substr(0, 40));
  refuses("has 24 bytes of values, its header says 32");
  put("train-images-idx3-ubyte", labels);
  refuses("is no IDX file of bytes with 3 dimensions");
  put("train-images-idx3-ubyte", idx({3, 4, 4}, std::string(48, 'x')));
  refuses("has 2 labels for the 3 images");
  put("train-images-idx3-ubyte", images);
  refuses("has 3 classes, the model 2", DataSplit::Train, 2);
  put("t10k-images-idx3-ubyte", images);
  put("t10k-labels-idx1-ubyte", idx({2}, "\x01\x05"));
  refuses("is the label 5, which the training set does not have", DataSplit::Test);
  fs::remove(root_ / "train-images-idx3-ubyte");
  put("train-images-idx3-ubyte.gz", gzip_of(images).substr(0, 20));
  refuses("the gzip stream is cut off");
  std::string damaged = gzip_of(images);
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);
  put("train-images-idx3-ubyte.gz", damaged);
  refuses("the gzip stream is damaged");
  put("train-images-idx3-ubyte.gz", idx({200, 200, 200}, ""));  // not packed at all, and a bomb by its header
  refuses("has 0 bytes of values, its header says 8000000");
}

TEST_F(PackedImages, ArchivesOfWebDatasetAreReadInTheirOrder) {
  const std::string deep = "a/" + std::string(120, 'n') + "/";  // a name that ustar cannot hold
  for (int i = 0; i < 3; ++i) {
    const std::string key = (i == 2 ? deep : "") + std::to_string(i);
    put(key + ".jpg", plain_jpeg(32, 32, i));
    put(key + ".cls", std::to_string(2 - i) + "\n");
    put(key + ".json", "{}");
  }
  put("val.png", encode_png({.height = 8, .width = 8, .channels = 3, .pixels = std::string(192, 'x')}));
  put("val.cls", "1");
  tar("train-000.tar", "0.jpg 0.cls 0.json 1.cls 1.jpg");
  for (const std::string format : {"gnu", "pax"}) {
    tar("train-001.tar", deep + "2.jpg " + deep + "2.cls", format);
    tar("val.tar", "val.png val.cls", "ustar");
    const std::string path =
        "webdataset:" + (root_ / "train-{000..001}.tar").string() + "," + (root_ / "val.tar").string();
    const auto train = open(DataSplit::Train, 10, path);
    ASSERT_TRUE(train) << to_string(train.problems());
    ASSERT_EQ((*train)->size(), 3);
    EXPECT_EQ((*train)->num_classes(), 3);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(sample(**train, i)[1].number, 2 - i);
      // The channel of the image's colour is above the others.
      const at::Tensor means = sample(**train, i)[0].tensor.mean({1, 2});
      EXPECT_EQ(means.argmax().item<int>(), i);
    }
    EXPECT_EQ((*train)->name_of(2), (root_ / ("train-001.tar:" + deep + "2.jpg")).string());
    EXPECT_EQ((*open(DataSplit::Test, 10, path))->size(), 1);
  }
  fs::create_directories(root_ / "shards");
  fs::rename(root_ / "train-001.tar", root_ / "shards/b.tar");
  fs::rename(root_ / "train-000.tar", root_ / "shards/a.tar");
  const auto folder = *open(DataSplit::Train, 10, "webdataset:" + (root_ / "shards").string());
  EXPECT_EQ(folder->size(), 3);
  EXPECT_EQ(*open(DataSplit::Test, 10, "webdataset:" + (root_ / "shards").string()), nullptr);
}

/// WebDataset's rule: a key ends at the first dot of a file's name, and all behind it is the field.
TEST_F(PackedImages, AKeyEndsAtTheFirstDotOfAName) {
  for (const std::string key : {"0", "v1.2/1"}) {
    put(key + ".jpg", plain_jpeg(32, 32, 1));
    put(key + ".cls", "2");
    for (const char* other : {".seg.png", ".seg.jpg", ".coarse.cls", ".json"}) put(key + other, "no image");
  }
  put("0.PNG", plain_jpeg(32, 32, 1));
  for (const char* name :
       {"README", "about.txt", "._0.jpg", "__MACOSX/0.jpg", "cat v1.0 3.jpg", "cat v1.0 3.cls"})
    put(name, "");
  fs::create_symlink("0.jpg", root_ / "link.jpg");
  const auto data = [&](const std::string& rest) { return "webdataset:" + (root_ / rest).string(); };
  tar("set.tar",
      "README about.txt ._0.jpg __MACOSX/0.jpg link.jpg 0.jpg 0.seg.jpg 0.seg.png 0.cls 0.coarse.cls 0.json "
      "v1.2/1.seg.png v1.2/1.coarse.cls v1.2/1.cls v1.2/1.jpg");
  const auto set = open(DataSplit::Train, 10, data("set.tar"));
  ASSERT_TRUE(set) << to_string(set.problems());
  ASSERT_EQ((*set)->size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(sample(**set, i)[1].number, 2);
    EXPECT_EQ(sample(**set, i)[0].tensor.mean({1, 2}).argmax().item<int>(), 1);
  }
  EXPECT_TRUE((*set)->odd_samples().empty());
  EXPECT_EQ((*set)->left_out(), 11);
  std::string notes;
  for (const std::string& note : (*set)->notes()) notes += note + "\n";
  for (const char* part :
       {"1 files without a dot in their names", "1 files of keys with neither an image nor a class",
        "2 files and folders that macOS added", "1 links, devices", "6 files of fields that are not read"})
    EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
  const std::pair<const char*, const char*> refused[] = {
      {"'cat v1.0 3.jpg' 'cat v1.0 3.cls'", "is the field '0 3.jpg' of the key 'cat v1', which has neither"},
      {"0.jpg 0.PNG 0.cls", "0.PNG: is another image of the key '0' beside 0.jpg"},
      {"--hard-dereference 0.jpg 0.cls 0.cls", "0.cls: is another class of the key '0' beside 0.cls"},
      {"0.jpg 0.coarse.cls", "0.jpg: has no label"},
      {"0.seg.jpg 0.cls", "0.cls: has no image"},
      {"link.jpg 0.cls", "0.cls: has no image"}};
  for (const auto& [files, part] : refused) {
    tar("set.tar", files);
    refuses(part, DataSplit::Train, 10, data("set.tar"));
  }
}

TEST_F(PackedImages, GluedArchivesAreReadToTheirEnd) {
  for (const char* key : {"0", "1"}) {
    put(std::string(key) + ".jpg", plain_jpeg(32, 32, 1));
    put(std::string(key) + ".cls", "2");
  }
  tar("a.tar", "0.jpg 0.cls");
  tar("b.tar", "1.jpg 1.cls");
  const std::string a = *read_file(root_ / "a.tar"), b = *read_file(root_ / "b.tar");
  const auto data = "webdataset:" + (root_ / "glued/").string();
  put("glued/ab.tar", a + a + b);  // the seam parts two samples of one key
  put("glued/c.tar", a + std::string(700, '\0'));
  put("glued/d.tar.gz", gzip_of(a));
  const auto set = open(DataSplit::Train, 10, data);
  ASSERT_TRUE(set) << to_string(set.problems());
  EXPECT_EQ((*set)->size(), 4);
  EXPECT_EQ(sample(**set, 2)[1].number, 2);
  EXPECT_EQ((*set)->left_out(), 1);
  const std::vector<std::string> notes = (*set)->notes();
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_NE(notes[0].find("1 keys occur again in their archive"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("1 keys occur in several archives"), std::string::npos) << notes[1];
  EXPECT_NE(notes[2].find("1 files that are not .tar archives"), std::string::npos) << notes[2];
  for (const std::string& tail : {std::string("x"), std::string(600, 'x'), b.substr(0, 700)}) {
    put("glued/ab.tar", a + tail);
    refuses("glued/ab.tar: ", DataSplit::Train, 10, data);
  }
}

TEST_F(PackedImages, APointerOfGitLfsInAnArchiveIsCalledOne) {
  put("0.jpg",
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 9\n");
  put("0.cls", "0");
  tar("a.tar", "0.jpg 0.cls");
  const auto members = list_tar(root_ / "a.tar");
  ASSERT_TRUE(members) << to_string(members.problems());
  const auto found = read_tar_member(root_ / "a.tar", members->front());
  ASSERT_FALSE(found);
  EXPECT_NE(to_string(found.problems()).find("a.tar:0.jpg: is a pointer of Git LFS"), std::string::npos);
}

TEST_F(PackedImages, DamagedArchivesAreNamed) {
  put("0.jpg", plain_jpeg(32, 32, 0));
  put("0.cls", "0");
  put("1.jpg", plain_jpeg(32, 32, 0));
  put("1.cls", "one");
  tar("good.tar", "0.jpg 0.cls");
  tar("other.tar", "1.jpg 1.cls");
  tar("lonely.tar", "0.jpg 0.cls 1.jpg");
  tar("empty.tar", "good.tar");
  const std::string whole = *read_file(root_ / "good.tar");
  const auto data = [&](const std::string& rest) { return "webdataset:" + (root_ / rest).string(); };
  refuses("other.tar:1.cls: holds 'one', which is no class number", DataSplit::Train, 10, data("other.tar"));
  refuses("lonely.tar:1.jpg: has no label", DataSplit::Train, 10, data("lonely.tar"));
  refuses("has no samples with KEY.jpg and KEY.cls", DataSplit::Train, 10, data("empty.tar"));
  refuses("none-1.tar", DataSplit::Train, 10, data("none-{0..1}.tar"));
  refuses("has no range of numbers", DataSplit::Train, 10, data("none-{a..b}.tar"));
  fs::create_directories(root_ / "nothing");
  refuses("has no .tar archives", DataSplit::Train, 10, data("nothing"));
  put("cut.tar", whole.substr(0, 700));
  refuses("is cut off", DataSplit::Train, 10, data("cut.tar"));
  std::string damaged = whole;
  damaged[3] = '?';
  put("damaged.tar", damaged);
  refuses("wrong checksum of a header at byte 0", DataSplit::Train, 10, data("damaged.tar"));
  put("packed.tar", gzip_of(whole));
  refuses("is packed", DataSplit::Train, 10, data("packed.tar"));
  put("1.cls", "5");
  tar("far.tar", "1.jpg 1.cls");
  refuses("is of class 5, which the training set does not have", DataSplit::Test, 10,
          data("good.tar") + "," + (root_ / "far.tar").string());
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    put("cut.tar", whole.substr(0, length));
    const auto members = list_tar(root_ / "cut.tar");
    EXPECT_TRUE(!members || members->size() == 2) << length;
  }
}

}  // namespace
}  // namespace millrace
