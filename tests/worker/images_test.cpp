// Whole commands on image folders with odd files: what the user is told.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "data/files/images.h"
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
       {"data train: 24 samples: 1 grey, 2 damaged (replaced), 1 left out", "data test: 24 samples: 1 CMYK",
        "damaged image replaced: images/train/class1/3.jpg", "left out: 1 named like images",
        "fifo.jpg (a FIFO)"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
  ASSERT_EQ(run("report --run out").code, 0);
  const std::string html = bytes("out/report.html");
  const std::string shown = html.substr(0, html.rfind("<script"));
  for (const char* part : {">Data files</h2>", "images/train/class1/3.jpg", "images/train/class0/0.jpg"})
    EXPECT_NE(shown.find(part), std::string::npos) << part;
}

TEST_F(Images, TheExampleOfCifarTrainsAndGoesOn) {
  for (int i = 0; i < 128; ++i)
    put("train/class" + std::to_string(i % 3) + "/more" + std::to_string(i) + ".jpg",
        jpeg_of(32, 32, TJPF_RGB, i % 3 * 20 + i % 7));
  const auto train = [&](int steps) {
    const std::string command =
        "cd " + folder_.string() + " && MILLRACE=" MILLRACE_BIN_DIR "/millrace timeout 300 " +
        MILLRACE_SOURCE_DIR "/scripts/examples/cifar10 images out 1 " + std::to_string(steps) + " >log 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << bytes("log");
  };
  train(1);
  train(2);
  const auto summary = parse_json(bytes("out/run/summary.json"), "summary");
  ASSERT_TRUE(summary) << bytes("log");
  EXPECT_EQ(summary->find("first_step")->as_int(), 1) << bytes("log");
  EXPECT_EQ(summary->find("steps")->as_int(), 1) << "the second one alone";
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

TEST_F(Images, EvaluateNeedsTestImagesAndNoStepOfTraining) {
  const std::string model = "--model resnet18 --image-size 32 --classes 3 --data images --microbatch 4 ";
  const Ran trained = run("train " + model + "--steps 1 --output-dir out --checkpoint-at-end");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string numbers = trained.evaluation();
  ASSERT_NE(numbers, "") << trained.output;
  for (int c = 0; c < 3; ++c)
    for (int i = 1; i < 8; ++i)
      fs::remove(folder_ / ("images/train/class" + std::to_string(c) + "/" + std::to_string(i) + ".jpg"));
  const Ran judged = run("evaluate " + model + "--weights out");  // a step would need 16 images
  EXPECT_EQ(judged.code, 0) << judged.output;
  EXPECT_NE(judged.output.find(numbers), std::string::npos) << numbers << "\n" << judged.output;
  fs::remove_all(folder_ / "images/test");
  const Ran nothing = run("evaluate " + model + "--weights out");
  EXPECT_EQ(nothing.code, 3) << nothing.output;
  EXPECT_NE(nothing.output.find("nothing to judge on: images has no test or val folder"), std::string::npos)
      << nothing.output;
}

TEST_F(Images, WithoutATestFolderThereIsAWarningAndNoEvaluation) {
  fs::remove_all(folder_ / "images/test");
  write("job.yaml", model_ + "stages: 1\nmicrobatches: 2\nsteps: 1\noutput-dir: out\n");
  const Ran ran = run("launch job.yaml");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("no evaluation: images has no test or val folder"), std::string::npos)
      << ran.output;
}

