// Sweeps and searches as users run them: real workers, a killed sweep, a failing job, the best trial.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/plan/plan.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {
using std::chrono::milliseconds;

constexpr const char* kJob =
    "job: {model: mlp, width: 16, depth: 1, classes: 10, data: 'synthetic:128', steps: 12, microbatch: 4}\n";

class SweepJobs : public Jobs {
 protected:
  using Rows = std::vector<std::map<std::string, std::string>>;
  /// A table without quoted commas in the cells that are looked at.
  Rows table(const std::string& name) {
    Rows rows;
    std::vector<std::string> heads;
    for (const std::string& line : words_of(bytes(name), '\n')) {
      const std::vector<std::string> cells = split(line, ',');
      if (heads.empty()) {
        heads = cells;
        continue;
      }
      rows.emplace_back();
      for (std::size_t i = 0; i < std::min(cells.size(), heads.size()); ++i) rows.back()[heads[i]] = cells[i];
    }
    return rows;
  }
  /// serial.yaml and fused.yaml: one search, alone and in arrays of all rungs.
  void write_serial_and_mixed(const std::string& search) {
    write("serial.yaml", search + "mode: serial\n");
    write("fused.yaml", search + "mode: fused\nmixed: always\n");
  }
  /// Rows of a search's history: step, exit code and results; of a failed one no results.
  std::vector<std::string> history(const std::string& out) {
    std::vector<std::string> rows;
    for (const auto& row : table(out + "/history.csv")) {
      if (row.count("exit_code") == 0) continue;  // the rest of an error
      rows.push_back(row.at("id") + " " + row.at("from") + " " + row.at("iterations") + " " +
                     row.at("exit_code"));
      for (const char* result : {"result.final_loss", "result.loss", "result.top1"})
        rows.back() += row.at("exit_code") == "0" ? " " + row.at(result) : "";
    }
    return rows;
  }
  /// Starts, waits for `lines` lines of the journal, and kills the program with SIGKILL.
  void start_and_kill(const std::string& arguments, const std::string& out, std::size_t lines) {
    const std::string line = "cd " + folder_.string() + " && exec " MILLRACE_BIN_DIR "/millrace " +
                             arguments + " >killed.log 2>&1";
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
    const auto start = std::chrono::steady_clock::now();
    while (words_of(bytes(out + "/journal.jsonl"), '\n').size() < lines + 1) {
      ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(120)) << bytes("killed.log");
      std::this_thread::sleep_for(milliseconds(1));
    }
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it was through before it was killed: " << bytes("killed.log");
  }
};

