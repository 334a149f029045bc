// Job arrays as a user types them: weights are the files that the jobs' own runs write, byte for byte in loop
// mode; checkpoints fuse and split; wrong input is refused before anything runs.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/json_number.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class JobCommands : public Jobs {
 protected:
  static constexpr const char* kTrain =
      "train --microbatch 4 --microbatches 2 --steps 6 --no-evaluation --threads 1 ";

  std::string expect_done(const std::string& arguments) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.output;
    return ran.output;
  }
  /// Trains to step 6 into run<job>, and on to step 12 for the weights in whole<job>.safetensors.
  void train_alone(const std::string& model, const std::vector<std::string>& flags,
                   const std::string& to_12) {
    for (std::size_t b = 0; b < flags.size(); ++b) {
      const std::string name = std::to_string(b);
      expect_done(kTrain + model + flags[b] + " --output-dir run" + name + " --checkpoint-at-end");
      expect_done("train " + model + flags[b] + to_12 + "--resume run" + name + " --save-weights whole" +
                  name + ".safetensors");
    }
  }
  void expect_refused(int code, const std::string& arguments, const std::string& says) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, code) << arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(says), std::string::npos) << arguments << "\n" << ran.output;
  }
};

TEST_F(JobCommands, InADeterministicArrayNoClockDecides) {
  const std::string common = std::string(kTrain) + "--model mlp --width 16 --depth 2 --deterministic ";
  const std::string said =
      expect_done(common + "--fused --lr 0.1 0.05 --kernels auto --explain --save-weights w.safetensors");
  EXPECT_NE(said.find("kernels: loop, nothing was measured"), std::string::npos) << said;
  expect_done(common + "--lr 0.05 --save-weights alone.safetensors");
  EXPECT_EQ(bytes("w.job1.safetensors"), bytes("alone.safetensors"));
}

TEST_F(JobCommands, ARunThatGoesOnTakesTheKernelsOfItsCheckpoint) {
  const std::string model =
      "--model mlp --width 16 --depth 2 --fused --lr 0.1 0.05 --kernels auto --arrays 1 ";
  expect_done(kTrain + model + "--output-dir run --checkpoint-at-end");
  const std::string on = "train --microbatch 4 --microbatches 2 --steps 12 --no-evaluation --threads 1 " +
                         model + "--resume run ";
  // Another cut reads the choices of all stages.
  for (const char* plan : {"", "--stages 2 "}) {
    fs::remove_all(folder_ / "on");
    expect_done(on + plan + "--output-dir on --checkpoint-at-end");
    const Result<Json> before = read_json((folder_ / "run/summary.json").string()),
                       after = read_json((folder_ / "on/summary.json").string());
    ASSERT_TRUE(before && after);
    const auto& rows = before->find("kernels")->items();
    ASSERT_FALSE(rows.empty());
    ASSERT_EQ(after->find("kernels")->items().size(), rows.size());
    for (const Json& row : after->find("kernels")->items()) {
      EXPECT_EQ(row.find("loop_s")->as_double(), 0) << "measured again: " << row.dump();
      const auto same = std::ranges::find_if(rows, [&](const Json& other) {
        return other.find("layer")->as_string() == row.find("layer")->as_string() &&
               other.find("inputs")->as_string() == row.find("inputs")->as_string();
      });
      ASSERT_NE(same, rows.end()) << row.dump();
      EXPECT_EQ(row.find("kernel")->as_string(), same->find("kernel")->as_string());
    }
  }
  // The choices of kernels belong to the array, not to a job.
  expect_done("split on --out jobs");
}

