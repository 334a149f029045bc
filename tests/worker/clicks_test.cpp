// DLRM on generated clicks, as a user types it: one process, stages, a resumed run, job arrays, odd files.
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class ClickJobs : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    const Ran made =
        run("data generate --workload clicks --out clicks --size 160KB --table-rows-cap 30 --seed 4");
    ASSERT_EQ(made.code, 0) << made.output;
    EXPECT_NE(made.output.find("AUC of the test file: at most 0."), std::string::npos) << made.output;
  }
  static constexpr const char* kModel =
      "--model dlrm --table-rows-cap 30 --bottom 16,8 --top 16,1 --microbatch 16 ";
  static constexpr const char* kTrain =
      "--microbatches 2 --threads 1 --rule sgd --lr 0.1 --momentum 0 --data criteo:clicks ";
  std::string train(const std::string& more) { return std::string("train ") + kModel + kTrain + more; }

  /// The part of the log's last evaluation from `auc` on.
  static std::string auc(const std::string& output) {
    const std::size_t at = output.rfind(" auc=");
    return at == std::string::npos ? "" : output.substr(at, output.find_first_of(" \n", at + 1) - at);
  }
};

TEST_F(ClickJobs, AreTrainedAndEvaluatedAsInOneProcess) {
  const Ran one = run(
      train("--steps 6 --evaluate-every 6 --output-dir one --save-weights one.safetensors --keep-best auc"));
  ASSERT_EQ(one.code, 0) << one.output;
  EXPECT_TRUE(fs::exists(folder_ / "one/best/latest"));
  EXPECT_NE(bytes("one/summary.json").find("\"auc\""), std::string::npos);
  ASSERT_NE(auc(one.output), "") << one.output;
  write("job.yaml",
        "model: dlrm\ntable-rows-cap: 30\nbottom: 16,8\ntop: 16,1\nmicrobatch: 16\nmicrobatches: 2\n"
        "threads: 1\nrule: sgd\nlr: 0.1\nmomentum: 0\ndata: criteo:clicks\nsteps: 6\nevaluate-every: 6\n"
        "stages: 3\noutput-dir: three\nsave-weights: three.safetensors\n");
  const Ran three = run("launch job.yaml");
  EXPECT_EQ(three.code, 0) << three.output;
  EXPECT_EQ(bytes("three.safetensors"), bytes("one.safetensors"));
  EXPECT_EQ(auc(three.output), auc(one.output)) << three.output;
  const Ran replicas =
      run(train("--replicas 2 --steps 6 --evaluate-every 6 --output-dir replicas --save-weights "
                "replicas.safetensors --workers 3"));
  EXPECT_EQ(replicas.code, 0) << replicas.output;
  EXPECT_EQ(bytes("replicas.safetensors"), bytes("one.safetensors")) << "one microbatch each";
  EXPECT_EQ(auc(replicas.output), auc(one.output)) << replicas.output;
}

TEST_F(ClickJobs, AResumedRunAndTheJobsOfAnArrayAreTheirOwnRuns) {
  const std::string quiet = "--no-evaluation ";
  ASSERT_EQ(run(train(quiet + "--steps 6 --output-dir one --save-weights one.safetensors")).code, 0);
  ASSERT_EQ(run(train(quiet + "--steps 3 --output-dir half --checkpoint-every 3")).code, 0);
  const Ran rest = run(train(quiet + "--steps 6 --output-dir rest --save-weights rest.safetensors --stages 2 "
                                     "--resume half"));
  EXPECT_EQ(rest.code, 0) << rest.output;
  EXPECT_EQ(bytes("rest.safetensors"), bytes("one.safetensors"));
  const Ran array =
      run(std::string("train ") + kModel +
          "--microbatches 2 --threads 1 --rule sgd --momentum 0 --data criteo:clicks --steps 6 --fused "
          "--kernels loop --lr 0.1 0.2 --evaluate-every 6 --output-dir jobs --save-weights jobs.safetensors");
  EXPECT_EQ(array.code, 0) << array.output;
  EXPECT_NE(array.output.find("auc"), std::string::npos) << array.output;
  EXPECT_EQ(bytes("jobs.job0.safetensors"), bytes("one.safetensors"));
}