TEST_F(SweepJobs, AJobOfOtherWorkIsMarked) {
  write("sweep.yaml", std::string(kJob) + "lists: {schedule: [gpipe, 1f1b, pipedream]}\nmodes: [serial]\n");
  const Ran ran = run("sweep sweep.yaml -o out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const std::size_t at = ran.output.find("other work"),
                    pipedream = ran.output.find("schedule=pipedream): loss");
  EXPECT_NE(at, std::string::npos) << ran.output;
  EXPECT_LT(pipedream, at) << "its minibatches are one microbatch each\n" << ran.output;
  EXPECT_EQ(ran.output.find("other work", at + 1), std::string::npos) << ran.output;
}

TEST_F(SweepJobs, SerialAndConcurrentGiveTheSameNumbersAndTheCurves) {
  write("sweep.yaml", std::string(kJob) +
                          "lists: {lr: [0.1, 0.2, 0.05], seed: [1, 2, 3]}\nmodes: [serial, concurrent]\n"
                          "measure: {epochs: 3, iterations: 4, repeats: 2, dry_repeats: 1}\n");
  const Ran ran = run("sweep sweep.yaml -o out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const Rows results = table("out/results.csv");
  ASSERT_EQ(results.size(), 6u);
  for (std::size_t i = 0; i < 3; ++i) {
    for (const char* cell : {"job", "lr", "seed", "final_loss", "loss", "top1"})
      EXPECT_EQ(results[i].at(cell), results[i + 3].at(cell)) << cell;
    EXPECT_GT(std::stod(results[i].at("step_s")), 0);
    EXPECT_EQ(results[i].at("samples"), results[0].at("samples"));
  }
  EXPECT_NE(ran.output.find(" samples/s, "), std::string::npos) << ran.output;
  EXPECT_EQ(ran.output.find("other work"), std::string::npos) << ran.output;
  // Each as the job by itself.
  ASSERT_EQ(run("train --model mlp --width 16 --depth 1 --classes 10 --data synthetic:128 --steps 12 "
                "--microbatch 4 --lr 0.2 --seed 2 --output-dir alone")
                .code,
            0);
  const Result<Json> alone = read_json((folder_ / "alone/summary.json").string());
  EXPECT_EQ(printed("%.17g", alone->find("final_loss")->as_double()), results[1].at("final_loss"));
  const Rows speed = table("out/throughputs.csv");
  ASSERT_EQ(speed.size(), 3u);
  EXPECT_NEAR(std::stod(speed[0].at("serial:fp32:avg")), 1, 1e-6);
  for (const auto& row : speed) {
    EXPECT_GT(std::stod(row.at("concurrent:fp32:avg")), 0);
    EXPECT_LE(std::stod(row.at("concurrent:fp32:min")), std::stod(row.at("concurrent:fp32:max")));
  }
  EXPECT_EQ(table("out/counters.csv").size(), 2u * (1 + 3));
  const Rows timing = table("out/run1/cpu/mlp/fp32/concurrent/B3/idx2/timing.csv");
  ASSERT_EQ(timing.size(), 3u);
  for (const auto& row : timing) {
    EXPECT_EQ(row.at("num_samples"), "64") << "4 steps of 4 microbatches of 4";
    EXPECT_GT(std::stod(row.at("epoch_stop")), std::stod(row.at("epoch_start")));
  }
  const std::string page = bytes("out/report.html");
  for (const char* part : {"Speed-up over the number of jobs", "Training loss", "Counters", "<svg"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  // Once more: nothing is left to do, nothing changes.
  const std::string before = bytes("out/journal.jsonl");
  EXPECT_EQ(run("sweep sweep.yaml -o out").code, 0);
  EXPECT_EQ(bytes("out/journal.jsonl"), before);
}

TEST_F(SweepJobs, OneThatFailsSaysWhyAndEndsNobodyElse) {
  write("sweep.yaml", std::string(kJob) + "lists: {lr: [0.1, 1000000, 0.2]}\nmodes: [serial, concurrent]\n");
  const Ran ran = run("sweep sweep.yaml -o out");
  EXPECT_EQ(ran.code, 1) << ran.output;
  EXPECT_NE(ran.output.find("the loss is"), std::string::npos) << ran.output;
  const Rows results = table("out/results.csv");
  ASSERT_EQ(results.size(), 6u);
  for (const auto& row : results) EXPECT_EQ(row.at("exit_code"), row.at("lr") == "1000000" ? "6" : "0");
  EXPECT_EQ(run("sweep sweep.yaml -o out").code, 1) << "a failure stays on record";
}

TEST_F(SweepJobs, JobsThatGoOverTheMemoryTogetherAreEndedAndNotMeasured) {
  // A worker takes more than 30 MiB before its first step. Its steps go on until the pool has looked.
  write("sweep.yaml", std::string(kJob) +
                          "lists: {lr: [0.1, 0.2]}\nmodes: [concurrent]\n"
                          "measure: {memory: 30MiB, dry_iterations: 1000000, dry_repeats: 1, repeats: 1}\n");
  const Ran ran = run("sweep sweep.yaml -o out");
  EXPECT_EQ(ran.code, 2) << ran.output;
  EXPECT_NE(ran.output.find("went over the memory limit"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("not even one job runs in mode concurrent"), std::string::npos) << ran.output;
}

TEST_F(SweepJobs, AKilledSweepGoesOnWithEveryResultOnce) {
  write("sweep.yaml", std::string(kJob) + "grid: {lr: [0.1, 0.2], seed: [1, 2, 3]}\nmodes: [concurrent]\n");
  ASSERT_EQ(run("sweep sweep.yaml -o whole").code, 0);
  start_and_kill("sweep sweep.yaml -o killed", "killed", 2);
  const Ran ran = run("sweep sweep.yaml -o killed");
  ASSERT_EQ(ran.code, 0) << ran.output;
  std::multiset<std::string> keys;
  for (const std::string& line : words_of(bytes("killed/journal.jsonl"), '\n')) {
    const Result<Json> json = parse_json(line, "journal");
    ASSERT_TRUE(json);
    if (const Json* key = json->find("key")) keys.insert(key->as_string());
  }
  EXPECT_EQ(keys.size(), 6u);
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 6u);
  const Rows whole = table("whole/results.csv"), killed = table("killed/results.csv");
  ASSERT_EQ(whole.size(), killed.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (const char* cell : {"job", "final_loss", "loss", "top1", "exit_code"})
      EXPECT_EQ(whole[i].at(cell), killed[i].at(cell)) << i << " " << cell;
  }
}

TEST_F(SweepJobs, FoldersOfOthersAreRefused) {
  write("sweep.yaml", std::string(kJob) + "lists: {lr: [0.1, 0.2]}\n");
  ASSERT_EQ(run("sweep sweep.yaml -o out").code, 0);
  write("other.yaml", std::string(kJob) + "lists: {lr: [0.1, 0.3]}\n");
  const Ran other = run("sweep other.yaml -o out");
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.output.find("lists.lr was [0.1,0.2], is [0.1,0.3]"), std::string::npos) << other.output;
  write("tune.yaml", std::string(kJob) + "space: {lr: {uniform: [0.1, 0.2]}}\nmost: 3\n");
  EXPECT_EQ(run("tune tune.yaml -o out").code, 2);
  fs::create_directories(folder_ / "mine");
  write("mine/thesis.txt", "mine");
  EXPECT_EQ(run("sweep sweep.yaml -o mine").code, 2);
  EXPECT_EQ(run("sweep sweep.yaml -o mine --overwrite").code, 2) << "only a sweep's folder is emptied";
  EXPECT_EQ(bytes("mine/thesis.txt"), "mine");
  EXPECT_EQ(run("sweep other.yaml -o out --overwrite").code, 0);
}

TEST_F(SweepJobs, HyperbandFindsWhatAnExhaustiveSearchFinds) {
  // Rates over six decades and cosine: only the right rate learns, and more iterations learn more.
  const std::string space =
      "job: {model: mlp, width: 32, depth: 1, classes: 10, data: 'synthetic:256', microbatch: 4, lr_policy: "
      "cosine}\nspace: {lr: {log_uniform: [1e-6, 0.5]}, momentum: {choice: [0, 0.5]}}\n"
      "iteration: 6\nmetric: loss\nseed: 5\nmode: concurrent\n";
  write("hyperband.yaml", space + "algorithm: hyperband\nmost: 9\neta: 3\n");
  write("exhaustive.yaml", space + "algorithm: random\ntrials: 17\niterations: 9\n");
  ASSERT_EQ(run("tune exhaustive.yaml -o all").code, 0);
  start_and_kill("tune hyperband.yaml -o some", "some", 5);
  const Ran ran = run("tune hyperband.yaml -o some");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const Result<Json> all = read_json((folder_ / "all/summary.json").string());
  const Result<Json> some = read_json((folder_ / "some/summary.json").string());
  ASSERT_TRUE(all && some);
  const Json *best = some->find("best"), *exhaustive = all->find("best"), *cost = some->find("cost");
  EXPECT_EQ(best->find("trial")->as_int(), exhaustive->find("trial")->as_int());
  EXPECT_EQ(best->find("iterations")->as_int(), 9);
  // A trial that went on from its checkpoints has the bits of one that ran through.
  EXPECT_EQ(best->find("loss")->as_double(), exhaustive->find("loss")->as_double());
  EXPECT_EQ(best->find("settings")->dump(), exhaustive->find("settings")->dump());
  EXPECT_EQ(cost->find("iterations")->as_int(), 69);
  EXPECT_EQ(cost->find("restarts_iterations")->as_int(), 78);
  EXPECT_EQ(all->find("cost")->find("iterations")->as_int(), 17 * 9);
  // The killed one has every step once, and the best trial's checkpoint alone is left.
  std::set<std::string> steps;
  for (const auto& row : table("some/history.csv"))
    EXPECT_TRUE(steps.insert(row.at("id") + " " + row.at("iterations")).second);
  EXPECT_EQ(steps.size(), 22u);
  int checkpoints = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "some"))
    checkpoints += entry.path().filename().string().starts_with("step-") && entry.is_directory();
  EXPECT_EQ(checkpoints, 1);
  EXPECT_NE(bytes("some/report.html").find("<svg"), std::string::npos);
}

TEST_F(SweepJobs, FusedIsSerialBitForBitWithItsCurves) {
  write(
      "sweep.yaml",
      "job: {model: mlp, width: 16, depth: 1, classes: 10, data: 'synthetic:128', steps: 12, microbatch: 4, "
      "kernels: loop}\nlists: {lr: [0.1, 100000, 0.05], seed: [1, 2, 3], momentum: [0, 0.9, 0.5]}\n"
      "modes: [serial, fused]\nunfused: [layers.0.*]\n"
      "measure: {epochs: 2, iterations: 4, repeats: 1, sizes: [1, 3]}\n");
  const Ran ran = run("sweep sweep.yaml -o out");
  EXPECT_EQ(ran.code, 1) << "job 1 diverges: " << ran.output;
  const Rows results = table("out/results.csv");
  ASSERT_EQ(results.size(), 6u) << ran.output;
  for (std::size_t i = 0; i < 3; ++i) {
    for (const char* cell : {"job", "lr", "exit_code", "final_loss", "loss"})
      EXPECT_EQ(results[i].at(cell), results[i + 3].at(cell)) << cell;
    EXPECT_EQ(results[i].at("exit_code"), i == 1 ? "6" : "0");
  }
  EXPECT_EQ(table("out/partially_fused.csv").size(), 2u);
  const Rows timing = table("out/run0/cpu/mlp/fp32/fused/B3/timing.csv");
  ASSERT_EQ(timing.size(), 2u) << ran.output;
  EXPECT_EQ(timing[0].at("num_samples"), "192") << "3 jobs, 4 steps of 4 microbatches of 4";
  const std::string page = bytes("out/report.html");
  for (const char* part : {"Partial fusion", "dashed over them", "stroke-dasharray"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  write("wrong.yaml",
        std::string(kJob) + "lists: {lr: [0.1, 0.2]}\nmodes: [fused]\nunfused: [linear9]\nmeasure: {}\n");
  const Ran wrong = run("sweep wrong.yaml -o wrong");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.output.find("'linear9' matches no layer"), std::string::npos) << wrong.output;
  EXPECT_FALSE(fs::exists(folder_ / "wrong")) << "nothing was begun";
}

/// Five jobs where a rank has memory for two: rounds on two stages, each job with the bits of its own run.
TEST_F(SweepJobs, ThePlannerDividesTheJobsIntoRounds) {
  const std::string model = "--model mlp --width 32 --depth 2 --classes 10 --microbatch 4 ";
  ASSERT_EQ(
      run("profile " + model + "--jobs 2,4 --rule adam --repetitions 1 --blocks 1 --out profile.json").code,
      0);
  ASSERT_EQ(
      run("plan --profile profile.json --ranks 2 --stages 2 --microbatches 2 --jobs 1 --out one.json").code,
      0);
  const Result<Plan> one = Plan::load((folder_ / "one.json").string());
  ASSERT_TRUE(one);
  Bytes peak = 0;
  for (const PlanStage& stage : one->stages) peak = std::max(peak, stage.peak_bytes);
  const auto sweep = [&](const std::string& more, Bytes memory) {
    return "job: {model: mlp, width: 32, depth: 2, classes: 10, data: 'synthetic:128', steps: 6, rule: adam, "
           "microbatches: 2, kernels: loop, " +
           more + "}\nlists: {lr: [0.1, 0.2, 0.05, 0.01, 0.02], seed: [1, 2, 3, 4, 5]}\n" +
           "modes: [serial, fused]\nplan: {profile: profile.json, ranks: 2, memory: " +
           std::to_string(memory) + "B}\n";
  };
  write("sweep.yaml", sweep("microbatch: 4", peak * 5 / 2));
  const Ran ran = run("sweep sweep.yaml -o out");
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const char* says : {"5 jobs in", "chosen: arrays of", "do not fit the memory"})
    EXPECT_NE(ran.output.find(says), std::string::npos) << ran.output;
  const Plan plan = Plan::load((folder_ / "out/plan.json").string()).value();
  EXPECT_EQ(plan.num_jobs(), 5);
  EXPECT_GT(plan.rounds.size(), 1u) << ran.output;
  EXPECT_NE(bytes("out/journal.jsonl").find("\"reasons\""), std::string::npos);
  EXPECT_TRUE(fs::exists(folder_ / "out/results/fused/array0/round1/summary.json"));
  const Rows results = table("out/results.csv");
  ASSERT_EQ(results.size(), 10u) << ran.output;
  for (std::size_t i = 0; i < 5; ++i) {
    for (const char* cell : {"job", "lr", "exit_code", "final_loss", "loss"})
      EXPECT_EQ(results[i].at(cell), results[i + 5].at(cell)) << cell;
  }
  // Again: nothing is planned or trained a second time.
  const Ran again = run("sweep sweep.yaml -o out");
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_EQ(again.output.find("chosen: arrays of"), std::string::npos) << again.output;

  // Settings without a measured profile, and settings that fit nowhere, are refused before anything runs.
  write("other.yaml", sweep("microbatch: 8", peak * 5 / 2));
  const Ran other = run("sweep other.yaml -o other");
  EXPECT_EQ(other.code, 2) << other.output;
  EXPECT_NE(other.output.find("measured with microbatch 4, the job trains with 8"), std::string::npos)
      << other.output;
  write("small.yaml", sweep("microbatch: 4", 1000));
  const Ran small = run("sweep small.yaml -o small");
  EXPECT_EQ(small.code, 2) << small.output;
  EXPECT_NE(small.output.find("no plan fits"), std::string::npos) << small.output;
  EXPECT_FALSE(fs::exists(folder_ / "small"));
}

TEST_F(SweepJobs, FusedHyperbandJoinsSurvivorsAndGivesTheBitsOfSerial) {
  const std::string search =
      "job: {model: mlp, width: 16, depth: 1, classes: 10, data: 'synthetic:128', microbatch: 4, lr_policy: "
      "cosine, kernels: loop}\nspace: {lr: {log_uniform: [1e-4, 0.5]}, momentum: {uniform: [0, 0.5]}, "
      "microbatch: {choice: [2, 4]}}\nmost: 4\neta: 2\niteration: 4\nseed: 3\n";
  write("serial.yaml", search + "mode: concurrent\n");
  write("fused.yaml", search + "mode: fused\n");
  ASSERT_EQ(run("tune serial.yaml -o serial").code, 0);
  start_and_kill("tune fused.yaml -o fused", "fused", 3);
  const Ran ran = run("tune fused.yaml -o fused");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const auto steps = [&](const std::string& name) {
    std::set<std::string> all;
    for (const auto& row : table(name + "/history.csv"))
      all.insert(row.at("id") + " " + row.at("from") + " " + row.at("iterations") + " " +
                 row.at("result.loss"));
    return all;
  };
  EXPECT_EQ(steps("serial"), steps("fused"));
  const Result<Json> one = read_json((folder_ / "serial/summary.json").string());
  const Result<Json> other = read_json((folder_ / "fused/summary.json").string());
  EXPECT_EQ(one->find("best")->find("trial")->as_int(), other->find("best")->find("trial")->as_int());
  EXPECT_EQ(one->find("best")->find("settings")->dump(), other->find("best")->find("settings")->dump());
  EXPECT_LT(other->find("cost")->find("iterations")->as_int(),
            other->find("cost")->find("restarts_iterations")->as_int());
  // The sweep leaves a checkpoint from which a training can continue.
  const std::string best = other->find("best")->find("folder")->as_string();
  EXPECT_EQ(run("fuse " + best + " --out again").code, 0) << best;
}

TEST_F(SweepJobs, AshaIsTheSameWithAnyNumberOfProcesses) {
  const std::string search = std::string(kJob) +
                             "space: {lr: {log_uniform: [1e-4, 0.5]}}\nalgorithm: asha\ntrials: 6\nmost: 4\n"
                             "eta: 2\nlanes: 3\niteration: 2\nmode: concurrent\n";
  write("one.yaml", search + "at_once: 1\n");
  write("three.yaml", search + "at_once: 3\n");
  ASSERT_EQ(run("tune one.yaml -o one").code, 0);
  ASSERT_EQ(run("tune three.yaml -o three").code, 0);
  const auto steps = [&](const std::string& name) {
    std::set<std::string> all;
    for (const auto& row : table(name + "/history.csv"))
      all.insert(row.at("id") + " " + row.at("from") + " " + row.at("iterations") + " " +
                 row.at("result.loss"));
    return all;
  };
  EXPECT_EQ(steps("one"), steps("three"));
  EXPECT_GT(steps("one").size(), 6u);
}

TEST_F(SweepJobs, FusedAshaMixesRungsAndGivesTheBitsOfSerial) {
  const std::string search =
      "job: {model: mlp, width: 16, depth: 1, classes: 10, data: 'synthetic:128', dropout: 0.1, kernels: "
      "loop, "
      "lr_policy: cosine}\nspace: {lr: {log_uniform: [1e-3, 0.5]}, momentum: {uniform: [0, 0.9]}, "
      "microbatch: "
      "{choice: [2, 4]}}\nalgorithm: asha\ntrials: 14\nmost: 9\neta: 3\nlanes: 5\niteration: 4\nseed: 2\n";
  write_serial_and_mixed(search);
  write("small.yaml", search + "mode: fused\nmixed: always\narray: 2\ncheckpoints: all\n");
  write("apart.yaml", search + "mode: fused\nmixed: never\n");
  ASSERT_EQ(run("tune serial.yaml -o serial").code, 0);
  start_and_kill("tune fused.yaml -o fused", "fused", 9);
  EXPECT_NE(bytes("fused/journal.jsonl").find("on its way to"), std::string::npos)
      << "nothing was on its way";
  for (const char* name : {"fused", "small", "apart"}) {
    const Ran ran = run("tune " + std::string(name) + ".yaml -o " + name);
    ASSERT_EQ(ran.code, 0) << ran.output;
  }
  const auto summary = [&](const std::string& name) {
    return read_json((folder_ / name / "summary.json").string()).value();
  };
  /// Arrays whose jobs were at different steps at some time, of all arrays.
  const auto mixed_arrays = [&](const std::string& name) {
    int mixed = 0, all = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / name)) {
      if (entry.path().filename() != "jobs.csv") continue;
      std::map<std::string, std::set<std::string>> own;
      for (const auto& row : table(fs::relative(entry.path(), folder_).string()))
        own[row.at("step")].insert(row.count("own_step") ? row.at("own_step") : row.at("step"));
      mixed += std::ranges::any_of(own, [](const auto& step) { return step.second.size() > 1; });
      ++all;
    }
    return std::pair(mixed, all);
  };
  const std::vector<std::string> expected = history("serial");
  const Json serial = summary("serial");
  for (const char* name : {"fused", "small", "apart"}) {
    EXPECT_EQ(history(name), expected) << name;
    const Json json = summary(name);
    const Json *best = json.find("best"), *cost = json.find("cost");
    for (const char* what : {"trial", "iterations", "loss", "settings"})
      EXPECT_EQ(best->find(what)->dump(), serial.find("best")->find(what)->dump()) << name << " " << what;
    EXPECT_EQ(cost->find("iterations")->dump(), serial.find("cost")->find("iterations")->dump());
    EXPECT_LT(cost->find("run_iterations")->as_int(), cost->find("iterations")->as_int()) << name;
    EXPECT_EQ(run("fuse " + best->find("folder")->as_string() + " --overwrite --out again").code, 0) << name;
  }
  EXPECT_GE(mixed_arrays("fused").first, 3);
  EXPECT_GE(mixed_arrays("small").first, 1);
  EXPECT_EQ(mixed_arrays("apart").first, 0);
  EXPECT_GT(mixed_arrays("apart").second, 0);
  const auto iterations = [&](const Json& json) {
    return json.find("cost")->find("run_iterations")->as_int();
  };
  EXPECT_LT(iterations(summary("fused")), iterations(summary("apart")));
  // The best one's checkpoint alone is left; all of them, if they were asked for.
  const auto checkpoints = [&](const std::string& name) {
    int count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / name))
      count += entry.path().filename().string().starts_with("step-") && entry.is_directory();
    return count;
  };
  EXPECT_EQ(checkpoints("fused"), 1);
  EXPECT_GT(checkpoints("small"), 5);
  EXPECT_NE(bytes("fused/report.html").find("iterations in all"), std::string::npos);
  const std::string before = bytes("fused/journal.jsonl");
  EXPECT_EQ(run("tune fused.yaml -o fused").code, 0);
  EXPECT_EQ(bytes("fused/journal.jsonl"), before) << "nothing is left to do";
}

