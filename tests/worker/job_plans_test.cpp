// Profiles, plans and trains jobs with the commands of a user. The plan divides the jobs into arrays and
// rounds, every job's weights equal those of its own run, and a run continues after it was killed.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/json.h"
#include "runtime/plan/array_profiles.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_rounds.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

constexpr const char* kModel = "--model mlp --width 16 --depth 3 ";
constexpr const char* kTrain =
    "train --model mlp --width 16 --depth 3 --microbatch 4 --no-evaluation --threads 1 --kernels loop ";

class JobPlans : public Jobs {
 protected:
  void expect_done(const std::string& arguments) {
    const Ran ran = run(arguments);
    ASSERT_EQ(ran.code, 0) << arguments << "\n" << ran.output;
  }
  void expect_refused(int code, const std::string& arguments, const std::string& says) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << arguments << "\n" << ran.output;
  }
  std::string path(const std::string& name) { return (folder_ / name).string(); }
  Plan plan(const std::string& name) { return Plan::load(path(name)).value(); }
  Json json(const std::string& name) { return parse_json(bytes(name), name).value(); }

  void profile() {
    expect_done(
        std::string("profile ") + kModel +
        "--microbatch 4 --jobs 2,4 --rule adam --repetitions 2 --blocks 1 --warmup 1 --out profile.json");
  }
  /// Two stages, the jobs in these rounds.
  void write_plan(const std::string& name, std::vector<PlanRound> rounds) {
    const LayerGraph graph = LayerGraph::load(path("profile.json")).value();
    std::vector<std::string> layers;
    for (const LayerNode& node : graph.nodes) layers.push_back(node.name);
    Plan made = uniform_plan(graph.model, layers, 2, 1, 2, ScheduleKind::OneFOneB);
    made.arrays = rounds.front().arrays;
    made.rounds = std::move(rounds);
    ASSERT_TRUE(made.save(path(name)));
  }
  /// Seeds and rates of `jobs` jobs as lists, and of each by itself.
  static std::string lists(int jobs) {
    std::string seeds = " --seed", rates = " --lr";
    for (int b = 0; b < jobs; ++b) {
      seeds += " " + std::to_string(b + 1);
      rates += " 0.0" + std::to_string(b + 1);
    }
    return "--fused" + seeds + rates + " ";
  }
  static std::string alone(int job) {
    return "--seed " + std::to_string(job + 1) + " --lr 0.0" + std::to_string(job + 1) + " ";
  }
  void expect_own_weights(const std::string& weights, int jobs, const std::string& flags) {
    for (int b = 0; b < jobs; ++b) {
      const std::string own = "alone" + std::to_string(b) + ".safetensors";
      if (!fs::exists(folder_ / own)) expect_done(kTrain + flags + alone(b) + "--save-weights " + own);
      EXPECT_EQ(bytes(weights + ".job" + std::to_string(b) + ".safetensors"), bytes(own)) << "job " << b;
    }
  }
  /// Ends the command with SIGKILL as soon as `file` is there. False: it came to its end before.
  bool killed_when(const std::string& file, const std::string& arguments) {
    const std::string line =
        "cd " + folder_.string() + " && { " MILLRACE_BIN_DIR "/millrace " + arguments +
        " >log 2>&1 & pid=$!; for i in $(seq 6000); do [ -e " + file +
        " ] && break; kill -0 $pid || break; sleep 0.01; done; kill -9 $pid; wait $pid; }";
    const int status = std::system(("bash -c '" + line + "' >/dev/null 2>&1").c_str());
    return WIFEXITED(status) && WEXITSTATUS(status) == 137;
  }
};

