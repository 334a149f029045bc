// Fingerprints tell two ranks, or a resumed run, that their data differ.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "data/loading/dataset.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

class Fingerprint : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-test-XXXXXX";
    folder_ = ::mkdtemp(name);
    for (const char* root : {"one", "other"}) {
      for (const char* image : {"cat/a.jpg", "cat/b.jpg", "dog/c.jpg"}) add(root, image);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  void add(const std::string& root, const std::string& image) {
    const fs::path path = folder_ / root / "train" / image;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "opening a data set reads names only";
  }
  std::string of(const std::string& root) {
    const auto data = make_dataset({.path = (folder_ / root).string(),
                                    .split = DataSplit::Train,
                                    .fields = classifier("test", {3, 32, 32}, 10).fields});
    return data ? (*data)->fingerprint() : to_string(data.problems());
  }
  fs::path folder_;
};

TEST_F(Fingerprint, IsOfTheNamesAndNotOfThePath) {
  EXPECT_EQ(of("one"), of("other"));
  EXPECT_NE(of("one").find("3 images, 2 classes, listing "), std::string::npos) << of("one");
  EXPECT_EQ(of("one").find(folder_.string()), std::string::npos);
}

TEST_F(Fingerprint, ChangesWithEveryNameAndClass) {
  const std::string before = of("one");
  fs::rename(folder_ / "other/train/cat/b.jpg", folder_ / "other/train/cat/bb.jpg");
  EXPECT_NE(of("other"), before) << "as many images, another name";
  fs::rename(folder_ / "other/train/cat/bb.jpg", folder_ / "other/train/dog/b.jpg");
  EXPECT_NE(of("other"), before) << "another class";
  fs::rename(folder_ / "other/train/dog/b.jpg", folder_ / "other/train/cat/b.jpg");
  EXPECT_EQ(of("other"), before);
  add("other", "dog/d.jpg");
  EXPECT_NE(of("other"), before);
}

}  // namespace
}  // namespace millrace