TEST_F(SweepJobs, ATrialThatFailsInAMixedArrayDisturbsNobody) {
  // The worst go on here: weights that grow a hundredfold in a step are finite after 4 steps, after 12 they
  // are not.
  const std::string search =
      "job: {model: mlp, width: 16, depth: 1, classes: 10, data: 'synthetic:128', microbatch: 2, kernels: "
      "loop}\nspace: {lr: {uniform: [0.4, 0.9]}, weight_decay: {choice: [0, 1, 2, 3, 1000]}}\nalgorithm: "
      "asha\n"
      "trials: 10\nmost: 9\neta: 3\nlanes: 4\niteration: 4\ngoal: max\nseed: 2\n";
  write_serial_and_mixed(search);
  for (const char* mode : {"serial", "fused"})
    ASSERT_EQ(run("tune " + std::string(mode) + ".yaml -o " + mode).code, 0) << mode;
  const std::vector<std::string> serial = history("serial");
  EXPECT_EQ(history("fused"), serial);
  EXPECT_TRUE(std::ranges::any_of(serial, [](const std::string& row) { return row.ends_with(" 1 3 6"); }))
      << ::testing::PrintToString(serial);
  EXPECT_NE(bytes("fused/history.csv").find("the loss is not finite from step "), std::string::npos);
  const std::string before = bytes("fused/journal.jsonl");
  EXPECT_EQ(run("tune fused.yaml -o fused").code, 0) << "failures stay on record";
  EXPECT_EQ(bytes("fused/journal.jsonl"), before);
  EXPECT_EQ(run("tune fused.yaml -o fused --retry-failed").code, 0);
  EXPECT_EQ(history("fused"), serial) << "they fail again, each by itself";
}

