// Whole jobs whose numbers go wrong once: planted NaNs, and what the command makes of them.
#include <cmath>
#include <cstring>

#include "data/files/npy.h"
#include "data/files/zip.h"
#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

constexpr const char* kJob =
    "model: mlp\nstages: 3\nsteps: 12\nmicrobatches: 4\nmicrobatch: 4\nthreads: 1\nno_evaluation: true\n"
    "checkpoint_every: 2\n";
constexpr const char* kNan = "MILLRACE_FAILPOINTS=update:rank=1:step=5:action=nan";
constexpr const char* kFired = "failpoint update:rank=1:step=5:hit=1:action=nan fires in step 5";

class NonfiniteJobs : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    write("job.yaml", kJob);
  }
  Ran launch(const std::string& out, const std::string& more, const std::string& environment) {
    Ran ran = run("launch job.yaml --set output_dir=" + out + " " + more, environment);
    EXPECT_EQ(ran.output.find(kFired) != std::string::npos, !environment.empty()) << ran.output;
    return ran;
  }
  /// "loss" of each step in the log of the rank that has it.
  std::string losses(const std::string& out) {
    std::string text;
    const std::string log = bytes(out + "/steps.rank2.jsonl");
    for (std::size_t at = 0; (at = log.find("\"loss\":", at)) != std::string::npos; ++at)
      text += log.substr(at, log.find(',', at) - at) + "\n";
    return text;
  }
};

/// What a machine got wrong once does not come again: the run equals one without the fault, bit for bit.
TEST_F(NonfiniteJobs, ARollbackMendsAFaultThatDoesNotComeAgain) {
  ASSERT_EQ(launch("plain", "", "").code, 0);
  const Ran ran = launch("out", "--set on_nonfinite=rollback", kNan);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("the gradient of parameter layers.3.linear.weight (stage 1); going back to the "
                            "checkpoint of step 4"),
            std::string::npos)
      << ran.output;
  EXPECT_EQ(losses("out"), losses("plain"));
  const std::string last = "/checkpoints/step-00000012/stage1.safetensors";
  EXPECT_EQ(bytes("out" + last), bytes("plain" + last));
}

TEST_F(NonfiniteJobs, ASecondTimeAtTheSameStepEndsTheRun) {
  const Ran ran = launch("out", "--set on_nonfinite=rollback",
                         std::string(kNan) + ",update:rank=1:step=5:hit=2:action=nan");
  EXPECT_EQ(ran.code, 6) << ran.output;
  EXPECT_NE(ran.output.find("so it was before the run went back to step 4"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("--on-nonfinite skip"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("resume: "), std::string::npos) << ran.output;
}

TEST_F(NonfiniteJobs, SkippedStepsAreCounted) {
  const Ran ran = launch("out", "--set on_nonfinite=skip", kNan);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("1 steps skipped: loss or gradient was not finite"), std::string::npos)
      << ran.output;
  EXPECT_NE(ran.output.find("an update is skipped; not finite: the gradient of parameter layers.3.linear"),
            std::string::npos)
      << ran.output;
  EXPECT_EQ(read_json((folder_ / "out/summary.json").string())->find("skipped_steps")->as_int(), 1);
  const std::string log = bytes("out/steps.rank0.jsonl");
  EXPECT_NE(log.find("\"skipped\":true", log.find("\"step\":5")), std::string::npos) << log;
}

TEST_F(NonfiniteJobs, AStopNamesTheTensorAndTheCheckpoint) {
  const Ran ran = launch("out", "--set check_finite=gradients", kNan);
  EXPECT_EQ(ran.code, 6) << ran.output;
  EXPECT_NE(ran.output.find("not finite: the gradient of parameter layers.3.linear.weight (stage 1)"),
            std::string::npos)
      << ran.output;
  EXPECT_NE(ran.output.find("the checkpoint of step 4 is from before it"), std::string::npos) << ran.output;
}

/// Writes 24 samples for an mlp. Number 5 of sample 13 is `odd`.
void write_samples(const std::string& path, float odd) {
  std::vector<float> inputs(24 * 8, 0.5f);
  inputs[13 * 8 + 5] = odd;
  const std::vector<std::int64_t> targets(24, 1);
  FileWriter out(path);
  ZipWriter zip(out);
  const auto add = [&](const std::string& name, const std::string& header, const void* data,
                       std::size_t bytes) {
    zip.begin(name, ZipWriter::Packing::Stored);
    zip.write(header);
    zip.write({static_cast<const char*>(data), bytes});
    zip.end();
  };
  add("input.npy", npy_header("<f4", {24, 8}), inputs.data(), inputs.size() * sizeof(float));
  add("target.npy", npy_header("<i8", {24}), targets.data(), targets.size() * sizeof(std::int64_t));
  zip.finish();
  out.commit();
}

TEST_F(NonfiniteJobs, ASampleThatHoldsNanIsNamed) {
  write_samples((folder_ / "good.npz").string(), 0.5f);
  write_samples((folder_ / "nan.npz").string(), -std::nanf(""));
  write_samples((folder_ / "inf.npz").string(), INFINITY);
  const std::string mlp = "train --model mlp --width 8 --depth 2 --classes 4 --microbatch 4 --microbatches 2";
  const std::string few = " --no-evaluation --data arrays:nan.npz", bad = few + " --steps 3";
  const std::pair<std::string, std::string> cases[] = {
      {bad, "the loss is NaN"},
      {bad + " --stages 2", "the loss is NaN"},
      {few + " --steps 6 --stages 2 --schedule pipedream", "the loss is NaN"},
      {bad + " --stages 2 --check-finite gradients", "not finite: "},
      {bad + " --stages 2 --check-finite activations", "made from numbers that hold NaN"},
      {bad + " --fused --lr 0.1 0.2", "the loss is NaN"},
      {" --steps 3 --data arrays:good.npz,nan.npz", "the evaluation after step 3: the loss is NaN"},
      {" --steps 3 --no-evaluation --data arrays:inf.npz", "input is infinite in sample 13 of inf.npz"}};
  for (const auto& [flags, part] : cases) {
    const Ran ran = run(mlp + flags);
    EXPECT_EQ(ran.code, 6) << flags << "\n" << ran.output;
    EXPECT_NE(ran.output.find(part), std::string::npos) << flags << "\n" << ran.output;
    EXPECT_NE(ran.output.find(" in sample 13 of "), std::string::npos) << flags << "\n" << ran.output;
    EXPECT_NE(ran.output.find("repair the sample, or leave it out"), std::string::npos) << ran.output;
    for (const char* wrong : {"lower --lr", "is -nan"})
      EXPECT_EQ(ran.output.find(wrong), std::string::npos) << flags << "\n" << ran.output;
  }
  // Without such a sample the rate is the hint.
  const Ran ran = run(mlp + " --steps 4 --no-evaluation --data arrays:good.npz",
                      "MILLRACE_FAILPOINTS=update:rank=0:step=1:action=nan");
  EXPECT_EQ(ran.code, 6) << ran.output;
  EXPECT_NE(ran.output.find("lower --lr"), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find(" in sample "), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace millrace