TEST_F(JobPlans, AProfilePlansAndTrainsAnOddNumberOfJobs) {
  profile();
  const LayerGraph measured = LayerGraph::load(path("profile.json")).value();
  EXPECT_EQ(measured_sizes(measured), (std::vector{1, 2, 4}));
  EXPECT_EQ(measured.arrays[1].nodes.back().parameter_bytes, 4 * measured.nodes.back().parameter_bytes);
  EXPECT_EQ(measured.arrays[0].rule_state_bytes, 2 * measured.rule_state_bytes);
  EXPECT_GT(measured.rule_state_bytes, 0);

  // Plans a single job, and then gives a little more memory than two jobs need.
  expect_done("plan --profile profile.json --ranks 2 --microbatches 2 --jobs 1 --out one.json");
  Bytes peak = 0;
  for (const PlanStage& stage : plan("one.json").stages) peak = std::max(peak, stage.peak_bytes);
  const Ran table =
      run("plan --profile profile.json --ranks 2 --microbatches 2 --jobs 7 --explain --memory " +
          std::to_string(peak * 5 / 2) + "B --out plan.json");
  ASSERT_EQ(table.code, 0) << table.output;
  for (const char* says : {"runner-up", "chosen: arrays of", "7 jobs in", "do not fit the memory"})
    EXPECT_NE(table.output.find(says), std::string::npos) << table.output;
  const Plan made = plan("plan.json");
  EXPECT_EQ(made.num_jobs(), 7);
  EXPECT_GT(made.rounds.size(), 1u) << table.output;
  for (const PlanStage& stage : made.stages) EXPECT_LE(stage.peak_bytes, peak * 5 / 2);

  // The plan's own times through the simulator: the step without what updates and all-reduces add.
  const Ran simulated = run("simulate --plan plan.json --format json");
  ASSERT_EQ(simulated.code, 0) << simulated.output;
  const double makespan = parse_json(simulated.output, "simulated")->find("makespan_s")->as_double();
  EXPECT_LE(makespan, made.predicted_step_s * 1.001);
  EXPECT_GT(makespan, made.predicted_step_s * 0.3);

  expect_done(kTrain + lists(7) + "--plan plan.json --steps 6 --save-weights w.safetensors --output-dir out");
  expect_own_weights("w", 7, "--microbatches 2 --steps 6 ");
  const Json summary = json("out/summary.json");
  ASSERT_EQ(summary.find("jobs")->size(), 7u);
  ASSERT_EQ(summary.find("rounds")->size(), made.rounds.size());
  for (int b = 0; b < 7; ++b) {
    const Json& job = summary.find("jobs")->items()[b];
    EXPECT_EQ(job.find("job")->as_int(), b);
    EXPECT_EQ(job.find("settings")->find("seed")->as_string(), std::to_string(b + 1));
    EXPECT_EQ(job.find("losses")->size(), 6u);
  }
  const std::string table_of_jobs = bytes("out/jobs.csv");
  EXPECT_EQ(std::count(table_of_jobs.begin(), table_of_jobs.end(), '\n'), 1 + 7 * 6);
  EXPECT_NE(table_of_jobs.find("\n5,6,"), std::string::npos) << "job 6 by its own number";
  EXPECT_EQ(plan("out/plan.json").rounds.size(), made.rounds.size());
}

TEST_F(JobPlans, RanksThatAreProcessesTrainRoundsToo) {
  profile();
  write_plan("plan.json", {{.jobs = 2, .arrays = 2}, {.jobs = 2, .arrays = 1}, {.jobs = 1, .arrays = 1}});
  write("job.yaml",
        "model: mlp\nwidth: 16\ndepth: 3\nmicrobatch: 4\nno-evaluation: true\nthreads: 1\nkernels: loop\n"
        "plan: plan.json\nsteps: 6\nfused: true\nseed: [1, 2, 3, 4, 5]\nlr: [0.01, 0.02, 0.03, 0.04, 0.05]\n"
        "output_dir: out\nsave_weights: w.safetensors\n");
  expect_done("launch job.yaml");
  expect_own_weights("w", 5, "--microbatches 2 --steps 6 ");
  EXPECT_EQ(json("out/summary.json").find("jobs")->size(), 5u);
  // A second run does not write over it.
  expect_refused(2, "launch job.yaml", "holds an earlier run");
  expect_done("launch job.yaml --overwrite");
}

/// Each round takes its times from the measured round of as many jobs.
TEST_F(JobPlans, RoundsSleepAsRoundsWereMeasured) {
  profile();
  write_plan("plan.json", {{.jobs = 2, .arrays = 2}, {.jobs = 2, .arrays = 2}, {.jobs = 1, .arrays = 1}});
  const std::string job = kTrain + lists(5) + "--plan plan.json --steps 6 --checkpoint-at-end ";
  expect_done(job + "--variant instrumented --output-dir i");
  expect_done(job + "--variant sleep --variant-from i --output-dir s");
  const Json all = json("s/summary.json");
  double drawn = 0;
  for (int r = 0; r < 3; ++r) {
    const std::string round = "/round" + std::to_string(r);
    const Json summary = json("s" + round + "/summary.json");
    const Json* variant = summary.find("variant");
    ASSERT_TRUE(variant);
    EXPECT_EQ(variant->find("times")->as_string(), "i" + round);
    EXPECT_GT(variant->find("drawn_s")->as_double(), 0);
    drawn += variant->find("drawn_s")->as_double();
    EXPECT_TRUE(summary.find("final_loss")->is_null());
    EXPECT_TRUE(fs::exists(folder_ / ("s" + round) / "checkpoints/latest"));
    EXPECT_EQ(all.find("rounds")->items().at(r).find("variant")->find("times")->as_string(), "i" + round);
  }
  EXPECT_DOUBLE_EQ(all.find("variant")->find("drawn_s")->as_double(), drawn);
  ASSERT_EQ(all.find("jobs")->size(), 5u);
  for (const Json& one : all.find("jobs")->items()) EXPECT_TRUE(one.find("loss")->is_null());
  // Rounds in another order find those that are like them; rounds of other jobs are refused.
  write_plan("other.json", {{.jobs = 2, .arrays = 2}, {.jobs = 1, .arrays = 1}});
  expect_done(kTrain + lists(3) +
              "--plan other.json --steps 2 --variant sleep --variant-from i --output-dir o");
  EXPECT_EQ(json("o/round1/summary.json").find("variant")->find("times")->as_string(), "i/round2");
  write_plan("three.json", {{.jobs = 3, .arrays = 3}, {.jobs = 2, .arrays = 2}});
  expect_refused(
      2, kTrain + lists(5) + "--plan three.json --steps 2 --variant sleep --variant-from i --output-dir t",
      "none of 3 in 3 array(s)");
}