/// By top1 a diverged trial could tie with the others, or lead before it diverges. The search must neither
/// name it nor continue it.
TEST_F(SweepJobs, ATrialThatDivergesIsNeverTheBest) {
  for (const std::string algorithm : {"hyperband", "asha"}) {
    const std::string trials = algorithm == "asha" ? "trials: 6\n" : "";
    write("tune.yaml",
          "job: {model: mlp, width: 32, depth: 4, classes: 10, data: 'synthetic:128', microbatch: 4, "
          "weight_decay: 1}\nspace: {lr: {choice: [0.01, 1000000]}}\nalgorithm: " +
              algorithm + "\n" + trials + "most: 3\neta: 3\niteration: 2\nmetric: top1\nseed: 3\n");
    const Ran ran = run("tune tune.yaml -o " + algorithm);
    ASSERT_TRUE(ran.code == 0 || ran.code == 1) << ran.output;
    const Result<Json> found = read_json((folder_ / algorithm / "summary.json").string());
    ASSERT_TRUE(found) << ran.output;
    EXPECT_EQ(found->find("best")->find("settings")->find("lr")->as_string(), "0.01") << ran.output;
    EXPECT_GT(found->find("failed")->as_int(), 0) << "a rate of a million diverges: " << ran.output;
  }
}

