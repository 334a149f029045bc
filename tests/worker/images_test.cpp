// Whole commands on image folders with odd files: what the user is told.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "runtime/base/json.h"
#include "tests/data/jpeg_maker.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Images : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    for (const char* split : {"train", "test"}) {
      for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < 8; ++i)
          put(std::string(split) + "/class" + std::to_string(c) + "/" + std::to_string(i) + ".jpg",
              jpeg_of(32, 32, TJPF_RGB, c * 20 + i));
      }
    }
  }
  void put(const std::string& name, const std::string& bytes) {
    fs::create_directories((folder_ / "images" / name).parent_path());
    write("images/" + name, bytes);
  }
  std::int64_t counted(const std::string& set, const std::string& what) {
    const auto summary = parse_json(bytes("out/summary.json"), "summary");
    EXPECT_TRUE(summary);
    return summary->find("data_files")->find(set)->find(what)->as_int();
  }

  const std::string model_ = "model: resnet18\nimage-size: 32\nclasses: 3\ndata: images\nmicrobatch: 4\n";
};

TEST_F(Images, OddFilesAreCountedOverAllRanksAndShown) {
  const std::string whole = jpeg_of(32, 32, TJPF_RGB, 1);
  put("train/class0/0.jpg", whole.substr(0, whole.size() / 2));
  put("train/class1/3.jpg", "no image");
  put("train/class2/5.jpg", jpeg_of(32, 32, TJPF_GRAY, 2));
  put("test/class2/7.jpg", jpeg_of(32, 32, TJPF_CMYK, 2));
  ASSERT_EQ(::mkfifo((folder_ / "images/train/class2/fifo.jpg").c_str(), 0600), 0);
  // Two replicas that read half of the images each, every image once and again.
  write("job.yaml", model_ + "stages: 1\nreplicas: 2\nmicrobatches: 2\nsteps: 6\noutput-dir: out\n");
  const Ran ran = run("launch job.yaml");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(counted("train", "samples"), 24);
  EXPECT_EQ(counted("train", "damaged"), 2);
  EXPECT_EQ(counted("train", "grey"), 1);
  EXPECT_EQ(counted("train", "left_out"), 1);
  EXPECT_EQ(counted("test", "cmyk"), 1);
  EXPECT_EQ(counted("test", "damaged"), 0);
  const auto summary = parse_json(bytes("out/summary.json"), "summary");
  EXPECT_EQ(summary->find("data_files")->find("train")->find("damaged_files")->size(), 2u);
  for (const char* part :
       {"data train: 24 images: 1 grey, 2 damaged (replaced), 1 no files (left out)",
        "data test: 24 images: 1 CMYK", "damaged image replaced: images/train/class1/3.jpg",
        "left out 1 named like images", "fifo.jpg (a FIFO)"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
  ASSERT_EQ(run("report --run out").code, 0);
  const std::string html = bytes("out/report.html");
  const std::string shown = html.substr(0, html.find("<script"));
  for (const char* part : {">Data files</h2>", "images/train/class1/3.jpg", "images/train/class0/0.jpg"})
    EXPECT_NE(shown.find(part), std::string::npos) << part;
}

TEST_F(Images, RanksThatAreThreadsCountAFileOnce) {
  put("train/class1/3.jpg", "no image");
  const Ran ran =
      run("train --model resnet18 --image-size 32 --classes 3 --data images --microbatch 4 --stages 2 "
          "--microbatches 2 "
          "--steps 4 --output-dir out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(counted("train", "damaged"), 1);
}

TEST_F(Images, ATestClassThatTrainingLacksEndsWithExitCode3) {
  fs::rename(folder_ / "images/test/class1", folder_ / "images/test/klass1");
  write("job.yaml", model_ + "stages: 2\nmicrobatches: 2\nsteps: 1\n");
  const Ran ran = run("launch job.yaml");
  EXPECT_EQ(ran.code, 3) << ran.output;
  EXPECT_NE(ran.output.find("images/test/klass1: is a class that the training set does not have"),
            std::string::npos)
      << ran.output;
}

TEST_F(Images, AMissingTestClassIsAWarningAndLabelsStayRight) {
  // Three classes of one colour each: a model that has learnt them is right about two of them alone.
  for (const char* split : {"train", "test"}) {
    for (int c = 0; c < 3; ++c) {
      for (int i = 0; i < 8; ++i)
        put(std::string(split) + "/class" + std::to_string(c) + "/" + std::to_string(i) + ".jpg",
            plain_jpeg(32, 32, c));
    }
  }
  fs::remove_all(folder_ / "images/test/class0");
  write("job.yaml",
        model_ + "stages: 1\nmicrobatches: 2\nsteps: 15\nlr: 0.01\nmomentum: 0\noutput-dir: out\n");
  const Ran ran = run("launch job.yaml");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("no images of 1 of the 3 classes: class0"), std::string::npos) << ran.output;
  const auto summary = parse_json(bytes("out/summary.json"), "summary");
  EXPECT_EQ(summary->find("evaluations")->items().back().find("samples")->as_int(), 16);
  EXPECT_GT(summary->find("evaluations")->items().back().find("top1")->as_double(), 0.9) << ran.output;
}

TEST_F(Images, WithoutATestFolderThereIsAWarningAndNoEvaluation) {
  fs::remove_all(folder_ / "images/test");
  write("job.yaml", model_ + "stages: 1\nmicrobatches: 2\nsteps: 1\noutput-dir: out\n");
  const Ran ran = run("launch job.yaml");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("no evaluation: images has no test or val folder"), std::string::npos)
      << ran.output;
}

}  // namespace
}  // namespace millrace