TEST_F(JobPlans, GoOnInTheRoundInWhichTheyWereKilled) {
  profile();
  write_plan("plan.json", {{.jobs = 2, .arrays = 2}, {.jobs = 1, .arrays = 1}, {.jobs = 2, .arrays = 1}});
  const std::string flags =
      kTrain + lists(5) +
      "--plan plan.json --steps 1500 --checkpoint-every 50 --save-weights w.safetensors "
      "--output-dir out ";
  ASSERT_TRUE(killed_when("out/round1/checkpoints/latest", flags)) << bytes("log");
  ASSERT_FALSE(fs::exists(folder_ / "out/round1/summary.json"));
  ASSERT_FALSE(fs::exists(folder_ / "out/summary.json"));
  const std::string first = bytes("out/round0/summary.json");
  write_plan("other.json", {{.jobs = 3, .arrays = 1}, {.jobs = 2, .arrays = 1}});
  expect_refused(4, kTrain + lists(5) + "--plan other.json --steps 1500 --resume out --output-dir out",
                 "has rounds of 2, 1, 2 jobs");
  expect_refused(2, flags, "holds an earlier run");
  expect_done(flags + "--resume out");
  EXPECT_EQ(bytes("out/round0/summary.json"), first) << "a round that is done is left alone";
  EXPECT_GT(json("out/round1/summary.json").find("first_step")->as_int(), 0);
  EXPECT_EQ(json("out/summary.json").find("jobs")->size(), 5u);
  expect_own_weights("w", 5, "--microbatches 2 --steps 1500 ");
}

TEST_F(JobPlans, AJobThatGoesAstrayDisturbsNoOtherRound) {
  profile();
  write_plan("plan.json", {{.jobs = 1, .arrays = 1}, {.jobs = 2, .arrays = 1}});
  expect_done(kTrain + std::string("--fused --seed 1 2 3 --lr 1e6 0.02 0.03 --plan plan.json --steps 6 "
                                   "--save-weights w.safetensors --output-dir out"));
  const Json summary = json("out/summary.json");
  EXPECT_EQ(summary.find("jobs")->items()[0].find("status")->as_string(), "nonfinite");
  EXPECT_EQ(summary.find("jobs")->items()[2].find("status")->as_string(), "ok");
  EXPECT_FALSE(fs::exists(folder_ / "w.job0.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "w.job2.safetensors"));
  expect_refused(6, kTrain + std::string("--fused --seed 1 2 3 --lr 1e6 --plan plan.json --steps 6"),
                 "the loss of every job");
}

TEST_F(JobPlans, OfOtherJobsAreRefused) {
  profile();
  write_plan("plan.json", {{.jobs = 2, .arrays = 2}, {.jobs = 1, .arrays = 1}});
  const std::string steps = "--plan plan.json --steps 2 ";
  expect_refused(2, kTrain + lists(2) + steps, "is a plan for 3 jobs, this run has 2");
  expect_refused(2, kTrain + steps, "is a plan for 3 jobs, this run has 1");
  expect_refused(2, kTrain + lists(3) + steps + "--arrays 3", "the plan says how the jobs are divided");
  expect_refused(2, "plan --profile profile.json --ranks 2 --microbatches 0 --jobs 3", "--microbatches");
  expect_refused(2, "plan --profile profile.json --ranks 2 --jobs 3 --memory 1KiB", "no plan fits");
  expect_refused(2, std::string("profile ") + kModel + "--jobs 0", "--jobs");
}

}  // namespace
}  // namespace millrace