TEST_F(JobCommands, AnArrayWritesWhatItsJobsWould) {
  const struct {
    std::string model, lists;
    std::vector<std::string> alone;  // each job's flags
  } cases[] = {
      // Each job reads its own batches, as its seed has it.
      {"--model mlp --width 16 --depth 2 ",
       "--lr 0.1 0.05 --seed 1 2 --momentum 0 0.9",
       {"--lr 0.1 --seed 1 --momentum 0", "--lr 0.05 --seed 2 --momentum 0.9"}},
      // One batch for all; masks of every job's own seed and probability.
      {"--model mlp --width 16 --depth 2 ",
       "--seed 1 2 --data-seed 7 --dropout 0.1 0.4 --rule adam --lr 0.001 0.01",
       {"--seed 1 --data-seed 7 --dropout 0.1 --rule adam --lr 0.001",
        "--seed 2 --data-seed 7 --dropout 0.4 --rule adam --lr 0.01"}},
      {"--model mlp --width 16 --depth 2 --stages 2 --schedule zb-h1 ",
       "--lr 0.1 0.05 --rule sgd adamw --clip-norm 0.1 1",
       {"--lr 0.1 --rule sgd --clip-norm 0.1", "--lr 0.05 --rule adamw --clip-norm 1"}},
      {"--model transformer_lm --hidden 16 --feed-forward 32 --heads 2 --vocabulary 50 --length 8 "
       "--data-seed 3 ",
       "--lr 0.1 0.05 --seed 1 2 --lr-policy step --lr-step-size 2 3 --gamma 0.5 0.1",
       {"--lr 0.1 --seed 1 --lr-policy step --lr-step-size 2 --gamma 0.5",
        "--lr 0.05 --seed 2 --lr-policy step --lr-step-size 3 --gamma 0.1"}},
      {"--model pointnet_cls --points 24 --classes 4 --feature-transform on --data-seed 3 --stages 2 ",
       "--lr 0.01 0.02 --seed 1 2 --dropout 0.1 0.3",
       {"--lr 0.01 --seed 1 --dropout 0.1", "--lr 0.02 --seed 2 --dropout 0.3"}},
      {"--model dcgan --image-size 16 --latent 8 --generator-features 4 --discriminator-features 4 --rule "
       "adam "
       "--data-seed 3 --stages 2 ",
       "--lr 0.0002 0.001 --seed 1 2 --beta1 0.5 0.9",
       {"--lr 0.0002 --seed 1 --beta1 0.5", "--lr 0.001 --seed 2 --beta1 0.9"}},
      // Each job's states go on from window to window.
      {"--model awd_lstm --layers 2 --hidden 12 --embedding-features 8 --vocabulary 50 --length 6 "
       "--data-seed 3 "
       "--stages 2 --random-bptt ",
       "--lr 1 0.5 --seed 1 2 --weight-drop 0.2 0.5 --rule sgd asgd",
       {"--lr 1 --seed 1 --weight-drop 0.2 --rule sgd", "--lr 0.5 --seed 2 --weight-drop 0.5 --rule asgd"}},
      // A model leaves out dropout of 0, and passes on where others of its array have it; in both directions,
      // and where an array or the whole first job has none.
      {"--model mlp --width 16 --depth 2 ",
       "--arrays 2 --stages 2 --dropout 0 0 0.2 --seed 1 2 3",
       {"--dropout 0 --seed 1", "--dropout 0 --seed 2 --stages 2", "--dropout 0.2 --seed 3"}},
      {"--model awd_lstm --layers 2 --hidden 12 --embedding-features 8 --vocabulary 50 --length 6 "
       "--data-seed 3 ",
       "--seed 1 2 --dropout 0.2 0.3 --hidden-dropout 0.2 0 --input-dropout 0.4 0.1 --embedding-dropout 0 "
       "0.1 "
       "--weight-drop 0 0.5",
       {"--seed 1 --dropout 0.2 --hidden-dropout 0.2 --input-dropout 0.4 --embedding-dropout 0 --weight-drop "
        "0",
        "--seed 2 --dropout 0.3 --hidden-dropout 0 --input-dropout 0.1 --embedding-dropout 0.1 "
        "--weight-drop 0.5"}},
      {"--model transformer_lm --hidden 16 --feed-forward 32 --heads 2 --vocabulary 50 --length 8 "
       "--data-seed 3 --autograd ",
       "--dropout 0.2 0 --max-norm 0 0.1 --seed 1 2",
       {"--dropout 0.2 --max-norm 0 --seed 1", "--dropout 0 --max-norm 0.1 --seed 2"}},
      {"--model bert_base --layers 1 --hidden 16 --heads 2 --feed-forward 32 --vocabulary 200 --length 16 "
       "--positions 16 --data-seed 3 --stages 2 ",
       "--dropout 0 0.2 --seed 1 2",
       {"--dropout 0 --seed 1", "--dropout 0.2 --seed 2"}},
      {"--model gnmt --layers 2 --hidden 12 --vocabulary 50 --data-seed 3 ",
       "--dropout 0 0.2 --label-smoothing 0 0.1 --seed 1 2",
       {"--dropout 0 --label-smoothing 0 --seed 1", "--dropout 0.2 --label-smoothing 0.1 --seed 2"}},
      {"--model mobilenet_v3_small --image-size 32 --classes 4 --data-seed 3 ",
       "--lr 0.1 0.05 --seed 1 2",
       {"--lr 0.1 --seed 1", "--lr 0.05 --seed 2"}},
  };
  for (const auto& c : cases) {
    expect_done(kTrain + c.model + "--fused --kernels loop --save-weights w.safetensors " + c.lists);
    for (std::size_t b = 0; b < c.alone.size(); ++b) {
      expect_done(kTrain + c.model + "--save-weights alone.safetensors " + c.alone[b]);
      EXPECT_EQ(bytes("w.job" + std::to_string(b) + ".safetensors"), bytes("alone.safetensors"))
          << c.model << c.alone[b];
    }
  }
}

TEST_F(JobCommands, DropoutOfNothingLeavesAnArrayAndJoinsOne) {
  const std::string model = "--model mlp --width 16 --depth 2 --data synthetic:64 --data-seed 7 ";
  const std::vector<std::string> alone{"--dropout 0 --seed 1", "--dropout 0.2 --seed 2"};
  const std::string to_12 = " --steps 12 --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ";
  train_alone(model, alone, to_12);
  const std::string lists = "--fused --kernels loop --dropout 0 0.2 --seed 1 2 ";
  expect_done(kTrain + model + lists + "--stages 2 --output-dir array --checkpoint-at-end");
  expect_done("train " + model + lists + to_12 + "--resume array --save-weights on.safetensors");
  // Each by itself, whose model has fewer layers; and an array of those that trained by themselves.
  expect_done("split array --out jobs");
  expect_done("fuse run0 run1 --out joined");
  expect_done("train " + model + lists + to_12 + "--resume joined --save-weights joined.safetensors");
  for (std::size_t b = 0; b < alone.size(); ++b) {
    const std::string name = std::to_string(b), whole = bytes("whole" + name + ".safetensors");
    expect_done("train " + model + alone[b] + to_12 + "--resume jobs/job" + name +
                " --save-weights split.safetensors");
    EXPECT_EQ(bytes("split.safetensors"), whole) << b;
    EXPECT_EQ(bytes("on.job" + name + ".safetensors"), whole) << b;
    EXPECT_EQ(bytes("joined.job" + name + ".safetensors"), whole) << b;
  }
}

