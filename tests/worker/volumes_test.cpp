// UNET3D on generated kidneys, as a user types it: one process, stages, a resumed run, job arrays, odd files.
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Volumes : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    const Ran made =
        run("data generate --workload kidneys --out kidneys --size 3MB --image-side 32 --seed 4");
    ASSERT_EQ(made.code, 0) << made.output;
  }
  static constexpr const char* kModel =
      "--model unet3d --filters 2 --levels 2 --image-size 16 --microbatch 1 ";
  static constexpr const char* kTrain =
      "--microbatches 2 --threads 1 --rule sgd --lr 0.1 --data kits:kidneys ";
  std::string train(const std::string& more) { return std::string("train ") + kModel + kTrain + more; }

  /// The lines of evaluations in a run's log, without the time.
  static std::string evaluations(const std::string& output) {
    std::string lines;
    for (std::size_t at = 0; (at = output.find("evaluation step=", at)) != std::string::npos; ++at)
      lines += output.substr(at, output.find('\n', at) - at) + "\n";
    return lines;
  }
};

TEST_F(Volumes, AreTrainedAndEvaluatedAsInOneProcess) {
  const Ran one = run(train("--steps 6 --evaluate-every 3 --output-dir one --save-weights one.safetensors"));
  ASSERT_EQ(one.code, 0) << one.output;
  for (const char* name : {"\"dice\"", "\"dice_1\"", "\"dice_2\""})
    EXPECT_NE(bytes("one/summary.json").find(name), std::string::npos) << name;
  EXPECT_NE(evaluations(one.output).find("step=6"), std::string::npos) << one.output;
  write("job.yaml",
        "model: unet3d\nfilters: 2\nlevels: 2\nimage-size: 16\nmicrobatch: 1\nmicrobatches: 2\nthreads: 1\n"
        "rule: sgd\nlr: 0.1\ndata: kits:kidneys\nsteps: 6\nevaluate-every: 3\nstages: 2\nschedule: zb-v\n"
        "output-dir: two\nsave-weights: two.safetensors\n");
  const Ran two = run("launch job.yaml");
  EXPECT_EQ(two.code, 0) << two.output;
  EXPECT_EQ(bytes("two.safetensors"), bytes("one.safetensors"));
  EXPECT_EQ(evaluations(two.output), evaluations(one.output)) << two.output;
  const Ran replicas =
      run(train("--replicas 2 --steps 6 --evaluate-every 3 --output-dir replicas --save-weights "
                "replicas.safetensors --workers 3"));
  EXPECT_EQ(replicas.code, 0) << replicas.output;
  EXPECT_EQ(bytes("replicas.safetensors"), bytes("one.safetensors")) << "one microbatch each";
  EXPECT_EQ(evaluations(replicas.output), evaluations(one.output)) << replicas.output;
}

/// An epoch without a step would train nothing, and look like a success.
TEST_F(Volumes, AnEpochHasAStep) {
  const Ran ran = run(std::string("train ") + kModel +
                      "--microbatches 100000 --data kits:kidneys --epochs 2 --output-dir one");
  EXPECT_EQ(ran.code, 3) << ran.output;
  EXPECT_NE(ran.output.find("one step needs 100000"), std::string::npos) << ran.output;
}

TEST_F(Volumes, AResumedRunAndTheJobsOfAnArrayAreTheirOwnRuns) {
  const std::string quiet = "--no-evaluation ";
  ASSERT_EQ(run(train(quiet + "--steps 6 --output-dir one --save-weights one.safetensors")).code, 0);
  ASSERT_EQ(run(train(quiet + "--steps 3 --output-dir half --checkpoint-every 3")).code, 0);
  const Ran rest = run(train(quiet + "--steps 6 --output-dir rest --save-weights rest.safetensors --stages 3 "
                                     "--resume half"));
  EXPECT_EQ(rest.code, 0) << rest.output;
  EXPECT_EQ(bytes("rest.safetensors"), bytes("one.safetensors"));
  const Ran array =
      run(std::string("train ") + kModel +
          "--microbatches 2 --threads 1 --rule sgd --data kits:kidneys --steps 6 --fused --kernels loop "
          "--lr 0.1 0.2 --evaluate-every 6 --output-dir jobs --save-weights jobs.safetensors");
  EXPECT_EQ(array.code, 0) << array.output;
  EXPECT_NE(array.output.find("dice"), std::string::npos) << array.output;
  EXPECT_EQ(bytes("jobs.job0.safetensors"), bytes("one.safetensors"));
}

TEST_F(Volumes, WhatDoesNotFitEndsWithAClearError) {
  const Ran small =
      run(std::string("train --model unet3d --filters 2 --steps 1 --output-dir a --data kits:kidneys"));
  EXPECT_EQ(small.code, 3) << small.output;
  EXPECT_NE(small.output.find("smaller than the crop of 128"), std::string::npos) << small.output;
  fs::remove(folder_ / "kidneys/case_00001_y.npy");
  const Ran missing = run(train("--steps 1 --output-dir b"));
  EXPECT_EQ(missing.code, 3) << missing.output;
  EXPECT_NE(missing.output.find("case_00001_y.npy: is missing"), std::string::npos) << missing.output;
  const Ran images = run(std::string("train ") + kModel + "--steps 1 --output-dir c --data kidneys");
  EXPECT_NE(images.code, 0);
  EXPECT_NE(images.output.find("--data kits:FOLDER"), std::string::npos) << images.output;
}

}  // namespace
}  // namespace millrace
