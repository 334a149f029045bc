// Runs whose classes weigh differently: the same bits in every plan; what is refused.
#include <vector>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class ClassWeights : public Jobs {
 protected:
  double final_loss(const std::string& folder) {
    const Result<Json> summary = read_json((folder_ / folder / "summary.json").string());
    return summary ? summary->find("final_loss")->as_double() : -1;
  }
};

TEST_F(ClassWeights, AnyPlanGivesTheBitsOfOneProcess) {
  write("weights.csv", "class,weight\n2,0.3\n0,1\n1,2.5\n3,0\n");
  // 101 samples: the last step of an epoch has microbatches of other sizes, and their targets other weights.
  const std::string common =
      "train --model mlp --width 16 --depth 2 --classes 4 --data synthetic:101 --microbatch 4 "
      "--microbatches 2 --keep-last --epochs 2 --seed 3 --deterministic --overwrite --output-dir out "
      "--save-weights w.safetensors ";
  std::vector<std::string> different;
  for (const char* loss : {"--class-weights weights.csv", "--class-weights balanced", ""}) {
    std::string one;
    for (const char* plan :
         {"", "--stages 2 --schedule zb-h1", "--stages 2 --replicas 2,1", "--replicas 2"}) {
      const Ran ran = run(common + loss + " " + plan);
      ASSERT_EQ(ran.code, 0) << ran.output;
      EXPECT_NE(ran.output.find(" samples=12\n"), std::string::npos) << ran.output;
      const std::string now = bytes("w.safetensors") + " " + std::to_string(final_loss("out"));
      if (one.empty()) one = now;
      EXPECT_TRUE(now == one) << loss << " " << plan;
    }
    for (const std::string& other : different) EXPECT_FALSE(one == other) << loss;
    different.push_back(one);
  }
}

TEST_F(ClassWeights, EqualWeightsAreNone) {
  write("ones.txt", "# of four classes\n2\n2\n\n2\n2\n");
  ASSERT_EQ(run("train --model mlp --width 16 --depth 1 --classes 4 --steps 5 --output-dir plain").code, 0);
  const Ran weighed =
      run("train --model mlp --width 16 --depth 1 --classes 4 --steps 5 --output-dir weighed "
          "--checkpoint-at-end --class-weights ones.txt");
  ASSERT_EQ(weighed.code, 0) << weighed.output;
  EXPECT_NEAR(final_loss("weighed"), final_loss("plain"), 1e-6);
  // The weights are part of what a resumed run must share, and of what an evaluation can be told.
  write("others.txt", "1\n2\n2\n2\n");
  const std::string more = "train --model mlp --width 16 --depth 1 --classes 4 --steps 7 --output-dir more ";
  EXPECT_EQ(run(more + "--resume weighed --class-weights others.txt").code, 4);
  EXPECT_EQ(run(more + "--resume weighed").code, 4);
  EXPECT_EQ(run(more + "--resume weighed --class-weights ones.txt").code, 0);
  EXPECT_EQ(run("evaluate --model mlp --width 16 --depth 1 --classes 4 --weights weighed --class-weights "
                "others.txt")
                .code,
            0);
}

TEST_F(ClassWeights, WhatDoesNotFitIsRefused) {
  write("three.txt", "1\n1\n1\n");
  write("negative.txt", "1\n-1\n1\n1\n");
  write("zero.txt", "0\n0\n0\n0\n");
  write("odd.txt", "1\nheavy\n1\n1\n");
  write("twice.csv", "0,1\n1,1\n1,2\n");
  write("hole.csv", "0,1\n3,1\n");
  write("four.txt", "1\n1\n1\n1\n");
  const std::string mlp = "train --model mlp --width 16 --depth 1 --classes 4 --steps 1 --class-weights ";
  for (const auto& [arguments, part] :
       {std::pair{mlp + "three.txt", "there are 3 weights, and the model has 4 classes"},
        {mlp + "negative.txt", "the weight of class 1 is negative"},
        {mlp + "zero.txt", "all weights are zero"},
        {mlp + "odd.txt", "odd.txt:2: 'heavy' is no weight"},
        {mlp + "twice.csv", "twice.csv:3: class 1 stands twice"},
        {mlp + "hole.csv", "has no weight of class 1"},
        {mlp + "nowhere.txt", "nowhere.txt"},
        {mlp + "balanced --data synthetic:3", "no sample of the training set has class"},
        {mlp + "four.txt --fused --lr 0.1 0.2", "the jobs of an array have one loss"},
        {mlp + "four.txt --augment mixup", "a sample that mixup makes has two classes"},
        {std::string("train --model transformer_lm --steps 1 --class-weights four.txt"),
         "weighs the classes of models that end in cross-entropy"}}) {
    const Ran ran = run(arguments);
    EXPECT_TRUE(ran.code == 2 || ran.code == 3) << ran.code << " " << ran.output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
  }
}

}  // namespace
}  // namespace millrace