/// The plan is made for the model that has dropout; jobs without have its layers too.
TEST_F(JobCommands, APlanTakesJobsWithAndWithoutDropout) {
  const std::string model = "--model mlp --width 16 --depth 2 --microbatch 4 ";
  expect_done("profile " + model + "--dropout 0.2 --jobs 2 --ranks 2 --out profile.json");
  expect_done("plan --profile profile.json --ranks 2 --jobs 3 --microbatches 2 --out plan.json");
  const std::string common = model + "--steps 4 --no-evaluation --threads 1 --data-seed 7 ";
  expect_done("train " + common + "--fused --kernels loop --plan plan.json --dropout 0 0.2 0 --seed 1 2 3 " +
              "--output-dir out --save-weights w.safetensors");
  expect_done("train " + common + "--microbatches 2 --dropout 0 --seed 3 --save-weights alone.safetensors");
  EXPECT_EQ(bytes("w.job2.safetensors"), bytes("alone.safetensors"));
}

TEST_F(JobCommands, ResultsAreByJob) {
  expect_done(
      std::string(kTrain) +
      "--model mlp --width 16 --depth 2 --fused --lr 0.1 1e6 --data-seed 1 --output-dir out --explain");
  const auto json = parse_json(bytes("out/summary.json"), "summary.json");
  ASSERT_TRUE(json);
  const Json& jobs = *json->find("jobs");
  ASSERT_EQ(jobs.items().size(), 2u);
  EXPECT_EQ(jobs.items()[0].find("status")->as_string(), "ok");
  EXPECT_EQ(jobs.items()[1].find("status")->as_string(), "nonfinite");
  EXPECT_EQ(jobs.items()[1].find("settings")->find("lr")->as_string(), "1e6");
  EXPECT_EQ(jobs.items()[0].find("losses")->items().size(), 6u);
  EXPECT_FALSE(std::isfinite(number_in(jobs.items()[1], "loss").value_or(0)));
  const std::string csv = bytes("out/jobs.csv");
  EXPECT_EQ(csv.substr(0, csv.find('\n')), "step,job,loss,top1,top5,lr,status");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13);
}

/// Each job keeps its own scale of the loss, and the steps that it skipped.
TEST_F(JobCommands, CheckpointsFuseAndSplitWithScalesOfTheLoss) {
  const std::string model =
      "--model mlp --width 16 --depth 2 --rule adam --precision float16 --loss-scale dynamic "
      "--loss-scale-initial 1e7 --loss-scale-growth-interval 2 ";
  const std::vector<std::string> flags{"--lr 0.1 --seed 1", "--lr 0.05 --seed 2", "--lr 0.02 --seed 3"};
  const std::string to_12 = " --steps 12 --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ";
  train_alone(model, flags, to_12);
  expect_done("fuse run0 run1 run2 --out array");
  expect_done("train " + model + "--fused --kernels loop --lr 0.1 0.05 0.02 --seed 1 2 3" + to_12 +
              "--arrays 1 --resume array --output-dir all --checkpoint-at-end --save-weights w.safetensors");
  const Json summary = *read_json((folder_ / "all/summary.json").string());
  for (int b = 0; b < 3; ++b) {
    const std::string own = std::to_string(b);
    EXPECT_EQ(bytes("w.job" + own + ".safetensors"), bytes("whole" + own + ".safetensors")) << own;
    EXPECT_GT(summary.find("jobs")->items()[b].find("skipped_steps")->as_int(), 0);
  }
  expect_done("train " + model +
              "--fused --kernels loop --arrays 1 --lr 0.1 0.05 0.02 --seed 1 2 3 --steps 9 --microbatch 4 "
              "--microbatches 2 --no-evaluation --threads 1 --output-dir nine --checkpoint-at-end");
  expect_done("split nine --out jobs");
  expect_done("train " + model + flags[1] + to_12 + "--resume jobs/job1 --save-weights alone.safetensors");
  EXPECT_EQ(bytes("alone.safetensors"), bytes("whole1.safetensors"));
}