/// Six trials of three settings, then eight: the results of eight from the start, and each setting trained
/// once.
TEST_F(SweepJobs, MoreTrialsAddToTheResultsAndEqualOnesAreTrainedOnce) {
  const std::string search = std::string(kJob) + "space: {lr: {choice: [0.1, 0.2, 0.4]}}\niteration: 2\n";
  for (const std::string how : {"algorithm: random\niterations: 2\n", "algorithm: asha\nmost: 4\neta: 2\n"}) {
    write("six.yaml", search + how + "trials: 6\nname: s\n");
    write("eight.yaml", search + how + "trials: 8\nname: s\n");
    ASSERT_EQ(run("tune six.yaml -o grown --overwrite").code, 0);
    const Ran more = run("tune eight.yaml -o grown"), eight = run("tune eight.yaml -o whole --overwrite");
    ASSERT_EQ(more.code, 0) << more.output;
    ASSERT_EQ(eight.code, 0) << eight.output;
    // All but times, which are the runtime, and the table's line of the cost.
    const auto rows = [&](const std::string& out) {
      std::string text;
      for (auto row : table(out + "/history.csv")) {
        row.erase("runtime");
        for (const auto& [name, cell] : row) text += name + "=" + cell + " ";
        text += "\n";
      }
      return text;
    };
    EXPECT_EQ(rows("grown"), rows("whole"));
    const Json grown = read_json((folder_ / "grown/summary.json").string()).value(),
               whole = read_json((folder_ / "whole/summary.json").string()).value();
    for (const char* what : {"trial", "iterations", "loss", "settings"})
      EXPECT_EQ(grown.find("best")->find(what)->dump(), whole.find("best")->find(what)->dump());
    EXPECT_EQ(grown.find("cost")->find("iterations")->dump(), whole.find("cost")->find("iterations")->dump());
    std::map<std::string, std::string> first;  // by lr and iterations: the trial that was trained
    int same = 0;
    for (const auto& row : table("whole/history.csv")) {
      const auto [known, is_new] =
          first.emplace(row.at("params.lr") + " " + row.at("iterations"), row.at("id"));
      EXPECT_EQ(row.at("same_as"), is_new ? "" : known->second);
      same += !is_new;
    }
    EXPECT_GT(same, 0);
    std::size_t trained = 0;
    for (const std::string& line : words_of(eight.output, '\n')) trained += line.starts_with("trial ");
    EXPECT_EQ(trained, first.size()) << eight.output;
    const Ran fewer = run("tune six.yaml -o grown");
    EXPECT_EQ(fewer.code, 2);
    EXPECT_NE(fewer.output.find("trials was 8, is 6"), std::string::npos) << fewer.output;
  }
}