/// The data sets that people have, each a small one that a model learns: class c is of one colour.
class EveryKindOfImages : public Images, public ::testing::WithParamInterface<const char*> {
 protected:
  /// Writes the set, and returns what `--data` names it and whether it needs --holdout.
  std::pair<std::string, bool> make(const std::string& kind) {
    fs::remove_all(folder_ / "images");
    const auto colour = [](int c) {
      Image image{.height = 32, .width = 32, .channels = 3};
      for (int i = 0; i < 32 * 32; ++i)
        for (int k = 0; k < 3; ++k) image.pixels += static_cast<char>(k == c ? 220 : 40);
      return image;
    };
    if (kind == "cifar") {
      for (int batch = 0; batch <= 5; ++batch) {
        std::string bytes;
        for (int i = 0; i < 6; ++i) {
          bytes += static_cast<char>(i % 3);
          for (int k = 0; k < 3; ++k) bytes += std::string(1024, static_cast<char>(k == i % 3 ? 220 : 40));
        }
        put(batch ? "data_batch_" + std::to_string(batch) + ".bin" : "test_batch.bin", bytes);
      }
      return {"images", false};
    }
    if (kind == "idx") {
      for (const std::string split : {"train", "t10k"}) {
        std::string images{'\0', '\0', '\x08', '\x03', 0, 0, 0, 24, 0, 0, 0, 28, 0, 0, 0, 28},
            labels{'\0', '\0', '\x08', '\x01', 0, 0, 0, 24};
        for (int i = 0; i < 24; ++i) {
          images += std::string(28 * 28, static_cast<char>(i % 3 * 100));
          labels += static_cast<char>(i % 3);
        }
        put(split + "-images-idx3-ubyte", images);
        put(split + "-labels-idx1-ubyte", labels);
      }
      return {"images", false};
    }
    std::string table = "file,label\n", members;
    for (int i = 0; i < 24; ++i) {
      const std::string number = std::to_string(i);
      const std::string name =
          (kind == "folder" ? "colour" + std::to_string(i % 3) + "/" : "") + number + ".png";
      put(name, encode_png(colour(i % 3)));
      table += name + ",colour" + std::to_string(i % 3) + "\n";
      if (kind != "webdataset") continue;
      put(number + ".cls", std::to_string(i % 3));
      members += " " + name + " " + number + ".cls";
    }
    if (kind == "folder") return {"images", true};
    if (kind == "csv") {
      put("labels.csv", table);
      return {"csv:images/labels.csv", true};
    }
    const std::string command = "cd " + (folder_ / "images").string() + " && tar -cf shard-0.tar" + members;
    EXPECT_EQ(std::system(command.c_str()), 0);
    return {"'webdataset:images/shard-{0..0}.tar'", true};
  }
};

