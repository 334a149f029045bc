// Archives that hold the step of eager PyTorch: a graph that means something else is refused.
#include "tests/exported/archives.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class EagerSteps : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    MILLRACE_NEEDS_REFERENCE();
    const std::string line = "OMP_NUM_THREADS=1 " + reference_python() +
                             " " MILLRACE_SOURCE_DIR "/tests/reference/eager_steps.py " + folder_.string() +
                             " >" + (folder_ / "log").string() + " 2>&1";
    ASSERT_EQ(std::system(line.c_str()), 0) << bytes("log");
  }
};

TEST_F(EagerSteps, AnotherGradientIsRefusedByItsName) {
  const std::string train = " --data synthetic:24 --microbatch 6 --steps 1 --no-evaluation";
  const Ran refused = run("train --model domains.pt2" + train);
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("the gradient of shared.weight has norm"), std::string::npos)
      << refused.output;
  EXPECT_NE(refused.output.find("(2 of 6 differ); the loss is 1.73 here and 1.73 there"), std::string::npos)
      << refused.output;
  const Ran warned =
      run("train --model domains.pt2 --save-weights trained.pt2 --eager-difference warn" + train);
  EXPECT_EQ(warned.code, 0) << warned.output;
  EXPECT_NE(warned.output.find("the gradient of shared.weight has norm"), std::string::npos) << warned.output;
  // The step is that of other weights than the trained ones.
  const Ran on = run("models --model trained.pt2");
  EXPECT_EQ(on.code, 0) << on.output;
  const Ran flipped = run("models --model flipped.pt2");
  EXPECT_EQ(flipped.code, 2) << flipped.output;
  EXPECT_NE(flipped.output.find("the gradient of a.weight points elsewhere"), std::string::npos)
      << flipped.output;
  const Ran profiled = run("profile --model flipped.pt2 --microbatch 2 --out profile.json");
  EXPECT_EQ(profiled.code, 2) << profiled.output;
  const Ran ordinary = run("models --model ordinary.pt2");
  EXPECT_EQ(ordinary.code, 0) << ordinary.output;
}

TEST(EagerStepHelper, IsInTheDocumentation) {
  const std::string folder = MILLRACE_SOURCE_DIR;
  const auto helper = read_file(folder + "/examples/pytorch/millrace_export.py"),
             page = read_file(folder + "/docs/pytorch-models.md");
  ASSERT_TRUE(helper && page);
  EXPECT_NE(page->find("```python\n" + *helper + "```"), std::string::npos);
}

}  // namespace
}  // namespace millrace