TEST_F(JobCommands, CheckpointsFuseAndSplit) {
  const std::string model = "--model mlp --width 16 --depth 2 --rule adam ";
  const std::vector<std::string> flags{"--lr 0.1 --seed 1", "--lr 0.05 --seed 2", "--lr 0.02 --seed 3"};
  const std::string to_12 = " --steps 12 --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ";
  train_alone(model, flags, to_12);
  expect_done("fuse run0 run1 run2 --out array");
  // All three go on; then one leaves, and the others do.
  expect_done(
      "train " + model +
      "--fused --kernels loop --lr 0.1 0.05 0.02 --seed 1 2 3 --steps 9 --microbatch 4 "
      "--microbatches 2 --no-evaluation --threads 1 --resume array --output-dir nine --checkpoint-at-end");
  expect_done("fuse nine@2,0 --out two");
  expect_done("train " + model + "--fused --kernels loop --lr 0.02 0.1 --seed 3 1" + to_12 +
              "--resume two --save-weights w.safetensors");
  EXPECT_EQ(bytes("w.job0.safetensors"), bytes("whole2.safetensors"));
  EXPECT_EQ(bytes("w.job1.safetensors"), bytes("whole0.safetensors"));
  expect_done("split nine --out jobs");
  expect_done("train " + model + flags[1] + to_12 + "--resume jobs/job1 --save-weights alone.safetensors");
  EXPECT_EQ(bytes("alone.safetensors"), bytes("whole1.safetensors"));

  expect_refused(4, "train " + model + "--fused --lr 0.02 0.1 --seed 3 1" + to_12 + "--resume nine",
                 "an array of 3 jobs");
  expect_refused(2, "fuse nine@5 --out other", "has no job 5");
  expect_refused(4, "fuse run0 run1 --out array", "array");
  expect_refused(4, "split run0 --out other", "single job");
}

/// Epochs of 8 steps: each job's end where its own do.
TEST_F(JobCommands, JobsJoinAtTheirOwnSteps) {
  const std::string common = " --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ",
                    rate = "--warmup-steps 5 --lr-policy cosine --lr-total-steps 20 ";
  const struct {
    std::string model, plan, lists;
    std::vector<std::string> alone;
  } cases[] = {
      {"--model mlp --width 16 --depth 2 --dropout 0.2 --data synthetic:64 --clip-norm 0.5 ",
       "--stages 2 --schedule 1f1b --arrays 1 ",
       "--lr 0.1 0.05 0.02 --seed 1 2 3 --rule adam adamw sgd ",
       {"--lr 0.1 --seed 1 --rule adam", "--lr 0.05 --seed 2 --rule adamw", "--lr 0.02 --seed 3 --rule sgd"}},
      // One order of data: jobs at different steps are at different places in it.
      {"--model mlp --width 16 --depth 2 --dropout 0.2 --data synthetic:64 --data-seed 7 --rule adam ",
       "--arrays 2 ",
       "--lr 0.1 0.05 0.02 ",
       {"--lr 0.1", "--lr 0.05", "--lr 0.02"}},
      {"--model dcgan --image-size 16 --latent 8 --generator-features 4 --discriminator-features 4 --rule "
       "adam ",
       "--stages 2 --arrays 1 ",
       "--lr 0.0002 0.001 0.0005 --seed 1 2 3 ",
       {"--lr 0.0002 --seed 1", "--lr 0.001 --seed 2", "--lr 0.0005 --seed 3"}},
      // Samples vary in length, so that each job is an array of its own.
      {"--model gnmt --hidden 8 --vocabulary 40 ",
       "--stages 2 --arrays 3 ",
       "--lr 0.1 0.05 0.02 --seed 1 2 3 ",
       {"--lr 0.1 --seed 1", "--lr 0.05 --seed 2", "--lr 0.02 --seed 3"}},
  };
  for (const auto& c : cases) {
    for (std::size_t b = 0; b < 3; ++b) {
      const std::string name = std::to_string(b), own = "train " + c.model + rate + c.alone[b] + common;
      expect_done(own + "--steps 12 --save-weights whole" + name + ".safetensors");
      if (b < 2)
        expect_done(own + "--steps " + (b == 0 ? "7" : "3") +
                    " --overwrite --checkpoint-at-end --output-dir run" + name);
    }
    expect_done("fuse run0 run1 --new 1 --out array --overwrite");
    const std::string train =
        "train " + c.model + rate + common + "--fused --kernels loop --steps 12 " + c.lists;
    expect_done(train + c.plan +
                "--resume array --save-weights w.safetensors --output-dir out --overwrite "
                "--checkpoint-every 2 --keep-checkpoints 0");
    const auto expect_files = [&](const std::string& what) {
      for (std::size_t b = 0; b < 3; ++b)
        EXPECT_TRUE(bytes("w.job" + std::to_string(b) + ".safetensors") ==
                    bytes("whole" + std::to_string(b) + ".safetensors"))
            << c.model << what << ", job " << b;
    };
    expect_files(c.plan);
    for (const std::string from : {"08", "14"}) {
      expect_done(train + (c.model.find("gnmt") == std::string::npos ? "" : "--arrays 3 ") +
                  "--resume out/checkpoints/step-000000" + from + " --save-weights w.safetensors");
      expect_files("resumed from " + from);
    }
    // Alone again, each at its own step.
    expect_done("split out/checkpoints/step-00000010 --out jobs --overwrite");
    for (std::size_t b = 0; b < 3; ++b) {
      expect_done("train " + c.model + rate + c.alone[b] + common + "--steps 12 --resume jobs/job" +
                  std::to_string(b) + " --save-weights alone.safetensors");
      EXPECT_TRUE(bytes("alone.safetensors") == bytes("whole" + std::to_string(b) + ".safetensors"))
          << c.model << "split, job " << b;
    }
  }
}