TEST_P(EveryKindOfImages, TrainsStopsGoesOnAndIsJudged) {
  const auto [data, divides] = make(GetParam());
  const std::string model = "--model resnet18 --image-size 32 --classes 10 --norm group --data " + data,
                    training =
                        " --microbatch 3 --stages 2 --microbatches 2 --lr 0.002 --momentum 0 --seed 3 "
                        "--deterministic --output-dir ",
                    divided = divides ? " --holdout 0.25" : "";
  const Ran whole = run("train " + model + divided + training + "whole --steps 4");
  ASSERT_EQ(whole.code, 0) << whole.output;
  const auto summary = parse_json(bytes("whole/summary.json"), "summary");
  const auto& losses = summary->find("losses")->items();
  ASSERT_EQ(losses.size(), 4u);
  EXPECT_LT(losses.back().as_double(), losses.front().as_double()) << whole.output;
  const Json evaluation = summary->find("evaluations")->items().back();
  EXPECT_EQ(evaluation.find("samples")->as_int(), std::string(GetParam()) == "idx" ? 24 : 6);
  EXPECT_EQ(whole.output.find("evaluates on the images that it trains on"), std::string::npos)
      << whole.output;
  // The same run in two parts, with other threads.
  const Ran first = run("train " + model + divided + training + "parts --steps 2 --checkpoint-at-end");
  ASSERT_EQ(first.code, 0) << first.output;
  const Ran second =
      run("train " + model + divided + training + "parts --steps 4 --resume parts --workers 3");
  ASSERT_EQ(second.code, 0) << second.output;
  const auto resumed = parse_json(bytes("parts/summary.json"), "summary");
  EXPECT_EQ(resumed->find("final_loss")->as_double(), summary->find("final_loss")->as_double());
  if (!divides) return;
  // Other images held out are other data: refused. The weights are judged by the same images as before.
  const Ran other = run("train " + model + divided + ",5" + training + "parts --steps 5 --resume parts");
  EXPECT_EQ(other.code, 4) << other.output;
  const Ran judged = run("evaluate " + model + divided + " --microbatch 3 --weights parts");
  ASSERT_EQ(judged.code, 0) << judged.output;
  EXPECT_NE(judged.output.find("samples=6"), std::string::npos) << judged.output;
}
INSTANTIATE_TEST_SUITE_P(Images, EveryKindOfImages,
                         ::testing::Values("folder", "csv", "cifar", "idx", "webdataset"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(Images, AugmentedAndMixedPlansEqualOneProcess) {
  const std::string common =
      "train --model resnet18 --image-size 32 --classes 3 --norm group --data images --microbatch 3 "
      "--microbatches 2 --seed 3 --deterministic --label-smoothing 0.1 ";
  const auto weights = [&](const std::string& plan) {
    const Ran ran =
        run(common + plan +
            " --augment random-resized-crop:0.5,random-crop:2,random-horizontal-flip,color-jitter,"
            "rand-augment,mixup:0.4 --steps 3 --save-weights w.safetensors --output-dir out "
            "--overwrite --checkpoint-at-end");
    EXPECT_EQ(ran.code, 0) << ran.output;
    return bytes("w.safetensors");
  };
  // Not EXPECT_EQ: it would print 45 MB twice.
  const std::string one = weights("");
  for (const char* plan :
       {"--stages 3 --workers 3", "--stages 2 --replicas 2,1 --schedule gpipe", "--replicas 2 --workers 0"})
    EXPECT_TRUE(weights(plan) == one) << plan;
  // Another list is another run: a checkpoint of this one does not go on with it.
  const Ran other = run(common + "--steps 4 --augment none --resume out --output-dir other");
  EXPECT_NE(other.code, 0) << other.output;
  EXPECT_NE(other.output.find("settings: augment: random-resized-crop"), std::string::npos) << other.output;
}

TEST_F(Images, JobsOfAnArrayAreMixedAsEachByItself) {
  const std::string common =
      "train --model resnet18 --image-size 32 --classes 3 --norm group --data images --microbatch 4 "
      "--microbatches 2 --steps 2 --deterministic --label-smoothing 0.1 --augment random-crop,mixup --seed 3 "
      "--no-evaluation ";
  const Ran both = run(common + "--fused --lr 0.1 0.02 --output-dir both");
  ASSERT_EQ(both.code, 0) << both.output;
  const Ran alone = run(common + "--lr 0.02 --output-dir alone");
  ASSERT_EQ(alone.code, 0) << alone.output;
  const auto of_both = parse_json(bytes("both/summary.json"), "summary"),
             of_alone = parse_json(bytes("alone/summary.json"), "summary");
  EXPECT_EQ(of_both->find("jobs")->items()[1].find("loss")->as_double(),
            of_alone->find("final_loss")->as_double());
}

TEST_F(Images, AugmentationThatDoesNotFitIsRefused) {
  const std::string common = "train --model resnet18 --image-size 32 --classes 3 --steps 1 --data images ";
  const Ran unknown = run(common + "--augment flip");
  EXPECT_EQ(unknown.code, 2) << unknown.output;
  EXPECT_NE(unknown.output.find("unknown augmentation 'flip'"), std::string::npos) << unknown.output;
  const Ran synthetic = run("train --model mlp --steps 1 --augment mixup");
  EXPECT_EQ(synthetic.code, 3) << synthetic.output;
  EXPECT_NE(synthetic.output.find("is for images with labels"), std::string::npos) << synthetic.output;
  const Ran generator = run("train --model dcgan --steps 1 --data images --augment mixup");
  EXPECT_NE(generator.code, 0) << generator.output;
  EXPECT_NE(generator.output.find("mixup is for classifiers"), std::string::npos) << generator.output;
}

}  // namespace
}  // namespace millrace