TEST_F(SweepJobs, JobsThatCannotBeAtDifferentStepsShareArraysOfARung) {
  // The last batch of an epoch is smaller: jobs of an array must come to it together, and are told to be one.
  const std::string search =
      "job: {model: mlp, width: 16, depth: 1, classes: 10, data: 'synthetic:90', microbatch: 4, kernels: "
      "loop, "
      "keep_last: true, arrays: 1}\nspace: {lr: {log_uniform: [1e-3, 0.5]}}\nalgorithm: asha\ntrials: "
      "6\nmost: 3\n"
      "eta: 3\nlanes: 3\niteration: 2\n";
  write_serial_and_mixed(search);
  ASSERT_EQ(run("tune serial.yaml -o serial").code, 0);
  const Ran ran = run("tune fused.yaml -o fused");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("arrays hold trials of one rung from here on: "), std::string::npos)
      << ran.output;
  EXPECT_EQ(history("fused"), history("serial"));
  EXPECT_NE(ran.output.find("array of 3 trials, 3 at 0"), std::string::npos) << ran.output;
}

TEST_F(SweepJobs, DropoutOfNothingSharesAnArray) {
  const std::string search = std::string(kJob) +
                             "space: {lr: {uniform: [0.01, 0.1]}, dropout: {choice: [0, 0.2]}}\n"
                             "algorithm: random\ntrials: 6\niterations: 1\niteration: 4\nmetric: top1\n";
  write_serial_and_mixed(search);
  for (const char* mode : {"serial", "fused"}) {
    const Ran ran = run(std::string("tune ") + mode + ".yaml -o " + mode);
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_EQ(ran.output.find("FAILED"), std::string::npos) << ran.output;
  }
  std::set<std::string> dropouts;
  for (const auto& row : table("fused/history.csv")) dropouts.insert(row.at("params.dropout"));
  EXPECT_EQ(dropouts, (std::set<std::string>{"0", "0.2"}));
}