TEST_F(JobCommands, JobsSayTheirOwnSteps) {
  const std::string train =
      "train --model mlp --width 16 --depth 2 --microbatch 4 --microbatches 2 --no-evaluation --threads 1 "
      "--fused --lr 0.1 0.2 --seed 1 2 --output-dir run ";
  expect_refused(2, train + "--steps 6 --steps 6 4", "is given twice");
  expect_done(train + "--steps 6 4 --checkpoint-at-end");
  const std::string before = bytes("run/jobs.csv");
  EXPECT_EQ(before.substr(0, before.find('\n')), "step,job,loss,top1,top5,lr,status");
  EXPECT_EQ(std::count(before.begin(), before.end(), '\n'), 1 + 6 + 4);
  // The run continues in its own folder. Existing rows get the new column.
  expect_done(train + "--steps 8 --resume run --checkpoint-at-end");
  const std::string csv = bytes("run/jobs.csv");
  EXPECT_EQ(csv.substr(0, csv.find('\n')), "step,job,loss,top1,top5,lr,status,own_step");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 8 + 8);
  EXPECT_NE(csv.find("ok,5\n6,0,"), std::string::npos) << csv;
  EXPECT_NE(csv.find("\n9,1,"), std::string::npos) << csv;
  EXPECT_EQ(csv.substr(csv.rfind(',')), ",7\n");
  const auto json = parse_json(bytes("run/summary.json"), "summary.json");
  ASSERT_TRUE(json);
  const auto& jobs = json->find("jobs")->items();
  EXPECT_EQ(jobs[0].find("first_step")->as_int(), 6);
  EXPECT_EQ(jobs[1].find("first_step")->as_int(), 4);
  EXPECT_EQ(jobs[0].find("step")->as_int(), 8);
  EXPECT_EQ(jobs[1].find("step")->as_int(), 8);
  EXPECT_EQ(jobs[0].find("losses")->items().size(), 2u);
  EXPECT_EQ(jobs[1].find("losses")->items().size(), 4u);
  EXPECT_NE(bytes("run/steps.rank0.jsonl").find("\"own_step.job1\":4"), std::string::npos);
  // A job that has ended stays as it is.
  const Ran ran = run(train + "--steps 8 9 --resume run");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find(" done before, at step 8\n"), std::string::npos) << ran.output;
  const std::string after = bytes("run/jobs.csv");
  EXPECT_EQ(std::count(after.begin(), after.end(), '\n'), 1 + 8 + 9);
  EXPECT_EQ(after.substr(after.rfind(',')), ",8\n");
}

TEST_F(JobCommands, WhatCannotBeAtDifferentStepsIsRefused) {
  const std::string common = " --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ";
  const auto run_to = [&](const std::string& name, int steps, const std::string& flags) {
    expect_done("train " + flags + common + "--checkpoint-at-end --overwrite --output-dir " + name +
                " --steps " + std::to_string(steps));
  };
  run_to("long", 5, "--model gnmt --hidden 8 --vocabulary 40");
  run_to("short", 2, "--model gnmt --hidden 8 --vocabulary 40");
  expect_done("fuse long short --out array");
  expect_refused(2,
                 "train --model gnmt --hidden 8 --vocabulary 40 --fused --jobs 2 --arrays 1 --steps 9 "
                 "--resume array" +
                     common,
                 "vary in length");
  const std::string mlp = "--model mlp --width 16 --depth 2 --data synthetic:60 --keep-last";
  run_to("long", 5, mlp);
  run_to("short", 2, mlp);
  expect_done("fuse long short --out array --overwrite");
  expect_refused(2, "train " + mlp + " --fused --jobs 2 --arrays 1 --steps 9 --resume array" + common,
                 "incomplete steps");
  expect_refused(4, "train " + mlp + " --fused --jobs 3 --steps 9 --resume array" + common,
                 "an array of 2 jobs");
  const std::string lstm =
      "--model awd_lstm --layers 2 --hidden 12 --embedding-features 8 --vocabulary 50 --length 6 ";
  run_to("long", 5, lstm);
  run_to("short", 2, lstm);
  expect_refused(4, "fuse long short --out other", "carries states");
  expect_refused(4, "fuse long --new 1 --out other", "carries states");
  expect_refused(2, "train " + lstm + "--fused --data-seed 1 --steps 3 4" + common, "carries states");
  const std::string asynchronous = "--model mlp --width 16 --depth 2 --stages 2 --schedule pipedream";
  run_to("long", 5, asynchronous);
  run_to("short", 2, asynchronous);
  expect_refused(4, "fuse long short --out other", "never flushes");
  expect_refused(2, "train " + asynchronous + " --fused --steps 3 4" + common, "ends jobs apart");
  EXPECT_FALSE(fs::exists(folder_ / "other"));
}

