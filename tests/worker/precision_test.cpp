// --precision and --loss-scale as users type them: processes, profiles, plans, refusals.
#include "runtime/base/json.h"
#include "runtime/plan/layer_graph.h"
#include "runtime/plan/plan.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class PrecisionJobs : public Jobs {
 protected:
  static constexpr const char* kModel = "--model vgg16_bn --image-size 32 --classes 10 ";
  Json summary(const std::string& folder) {
    const Result<Json> json = parse_json(bytes(folder + "/summary.json"), folder);
    EXPECT_TRUE(json);
    return json ? *json : Json();
  }
  void expect_refused(const std::string& arguments, const std::vector<std::string>& parts) {
    const Ran ran = run("train --model mlp --steps 1 --no-evaluation " + arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.output;
    for (const std::string& part : parts)
      EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
  }
};

TEST_F(PrecisionJobs, ProcessesEqualOneProcess) {
  const std::string common =
      "model: mlp\ndropout: 0.1\nsteps: 4\nmicrobatches: 4\nno-evaluation: true\nseed: 3\n";
  for (const std::string precision : {"bfloat16", "float16"}) {
    const std::string job = common + "precision: " + precision + "\n";
    write("one.yaml", job + "stages: 1\nsave-weights: one\noutput-dir: one-" + precision + "\n");
    write("three.yaml",
          job + "stages: 3\nschedule: 1f1b\nsave-weights: three\noutput-dir: three-" + precision + "\n");
    for (const std::string name : {"one", "three"}) {
      const Ran ran = run("launch " + name + ".yaml");
      ASSERT_EQ(ran.code, 0) << ran.output;
    }
    EXPECT_TRUE(bytes("one") == bytes("three")) << precision;
    const Json told = summary("three-" + precision);
    EXPECT_EQ(told.find("precision")->as_string(), precision);
    EXPECT_EQ(told.find("skipped_steps")->is_null(), precision == "bfloat16");
    fs::remove(folder_ / "one");
    fs::remove(folder_ / "three");
  }
}

TEST_F(PrecisionJobs, SkippedStepsAreToldEverywhere) {
  const Ran ran = run(
      "train --model mlp --stages 2 --steps 6 --no-evaluation --precision float16 --loss-scale-initial 1e30 "
      "--output-dir out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("skipped"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("6 of all steps skipped"), std::string::npos) << ran.output;
  EXPECT_EQ(summary("out").find("skipped_steps")->as_int(), 6);
  for (const std::string rank : {"0", "1"}) {
    const std::string log = bytes("out/steps.rank" + rank + ".jsonl");
    EXPECT_NE(log.find("\"skipped\":true"), std::string::npos) << log;
    EXPECT_NE(log.find("\"loss_scale\""), std::string::npos) << log;
  }
  const Ran report = run("report --run out --out report.html");
  EXPECT_EQ(report.code, 0) << report.output;
  EXPECT_NE(bytes("report.html").find("6 steps skipped"), std::string::npos);
}

/// Tensors between stages are half as large, in the profile and in the plan made of it.
TEST_F(PrecisionJobs, ProfilesAndPlansKnowIt) {
  std::vector<LayerGraph> graphs;
  for (const std::string precision : {"float32", "bfloat16"}) {
    const Ran ran =
        run(std::string("profile ") + kModel + "--microbatch 2 --repetitions 1 --blocks 1 --precision " +
            precision + " --out " + precision + ".json");
    ASSERT_EQ(ran.code, 0) << ran.output;
    Result<LayerGraph> graph = LayerGraph::load((folder_ / (precision + ".json")).string());
    ASSERT_TRUE(graph) << to_string(graph.problems());
    graphs.push_back(*std::move(graph));
    const Ran planned =
        run("plan --profile " + precision + ".json --ranks 2 --out plan-" + precision + ".json");
    EXPECT_EQ(planned.code, 0) << planned.output;
  }
  ASSERT_EQ(graphs[0].edges.size(), graphs[1].edges.size());
  for (std::size_t i = 0; i < graphs[0].edges.size(); ++i)
    EXPECT_EQ(graphs[1].edges[i].bytes * 2, graphs[0].edges[i].bytes) << graphs[0].edges[i].tensor;
  EXPECT_EQ(graphs[1].precision, "bfloat16");
}

TEST_F(PrecisionJobs, WhatCannotBeIsRefused) {
  expect_refused("--precision half", {"--precision", "unknown precision 'half'"});
  expect_refused("--precision float16 --stages 2 --schedule pipedream", {"--loss-scale", "without a flush"});
  expect_refused("--loss-scale 0", {"--loss-scale", "no scale of the loss"});
  expect_refused("--loss-scale often", {"--loss-scale", "dynamic"});
  expect_refused("--precision bfloat16 --loss-scale-growth 4", {"-growth", "--loss-scale dynamic"});
  expect_refused("--loss-scale dynamic --loss-scale-backoff 1", {"--loss-scale-backoff", "between 0 and 1"});
}

TEST_F(PrecisionJobs, AResumedRunKeepsItsPrecision) {
  const std::string common = "train --model mlp --no-evaluation --checkpoint-at-end --output-dir out ";
  ASSERT_EQ(run(common + "--steps 2 --precision float16").code, 0);
  const Ran other = run(common + "--steps 4 --resume out");
  EXPECT_EQ(other.code, 4) << other.output;
  EXPECT_NE(other.output.find("precision: float16 there, (none) here"), std::string::npos) << other.output;
  const Ran same = run(common + "--steps 4 --resume out --precision float16");
  EXPECT_EQ(same.code, 0) << same.output;
  const Ran changed = run(common + "--steps 6 --resume out --precision bfloat16 --resume-changes precision");
  EXPECT_EQ(changed.code, 0) << changed.output;
}

}  // namespace
}  // namespace millrace