TEST_F(SweepJobs, EachPartitionIsTriedBeforeTheStart) {
  const std::string job =
      "job: {model: transformer_lm, hidden: 16, feed_forward: 16, vocabulary: 50, length: 8,\n"
      "      data: 'synthetic:16', steps: 2, microbatch: 2, heads: 2}\n";
  write("tune.yaml", job +
                         "space: {lr: {uniform: [0.1, 0.2]}, heads: {choice: [2, 3, 4]}}\n"
                         "algorithm: random\ntrials: 12\niterations: 1\niteration: 2\n");
  write("fused.yaml", bytes("tune.yaml") + "mode: fused\n");
  write("sweep.yaml", job + "lists: {lr: [0.1, 0.2, 0.3], heads: [2, 4, 3]}\n");
  for (const char* command : {"tune tune.yaml", "tune fused.yaml", "sweep sweep.yaml"}) {
    for (const char* how : {" --dry-run", " -o out"}) {
      const Ran ran = run(std::string(command) + how);
      EXPECT_EQ(ran.code, 2) << command << ran.output;
      EXPECT_NE(ran.output.find(".yaml with heads:3: --heads"), std::string::npos) << command << ran.output;
      EXPECT_FALSE(fs::exists(folder_ / "out")) << command;
    }
  }
}

TEST_F(SweepJobs, AMetricThatTheModelDoesNotHaveIsSaidOnce) {
  write("tune.yaml",
        std::string(kJob) + "space: {lr: {uniform: [0.1, 0.2]}}\nmost: 3\niteration: 2\nmetric: bleu\n");
  const Ran ran = run("tune tune.yaml -o out");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.output.find("it has final_loss, loss, top1, top5"), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace millrace