TEST_F(JobCommands, StatesOfTextThatRunsOnFuseAndSplit) {
  const std::string model =
                        "--model awd_lstm --layers 2 --hidden 12 --embedding-features 8 --vocabulary 50 "
                        "--length 6 --data-seed 3 ",
                    to_12 = " --steps 12 --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ";
  const std::vector<std::string> flags{"--lr 1 --seed 1", "--lr 0.5 --seed 2"};
  train_alone(model, flags, to_12);
  expect_done("fuse run1 run0 --out array");
  expect_done("train " + model +
              "--fused --lr 0.5 1 --seed 2 1 --steps 9 --microbatch 4 --microbatches 2 --no-evaluation "
              "--threads 1 --kernels loop --resume array --output-dir nine --checkpoint-at-end");
  expect_done("train " + model + "--fused --kernels loop --lr 0.5 1 --seed 2 1 --stages 2" + to_12 +
              "--resume nine --save-weights w.safetensors");
  EXPECT_EQ(bytes("w.job0.safetensors"), bytes("whole1.safetensors"));
  EXPECT_EQ(bytes("w.job1.safetensors"), bytes("whole0.safetensors"));
  expect_done("split nine --out jobs");
  expect_done("train " + model + flags[0] + to_12 + "--resume jobs/job1 --save-weights alone.safetensors");
  EXPECT_EQ(bytes("alone.safetensors"), bytes("whole0.safetensors"));
}

/// Trains an array from the start, one with a break, and the rest of one after a job has continued alone.
TEST_F(JobCommands, AveragesOfEachJobBeginAtItsOwnTime) {
  const std::string model =
                        "--model mlp --width 16 --depth 2 --data synthetic:192 --data-seed 3 --rule asgd "
                        "--lambd 0 --average-start 0 --evaluate-every 1 --microbatch 4 "
                        "--microbatches 2 --threads 1 ",
                    fused = "--fused --kernels loop --nonmonotone 1 2 0 --lr 3 2 0.1 --seed 1 2 3 ",
                    to_30 = "--steps 30 ";
  const std::vector<std::string> flags{"--nonmonotone 1 --lr 3 --seed 1 ", "--nonmonotone 2 --lr 2 --seed 2 ",
                                       "--nonmonotone 0 --lr 0.1 --seed 3 "};
  std::vector<std::string> begins;
  for (std::size_t job = 0; job < 3; ++job) {
    const std::string number = std::to_string(job);
    const std::string said =
        expect_done("train " + model + flags[job] + to_30 + "--save-weights own" + number + ".safetensors");
    const std::size_t at = said.find("averaging begins");
    begins.push_back(at == std::string::npos ? "" : said.substr(at, said.find('\n', at) - at));
  }
  EXPECT_NE(begins[0], "");
  EXPECT_NE(begins[1], "");
  EXPECT_NE(begins[0], begins[1]);
  EXPECT_EQ(begins[2], "");
  const std::string whole = expect_done("train " + model + fused + to_30 + "--save-weights w.safetensors");
  expect_done("train " + model + fused + "--steps 9 --output-dir nine --checkpoint-at-end");
  expect_done("train " + model + fused + to_30 + "--resume nine --stages 2 --save-weights r.safetensors");
  expect_done("split nine --out jobs");
  for (std::size_t job = 0; job < 3; ++job) {
    const std::string number = std::to_string(job), own = bytes("own" + number + ".safetensors");
    const std::string said = "job " + number + ": " + (begins[job].empty() ? "averaging" : begins[job]);
    EXPECT_EQ(whole.find(said) != std::string::npos, !begins[job].empty()) << said;
    EXPECT_EQ(bytes("w.job" + number + ".safetensors"), own) << job;
    EXPECT_EQ(bytes("r.job" + number + ".safetensors"), own) << job;
    expect_done("train " + model + flags[job] + to_30 + "--resume jobs/job" + number +
                " --save-weights alone.safetensors");
    EXPECT_EQ(bytes("alone.safetensors"), own) << job;
  }
}

TEST_F(JobCommands, ArraysInTurnWriteWhatTheirJobsWould) {
  const std::string model = "--model mlp --width 16 --depth 2 --stages 2 ",
                    lists = "--fused --kernels loop --lr 0.1 0.05 0.02 --seed 1 2 3 --momentum 0 0.9 0.5 ";
  const std::vector<std::string> alone{"--lr 0.1 --seed 1 --momentum 0", "--lr 0.05 --seed 2 --momentum 0.9",
                                       "--lr 0.02 --seed 3 --momentum 0.5"};
  std::vector<std::string> expected;
  for (const std::string& flags : alone) {
    expect_done(kTrain + model + flags + " --save-weights alone.safetensors");
    expected.push_back(bytes("alone.safetensors"));
  }
  const auto expect_files = [&](const std::string& what) {
    for (std::size_t b = 0; b < expected.size(); ++b)
      EXPECT_TRUE(bytes("w.job" + std::to_string(b) + ".safetensors") == expected[b])
          << what << ", job " << b;
  };
  for (const std::string how : {"--arrays 3", "--arrays 2 --schedule gpipe"}) {
    expect_done(kTrain + model + lists + how + " --save-weights w.safetensors");
    expect_files(how);
  }
  // A rank in each process; the job stops half-way and goes on as one array.
  write("job.yaml",
        "model: mlp\nwidth: 16\ndepth: 2\nstages: 2\nfused: true\nkernels: loop\narrays: 3\n"
        "lr: [0.1, 0.05, 0.02]\nseed: [1, 2, 3]\nmomentum: [0, 0.9, 0.5]\nmicrobatch: 4\nmicrobatches: 2\n"
        "steps: 4\nno_evaluation: true\nthreads: 1\ncheckpoint_at_end: true\noutput_dir: half\n");
  expect_done("launch job.yaml");
  const std::string csv = bytes("half/jobs.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 13);
  const auto json = parse_json(bytes("half/summary.json"), "summary.json");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->find("arrays")->as_int(), 3);
  EXPECT_EQ(json->find("jobs")->items().size(), 3u);
  expect_done(kTrain + model + lists + "--resume half --save-weights w.safetensors");
  expect_files("resumed");
  // The run's plan has the number of arrays.
  EXPECT_NE(bytes("half/plan.json").find("\"arrays\": 3"), std::string::npos);
  expect_refused(2, kTrain + model + "--lr 0.1 --plan half/plan.json", "a single job is not divided");
}

