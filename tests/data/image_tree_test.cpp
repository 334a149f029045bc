// Folders of images without labels, as LSUN's are when they are unpacked: what generators learn from.
#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <filesystem>

#include "data/files/images.h"
#include "data/loading/dataset.h"
#include "runtime/base/files.h"
#include "tests/data/jpeg_maker.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr char kImage[] = {1}, kNothing[] = {0};

class ImageTree : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-tree-XXXXXX";
    root_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(root_); }
  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories((root_ / name).parent_path());
    ASSERT_TRUE(write_file_atomically(root_ / name, bytes));
  }
  /// Three thirds, side by side: black, `middle` in all channels, white.
  static std::string thirds(std::int64_t third, char middle) {
    Image image{.height = third, .width = 3 * third, .channels = 3};
    for (std::int64_t y = 0; y < third; ++y) {
      for (const char value : {'\0', middle, '\xff'})
        image.pixels.append(static_cast<std::size_t>(3 * third), value);
    }
    return encode_png(image);
  }
  Result<std::shared_ptr<const Dataset>> open(DataSplit split = DataSplit::Train, std::int64_t size = 16) {
    return make_dataset(
        {.path = root_.string(), .split = split, .fields = {{.name = "input", .shape = {3, size, size}}}});
  }
  fs::path root_;
};

TEST_F(ImageTree, HasEveryImageInWhateverFolder) {
  put("b.jpg", plain_jpeg(40, 30, 0));
  put("a/0/1.JPEG", plain_jpeg(40, 30, 1));
  put("a/0/2.png", thirds(20, '\x40'));
  put("a/notes.txt", "no image");
  put(".hidden/c.jpg", plain_jpeg(40, 30, 2));
  fs::create_directory_symlink(root_, root_ / "a/again");
  const auto set = open();
  ASSERT_TRUE(set) << to_string(set.problems());
  ASSERT_EQ((*set)->size(), 3);
  EXPECT_EQ((*set)->left_out(), 3);  // notes.txt, .hidden, again
  for (const char* end : {"/", "/.", "/a/.."}) {
    const auto same =
        make_dataset({.path = root_.string() + end, .fields = {{.name = "input", .shape = {3, 16, 16}}}});
    ASSERT_TRUE(same) << end << to_string(same.problems());
    EXPECT_EQ((*same)->size(), 3) << end;
  }
  EXPECT_EQ((*set)->num_classes(), 0);
  EXPECT_EQ((*set)->name_of(0), root_ / "a/0/1.JPEG");
  EXPECT_EQ((*set)->name_of(2), root_ / "b.jpg");
  EXPECT_NE((*set)->describe().find("3 images"), std::string::npos);
  EXPECT_EQ((*set)->get(0, 1, kNothing).size(), 1u);
  EXPECT_FALSE((*set)->get(0, 1, kNothing)[0].tensor.defined());
}

TEST_F(ImageTree, CutsOutTheCentreInMinusOneToOne) {
  put("red.jpg", plain_jpeg(90, 40, 0));
  put("thirds.png", thirds(48, '\x40'));
  const auto set = *open();
  const at::Tensor red = set->get(0, 1, kImage)[0].tensor, centre = set->get(1, 1, kImage)[0].tensor;
  ASSERT_EQ(red.sizes().vec(), (std::vector<std::int64_t>{3, 16, 16}));
  for (int c = 0; c < 3; ++c) {
    const float expected = c == 0 ? 220 / 127.5f - 1 : 40 / 127.5f - 1;
    EXPECT_LT(red.select(0, c).sub(expected).abs().max().item<float>(), 0.03);  // JPEG rounds colours
  }
  // Resampling reaches into the neighbours at the edges of the cut alone.
  EXPECT_LT(centre.narrow(2, 1, 14).sub(0x40 / 127.5f - 1).abs().max().item<float>(), 1e-5);
  EXPECT_TRUE(at::equal(centre, set->get(1, 2, kImage)[0].tensor));  // nothing is random
}

TEST_F(ImageTree, SplitsAreTrainAndTestAndOddFilesFollowThePolicy) {
  for (int i = 0; i < 4; ++i) put("train/x/" + std::to_string(i) + ".jpg", jpeg_of(30, 40, TJPF_RGB, i));
  put("train/cut.png", thirds(20, 'a').substr(0, 60));
  put("train/grey.png",
      encode_png({.height = 20, .width = 20, .channels = 1, .pixels = std::string(400, 'a')}));
  put("val/one.jpg", jpeg_of(30, 40, TJPF_RGB, 9));
  const auto train = *open(), test = *open(DataSplit::Test);
  EXPECT_EQ(train->size(), 6);
  EXPECT_EQ(test->size(), 1);
  EXPECT_TRUE(
      at::equal(train->get(0, 1, kImage)[0].tensor, train->get(1, 1, kImage)[0].tensor));  // cut, grey
  EXPECT_EQ(train->odd_samples(), (std::map<std::int64_t, unsigned>{{0, kDamagedSample}, {1, kGreySample}}));
}

TEST_F(ImageTree, NamesWhatIsWrong) {
  const auto message = [](const auto& result) {
    return result ? std::string("accepted") : to_string(result.problems());
  };
  EXPECT_NE(message(open()).find("has no .jpg, .jpeg, .png or .webp images"), std::string::npos);
  fs::remove_all(root_);
  EXPECT_NE(message(open()).find("not a readable folder"), std::string::npos);
}

}  // namespace
}  // namespace millrace