TEST_F(ClickJobs, SpreadTablesAreTrainedResumedAndEvaluatedAsInOneProcess) {
  const std::string evaluated = "--evaluate-every 4 ", spread = "--replicas 2 --spread-tables ";
  const Ran one = run(train(evaluated + "--steps 4 --output-dir one --save-weights one.safetensors"));
  ASSERT_EQ(one.code, 0) << one.output;
  write("job.yaml",
        "model: dlrm\ntable-rows-cap: 30\nbottom: 16,8\ntop: 16,1\nmicrobatch: 16\nmicrobatches: 2\n"
        "threads: 1\nrule: sgd\nlr: 0.1\nmomentum: 0\ndata: criteo:clicks\nsteps: 4\nevaluate-every: 4\n"
        "replicas: 2\nspread-tables: true\noutput-dir: two\nsave-weights: two.safetensors\n");
  const Ran two = run("launch job.yaml");
  ASSERT_EQ(two.code, 0) << two.output;
  EXPECT_EQ(bytes("two.safetensors"), bytes("one.safetensors"));
  EXPECT_EQ(auc(two.output), auc(one.output)) << two.output;
  EXPECT_NE(two.output.find("tables: rank 0: emb_l."), std::string::npos) << two.output;
  // From one process to two ranks, and from two ranks back to one.
  int turn = 0;
  for (const auto& [first, then] : {std::pair{std::string(), spread}, {spread, std::string()}}) {
    const std::string half = "half" + std::to_string(turn), rest = "rest" + std::to_string(turn);
    ++turn;
    const Ran begun =
        run(train(first + "--no-evaluation --steps 2 --checkpoint-every 2 --output-dir " + half));
    ASSERT_EQ(begun.code, 0) << begun.output;
    const Ran ended = run(train(then + "--no-evaluation --steps 4 --output-dir " + rest + " --save-weights " +
                                rest + ".safetensors --resume " + half));
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_EQ(bytes(rest + ".safetensors"), bytes("one.safetensors")) << then;
  }
}

TEST_F(ClickJobs, LearnNearlyWhatCanBeLearned) {
  const Ran made = run(
      "data generate --workload clicks --out many --size 9600KB --table-rows-cap 10 --seed 4 --format json");
  ASSERT_EQ(made.code, 0) << made.output;
  const auto number_behind = [](const std::string& text, const std::string& name) {
    const std::size_t at = text.rfind(name);
    return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size()));
  };
  const double ceiling = number_behind(made.output, "\"auc_ceiling\": ");
  ASSERT_GT(ceiling, 0.8) << made.output;
  const Ran trained = run(
      "train --model dlrm --table-rows-cap 10 --bottom 16,8 --top 16,1 --data criteo:many --microbatch 256 "
      "--microbatches 1 --threads 1 --rule adam --lr 0.01 --seed 1 --steps 300 "
      "--evaluate-every 300 --print-every 100 --output-dir learned");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const double auc = number_behind(trained.output, " auc=");
  EXPECT_GT(auc, 0.95 * ceiling) << trained.output;
  EXPECT_LT(auc, ceiling + 0.01) << "nothing is better than the chances themselves";
}

/// The place of a small table in memory is mostly padding, which the profile must not count as rows.
TEST_F(ClickJobs, AProfileOfSmallTablesIsPlanned) {
  const Ran profiled =
      run("profile --model dlrm --table-rows 5,5 --bottom 4 --top 1 --microbatch 1 --rule sgd --momentum 0 "
          "--repetitions 1 --blocks 1 --warmup 0 --data synthetic:64 --out small.json");
  ASSERT_EQ(profiled.code, 0) << profiled.output;
  const Ran planned = run("plan --profile small.json --ranks 1 --out plan.json");
  EXPECT_EQ(planned.code, 0) << planned.output;
}

TEST_F(ClickJobs, WhatDoesNotFitEndsWithAClearError) {
  const auto ends = [&](const std::string& words, int code, const std::string& says) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, code) << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << ran.output;
  };
  ends("train --model dlrm --table-rows 2147483648,2147483648 --bottom 8192 --steps 1 --data synthetic:64", 2,
       "emb_l.0.weight (2147483648 x 8192): 70368.7 GB");
  ends("profile --model dlrm --table-rows 2147483648,2147483648 --bottom 8192 --out p.json", 2,
       "emb_l.0.weight (2147483648 x 8192)");
  ends("train --model dlrm --table-rows 5,5 --bottom 4 --top 1 --steps 1 --output-dir a --data criteo:clicks",
       3, "has counts of 26 categorical features, the model has 2 tables");
  ends(std::string("train ") +
           "--model dlrm --tables threshold --table-rows-cap 20 --bottom 4 --top 1 "
           "--microbatch 4 --microbatches 1 --steps 1 --output-dir b --data criteo:clicks",
       0, "loss=");
  ends("train --model dlrm --table-rows-cap 30 --bottom 4 --top 1 --steps 1 --output-dir c --data clicks", 3,
       "--data criteo:FOLDER");
  ends("train --model dlrm --table-rows 5,5 --steps 1 --data synthetic:64 --replicas 3 --spread-tables", 2,
       "3 replicas for 2 tables");
  ends("train --model dlrm --table-rows 5,5 --steps 1 --data synthetic:64 --spread-tables", 2,
       "--replicas N");
  ends("train --model dlrm --steps 1 --replicas 2 --spread-tables --stages 2 --schedule gpipe", 2,
       "--schedule: says otherwise");
  ends("train --model mlp --steps 1 --replicas 2 --spread-tables", 2, "mlp has no tables");
  ends("train --model dlrm --steps 1 --schedule spread-tables", 2, "give --spread-tables");
  ends(
      "train --model dlrm --table-rows 2147483648,2147483648 --bottom 8192 --steps 1 --data synthetic:64 "
      "--replicas 2 --spread-tables",
      2, "emb_l.0.weight (2147483648 x 8192): 70368.7 GB");
}

}  // namespace
}  // namespace millrace