TEST_F(JobCommands, HowManyArraysThereAreIsTriedWhereNobodySays) {
  const std::string flags = "--model mlp --width 16 --depth 2 --stages 2 ",
                    lists = "--fused --lr 0.1 0.05 0.02 --seed 1 2 3 ";
  std::vector<std::string> expected;
  for (const std::string job : {"--lr 0.1 --seed 1", "--lr 0.05 --seed 2", "--lr 0.02 --seed 3"}) {
    expect_done(kTrain + flags + job + " --save-weights alone.safetensors");
    expected.push_back(bytes("alone.safetensors"));
  }
  const auto summary_of = [&](const std::string& folder) {
    const auto json = parse_json(bytes(folder + "/summary.json"), folder);
    return json ? *json : Json();
  };
  const auto expect_tried = [&](const std::string& folder, std::vector<std::int64_t> sizes) {
    const Json summary = summary_of(folder);
    const auto& tried = summary.find("tried_arrays")->items();
    ASSERT_EQ(tried.size(), sizes.size()) << folder;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(tried[i].find("jobs")->as_int(), sizes[i]) << folder;
      EXPECT_GT(tried[i].find("job_s")->as_double(), 0) << folder;
    }
    // The ranks' processes agree, with one another and with the plan that is written down.
    const std::int64_t arrays = summary.find("arrays")->as_int();
    const std::string plan = bytes(folder + "/plan.json");
    EXPECT_EQ(plan.find("\"arrays\": " + std::to_string(arrays)) != std::string::npos, arrays > 1) << plan;
  };
  const auto expect_weights = [&](const std::string& what) {
    for (std::size_t b = 0; b < expected.size(); ++b)
      EXPECT_TRUE(bytes("w.job" + std::to_string(b) + ".safetensors") == expected[b])
          << what << ", job " << b;
  };
  expect_done(kTrain + flags + lists + "--kernels loop --output-dir threads --save-weights w.safetensors");
  expect_tried("threads", {1, 2, 3});
  expect_weights("threads");
  write("job.yaml",
        "model: mlp\nwidth: 16\ndepth: 2\nstages: 2\nfused: true\nkernels: loop\n"
        "lr: [0.1, 0.05, 0.02]\nseed: [1, 2, 3]\nmicrobatch: 4\nmicrobatches: 2\nsteps: 6\n"
        "no_evaluation: true\nthreads: 1\noutput_dir: processes\nsave_weights: w.safetensors\n");
  expect_done("launch job.yaml");
  expect_tried("processes", {1, 2, 3});
  expect_weights("processes");
  // Nothing is tried where somebody said, or where several arrays are refused.
  for (const std::string how : {"--arrays 1", "--kernels fused", "--schedule pipedream"}) {
    expect_done(kTrain + flags + lists + how + " --output-dir told --overwrite");
    expect_tried("told", {});
    EXPECT_EQ(summary_of("told").find("arrays")->as_int(), 1) << how;
  }
}

