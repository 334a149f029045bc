// PointNet on a folder of ShapeNet-part's form, as a user types it.
#include "tests/data/shape_net_folder.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Points : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    write_shape_net(folder_ / "shapes");
  }
  static constexpr const char* kTrain =
      "train --points 32 --microbatch 3 --steps 4 --threads 1 --rule adam --lr 0.001 ";
};

TEST_F(Points, ClassesAndPartsAreTrainedAndEvaluated) {
  const Ran classes = run(std::string(kTrain) +
                          "--model pointnet_cls --classes 2 --feature-transform on --microbatches 2 "
                          "--data shapenet:shapes --output-dir cls --save-weights one.safetensors");
  EXPECT_EQ(classes.code, 0) << classes.output;
  EXPECT_NE(bytes("cls/summary.json").find("\"class.top1\""), std::string::npos) << bytes("cls/summary.json");
  const Ran parts =
      run(std::string(kTrain) +
          "--model pointnet_seg --microbatches 1 --data shapenet:shapes,Chair --output-dir seg");
  EXPECT_EQ(parts.code, 0) << parts.output;
  for (const char* name : {"\"accuracy\"", "\"mean_iou\"", "\"part3\""})
    EXPECT_NE(bytes("seg/summary.json").find(name), std::string::npos) << name;
  write(
      "job.yaml",
      "model: pointnet_cls\nclasses: 2\nfeature-transform: 'on'\npoints: 32\nmicrobatch: 3\nmicrobatches: 2\n"
      "steps: 4\nthreads: 1\nrule: adam\nlr: 0.001\nstages: 2\ndata: shapenet:shapes\noutput-dir: two\n"
      "save-weights: two.safetensors\n");
  const Ran two = run("launch job.yaml");
  EXPECT_EQ(two.code, 0) << two.output;
  EXPECT_EQ(bytes("two.safetensors"), bytes("one.safetensors"));
}

TEST_F(Points, WhatDoesNotFitIsRefused) {
  const Ran parts = run(std::string(kTrain) + "--model pointnet_seg --data shapenet:shapes");
  EXPECT_EQ(parts.code, 3) << parts.output;
  EXPECT_NE(parts.output.find("parts are those of one category"), std::string::npos) << parts.output;
  const Ran images = run(std::string(kTrain) + "--model pointnet_seg --data shapes");
  EXPECT_NE(images.code, 0);
  EXPECT_NE(images.output.find("--data shapenet:FOLDER"), std::string::npos) << images.output;
  write("job.yaml", "model: pointnet_cls\ndata: shapenet:nowhere,Chair\noutput-dir: out\n");
  const Ran nowhere = run("launch job.yaml");
  EXPECT_NE(nowhere.code, 0);
  EXPECT_NE(nowhere.output.find("nowhere: is not there"), std::string::npos) << nowhere.output;
}

}  // namespace
}  // namespace millrace