/// Jobs with batches of their own may be padded to other lengths, or end their epochs at other steps. Within
/// one array, batches must have one size. Without --arrays each of these jobs gets an array of its own.
TEST_F(JobCommands, JobsThatCannotShareAnArrayHaveTheirOwn) {
  const auto expect_apart = [&](const std::string& said, const std::string& why) {
    EXPECT_NE(said.find("2 jobs in as many arrays: " + why), std::string::npos) << said;
    const auto summary = parse_json(bytes("out/summary.json"), "summary.json");
    ASSERT_TRUE(summary);
    EXPECT_EQ(summary->find("arrays")->as_int(), 2);
    EXPECT_TRUE(summary->find("tried_arrays")->items().empty());  // nothing was
  };
  const std::string common = " --microbatch 4 --microbatches 2 --no-evaluation --threads 1 ",
                    to_8 = common + "--steps 8 ",
                    out = "--output-dir out --overwrite --save-weights w.safetensors ",
                    gnmt = "--model gnmt --hidden 8 --vocabulary 40 --lr 0.1 --lr-by-length ",
                    keeps = "--model mlp --width 16 --depth 2 --data synthetic:60 --keep-last --data-seed 1 ";
  const std::string fused = "train " + gnmt + "--fused --seed 1 2 --stages 2" + to_8;
  expect_apart(expect_done(fused + "--kernels loop " + out), "the samples of gnmt vary in length");
  for (const std::string job : {"0", "1"}) {
    expect_done("train " + gnmt + to_8 + "--save-weights alone.safetensors --seed " +
                (job == "0" ? "1" : "2"));
    EXPECT_TRUE(bytes("w.job" + job + ".safetensors") == bytes("alone.safetensors")) << "gnmt, job " << job;
  }
  EXPECT_NE(expect_done(fused + "--dry-run").find("2 jobs in 2 arrays, in turn"), std::string::npos);
  // One order of samples is one array's, of any length.
  EXPECT_EQ(expect_done(fused + "--data-seed 3 --dry-run").find("as many arrays"), std::string::npos);
  // With a flag that contradicts this, it is still an error.
  expect_refused(2, fused + "--arrays 1", "vary in length");
  expect_refused(2, fused + "--kernels fused", "vary in length");
  expect_refused(2, fused + "--schedule pipedream", "vary in length");
  expect_refused(2, "train " + gnmt + "--fused --seed 1 2 3 --arrays 2" + to_8, "give --arrays 3");

  // Jobs are at different steps, each after a checkpoint of its own. It also works in the ranks' processes.
  const struct {
    std::string model, job_file, why;
  } cases[] = {
      {gnmt + "--data-seed 1 --seed 5 ",
       "model: gnmt\nhidden: 8\nvocabulary: 40\nlr: 0.1\nlr_by_length: true\ndata_seed: 1\nseed: 5\n",
       "the jobs are at different steps, and the samples of gnmt vary in length"},
      {keeps, "model: mlp\nwidth: 16\ndepth: 2\ndata: synthetic:60\nkeep_last: true\ndata_seed: 1\n",
       "the jobs are at different steps, and with --keep-last"}};
  for (const auto& c : cases) {
    const std::pair<const char*, const char*> parts[] = {{"far", "5"}, {"near", "2"}};
    for (const auto& [name, steps] : parts)
      expect_done("train " + c.model + common + "--overwrite --checkpoint-at-end --output-dir " + name +
                  " --steps " + steps);
    expect_done("fuse far near --out array --overwrite");
    expect_done("train " + c.model + to_8 + "--save-weights alone.safetensors");
    const std::string alone = bytes("alone.safetensors");
    expect_apart(
        expect_done("train " + c.model + to_8 + "--fused --jobs 2 --kernels loop --resume array " + out),
        c.why);
    for (const std::string job : {"0", "1"})
      EXPECT_TRUE(bytes("w.job" + job + ".safetensors") == alone) << c.why << ", job " << job;
    write("job.yaml", c.job_file +
                          "stages: 2\nfused: true\njobs: 2\nkernels: loop\nmicrobatch: 4\nmicrobatches: 2\n"
                          "no_evaluation: true\nthreads: 1\nsteps: 8\nresume: array\noutput_dir: out\n"
                          "overwrite: true\nsave_weights: w.safetensors\n");
    expect_apart(expect_done("launch job.yaml"), c.why);
    for (const std::string job : {"0", "1"})
      EXPECT_TRUE(bytes("w.job" + job + ".safetensors") == alone) << c.why << ", launched, job " << job;
  }
}

TEST_F(JobCommands, WhatCannotBeAnArrayIsRefusedBeforeAnythingRuns) {
  const std::string train = std::string(kTrain) + "--model mlp --output-dir out --fused ";
  expect_refused(2, train + "--lr 1 2 --seed 1 2 3", "is for 3 jobs, --lr for 2");
  expect_refused(2, train + "--microbatch 4 8", "cannot differ");
  expect_refused(2, train + "--width 16 32",
                 "layers.0.linear.weight is [16, 16] in job 0 and [32, 32] in job 1");
  expect_refused(2, train + "--lr 0.1 x", "x");
  expect_refused(2, train + "--lr 0.1 0.2 --unfused 'nothing*'", "matches no layer");
  expect_refused(2, std::string(kTrain) + "--model mlp --lr 0.1 0.2", "give --fused");
  expect_refused(2, train + "--lr 0.1 0.2 --arrays 3", "2 jobs cannot be divided into 3 arrays");
  expect_refused(2, train + "--lr 0.1 0.2 --arrays 2 --stages 2 --schedule pipedream",
                 "keeps full by itself");
  expect_refused(2, "train --model mlp --fused --lr 0.1 0.2 --arrays 2 --replicas 2 --microbatches 3",
                 "do not divide among 2");
  expect_refused(2, std::string(kTrain) + "--model mlp --lr 0.1 --arrays 2", "a single job is not divided");
  // This head adds up its gradients in another order if it reads one tensor instead of two.
  expect_refused(2, std::string(kTrain) + "--model awd_lstm --fused --dropout 0 0.3",
                 "what head activations reads is ");
  expect_refused(2, train + "--arrays 2 --width 16 32", "[16, 16] in job 0 and [32, 32] in job 1");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

}  // namespace
}  // namespace millrace
