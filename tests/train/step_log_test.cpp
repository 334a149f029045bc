// The step log: what a line says, what a run that goes on keeps, and a disk that is full.
#include "runtime/train/step_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <sstream>

#include "runtime/base/json.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace {

class StepLogFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/millrace-log-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::vector<std::string> lines(const std::string& file) const {
    const Result<std::string> text = read_file(folder_ / file);
    EXPECT_TRUE(text) << file;
    std::vector<std::string> result;
    std::istringstream stream(text ? *text : "");
    for (std::string line; std::getline(stream, line);) result.push_back(line);
    return result;
  }
  static Json parsed(const std::string& line) {
    const Result<Json> json = parse_json(line, "line");
    EXPECT_TRUE(json) << line;
    return json ? *json : Json();
  }
  /// "3", "after 2" or "header" of each line.
  std::vector<std::string> steps() const {
    std::vector<std::string> result;
    for (const std::string& line : lines("steps.rank2.jsonl")) {
      const Json json = parsed(line);
      if (const Json* step = json.find("step"))
        result.push_back(std::to_string(step->as_int()));
      else if (const Json* after = json.find("after_step"))
        result.push_back("after " + std::to_string(after->as_int()));
      else
        result.push_back(json.find("format") ? "header" : "?");
    }
    return result;
  }

  static StepLogHeader header() { return {.run = "r1", .rank = 2, .stage = 1, .ranks = 4}; }
  static StepRecord record(std::int64_t step) { return {.step = step}; }
  static NamedValues job_losses(double loss) { return {{"loss", loss}, {"top1", 0.5}}; }

  std::filesystem::path folder_;
};

/// Powers of two: sums of them are exact.
TEST_F(StepLogFile, ALineHasTheNumbersOfItsStep) {
  StepLog log(folder_, header(), 0);
  StepRecord r = record(5);
  r.times = {.forward = 0.25,
             .backward = 0.5,
             .send = 0.125,
             .receive = 2,
             .wait = 4,
             .all_reduce = 8,
             .update = 0.25,
             .data = 16};
  r.step_s = 4;
  r.ended_s = 32;
  r.cpu_s = 64;
  r.samples_per_s = 3;
  r.lr = {0.0625};
  r.gradient_norms = {1.5};
  r.loss_scales = {1024};
  r.skipped = {1};
  r.peak_memory_bytes = 100;
  r.taken_memory_bytes = 150;
  r.resident_memory_bytes = 200;
  r.weight_versions = 3;
  r.stashed = 2;
  r.losses = LossSums{.values = {{"loss", 2.5}, {"top1", 0.75}}, .jobs = {{{"loss", 2.5}, {"top1", 0.75}}}};
  log.write(r);
  const auto written = lines("steps.rank2.jsonl");
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(
      written[0],
      R"({"format":"millrace-steps-1","run":"r1","rank":2,"stage":1,"ranks":4,"clock_ns":0,"unix_ns":0,"clock_offset_ns":0,"clock_round_trip_ns":0})");
  const std::map<std::string, double> expected{{"step", 5},
                                               {"loss", 2.5},
                                               {"top1", 0.75},
                                               {"samples_per_s", 3},
                                               {"step_s", 4},
                                               {"ended_s", 32},
                                               {"cpu_s", 64},
                                               {"forward_s", 0.25},
                                               {"backward_s", 0.5},
                                               {"send_s", 0.125},
                                               {"receive_s", 2},
                                               {"wait_s", 4},
                                               {"all_reduce_s", 8},
                                               {"update_s", 0.25},
                                               {"data_s", 16},
                                               {"bubble_share", 0.75},
                                               {"peak_memory_bytes", 100},
                                               {"taken_memory_bytes", 150},
                                               {"resident_memory_bytes", 200},
                                               {"weight_versions", 3},
                                               {"stashed_microbatches", 2},
                                               {"lr", 0.0625},
                                               {"gradient_norm", 1.5},
                                               {"loss_scale", 1024}};
  const Json line = parsed(written[1]);
  for (const auto& [name, value] : line.members()) {
    if (name == "skipped") {
      EXPECT_TRUE(value.as_bool());
      continue;
    }
    const auto known = expected.find(name);
    ASSERT_NE(known, expected.end()) << name;
    EXPECT_EQ(value.as_double(), known->second) << name;
  }
  EXPECT_EQ(line.members().size(), expected.size() + 1);
}

TEST_F(StepLogFile, WhatARankDoesNotKnowIsNotInItsLine) {
  StepLog log(folder_, header(), 0);
  StepRecord r = record(0);
  log.write(r);
  r.gradient_norms = {std::numeric_limits<double>::infinity()};
  log.write(r);
  for (const std::size_t l : {1u, 2u}) {
    const Json line = parsed(lines("steps.rank2.jsonl").at(l));
    ASSERT_NE(line.find("loss"), nullptr);
    EXPECT_TRUE(line.find("loss")->is_null());
    for (const char* absent : {"gradient_norm", "loss_scale", "skipped", "own_step"})
      EXPECT_EQ(line.find(absent), nullptr) << absent;
  }
}

/// Names of jobs count from the run's first one, and a job that has ended has no values.
TEST_F(StepLogFile, JobsAreNumberedAmongAll) {
  StepLogHeader of_jobs = header();
  of_jobs.first_job = 4;
  StepLog log(folder_, of_jobs, 0);
  StepRecord r = record(0);
  r.lr = {0.5, 0.25, 0.125};
  r.gradient_norms = {1, 2, 3};
  r.own_steps = {7, 8, 9};
  r.ended = {0, 1, 0};
  r.losses = LossSums{.values = {{"loss", 1}, {"loss.job0", 2}, {"loss.job2", 4}}};
  log.write(r);
  const Json line = parsed(lines("steps.rank2.jsonl").at(1));
  const std::map<std::string, double> expected{
      {"loss", 1},         {"loss.job4", 2},          {"loss.job6", 4},          {"lr.job4", 0.5},
      {"lr.job6", 0.125},  {"gradient_norm.job4", 1}, {"gradient_norm.job6", 3}, {"own_step.job4", 7},
      {"own_step.job6", 9}};
  for (const auto& [name, value] : expected) {
    ASSERT_NE(line.find(name), nullptr) << name;
    EXPECT_EQ(line.find(name)->as_double(), value) << name;
  }
  for (const char* absent : {"lr.job5", "own_step.job5", "gradient_norm.job5", "loss.job0", "lr"})
    EXPECT_EQ(line.find(absent), nullptr) << absent;
  EXPECT_EQ(numbered_from("loss.job1", 4), "loss.job5");
  EXPECT_EQ(numbered_from("loss.job1", 0), "loss.job1");
  EXPECT_EQ(numbered_from("loss.jobs", 4), "loss.jobs");
}

/// Steps that will be done again are cut off; evaluations after the last step that stays are kept, and a line
/// that was not finished goes.
TEST_F(StepLogFile, ARunThatGoesOnKeepsTheLinesOfEarlierSteps) {
  {
    StepLog log(folder_, header(), 0);
    for (std::int64_t step = 0; step < 4; ++step) {
      log.write(record(step));
      log.write(EvaluationReport{.step = step + 1, .values = {{"loss", 1}}, .samples = 8});
    }
    log.write(ScoreReport{.step = 4, .values = {{"bleu", 20}}, .seconds = 1});
  }
  EXPECT_EQ(steps(), (std::vector<std::string>{"header", "0", "after 1", "1", "after 2", "2", "after 3", "3",
                                               "after 4", "after 4"}));
  {
    StepLog log(folder_, header(), 4);  // as many lines as make it look for the place more than once
    for (std::int64_t step = 4; step < 2000; ++step) log.write(record(step));
  }
  EXPECT_GT(std::filesystem::file_size(folder_ / "steps.rank2.jsonl"), 300'000u);
  if (std::FILE* file = std::fopen((folder_ / "steps.rank2.jsonl").c_str(), "a")) {
    std::fputs("{\"step\":1,\"lo", file);
    std::fclose(file);
  }
  {
    StepLog log(folder_, header(), 4);  // the run is done: it evaluates once more
    log.write(EvaluationReport{.step = 4, .values = {{"loss", 1}}, .samples = 8});
  }
  EXPECT_EQ(steps(), (std::vector<std::string>{"header", "0", "after 1", "1", "after 2", "2", "after 3", "3",
                                               "after 4", "after 4", "header"}));
  {
    StepLog log(folder_, header(), 2);
    log.write(record(2));
  }
  EXPECT_EQ(steps(), (std::vector<std::string>{"header", "0", "after 1", "1", "after 2", "header", "2"}));
  { StepLog log(folder_, header(), 0); }
  EXPECT_EQ(steps(), std::vector<std::string>{"header"});
}

TEST_F(StepLogFile, ARunThatGoesOnWarnsOfDamagedLines) {
  const auto warning_of = [&](const char* more) {
    {
      StepLog log(folder_, header(), 0);
      log.write(record(0));
    }
    if (std::FILE* file = std::fopen((folder_ / "steps.rank2.jsonl").c_str(), "a")) {
      std::fputs(more, file);
      std::fclose(file);
    }
    testing::internal::CaptureStderr();
    { StepLog log(folder_, header(), 2); }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(warning_of("{\"step\":1,\"lo\n").find("1 damaged line(s) near its end"), std::string::npos);
  EXPECT_EQ(warning_of("{\"step\":1,\"lo"), "") << "a rank that was killed";
}

TEST_F(StepLogFile, ATableHasARowForEachStepAndJob) {
  StepLogHeader of_jobs = header();
  of_jobs.writes_jobs = true;
  of_jobs.first_job = 1;
  StepRecord r = record(0);
  r.lr = {0.5, 0.25, 0.125};
  r.losses = LossSums{.jobs = {job_losses(2), {}, job_losses(std::numeric_limits<double>::quiet_NaN())}};
  {
    StepLog log(folder_, of_jobs, 0);
    for (const std::int64_t step : {0, 1}) {
      r.step = step;
      log.write(r);
    }
  }
  const std::vector<std::string> first{"step,job,loss,top1,lr,status", "0,1,2,0.5,0.5,ok",
                                       "0,3,nan,0.5,0.125,nonfinite"};
  std::vector<std::string> both = first;
  both.insert(both.end(), {"1,1,2,0.5,0.5,ok", "1,3,nan,0.5,0.125,nonfinite"});
  EXPECT_EQ(lines("jobs.csv"), both);
  {
    StepLog log(folder_, of_jobs, 1);
    EXPECT_EQ(lines("jobs.csv"), first);
    r.step = 1;
    log.write(r);
  }
  EXPECT_EQ(lines("jobs.csv"), both);
  // From here on each job has a step number of its own. Before, it was the run's.
  of_jobs.own_steps = true;
  StepLog log(folder_, of_jobs, 1);
  r.step = 1;
  r.own_steps = {10, 20, 30};
  log.write(r);
  EXPECT_EQ(lines("jobs.csv"),
            (std::vector<std::string>{"step,job,loss,top1,lr,status,own_step", "0,1,2,0.5,0.5,ok,0",
                                      "0,3,nan,0.5,0.125,nonfinite,0", "1,1,2,0.5,0.5,ok,10",
                                      "1,3,nan,0.5,0.125,nonfinite,30"}));
}

TEST_F(StepLogFile, LinesThatTheDiskDoesNotTakeAreCountedAndWarnedOfOnce) {
  std::filesystem::create_symlink("/dev/full", folder_ / "steps.rank2.jsonl");
  ::testing::internal::CaptureStderr();
  StepLog log(folder_, header(), 0);
  log.write(record(0));
  log.write(record(1));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.lost_lines(), 3);  // the header too
  EXPECT_NE(said.find("training goes on without this line"), std::string::npos) << said;
  EXPECT_EQ(said.find("training goes on"), said.rfind("training goes on")) << said;
}

TEST_F(StepLogFile, ALogWithoutAFolderPrintsAllTheSame) {
  StepLog log;
  log.write(record(0));
  StepRecord r = record(4);
  r.samples_per_s = 12;
  r.step_s = 0.5;
  r.lr = {0.25};
  r.losses = LossSums{.jobs = {job_losses(2.5)}};
  ::testing::internal::CaptureStderr();
  log.print(r, 10);
  log.print(EvaluationReport{.step = 5, .jobs = {{{"loss", 2}}}, .samples = 8});
  log.print(ScoreReport{.step = 5, .values = {{"bleu", 20.25}}, .seconds = 1.5});
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("step=5/10 loss=2.5000 top1=0.5000 samples/s=12.0 step=500.0ms lr=0.25"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("evaluation step=5 loss=2.0000 samples=8\n"), std::string::npos) << said;
  EXPECT_NE(said.find("score step=5 bleu=20.2500 seconds=1.5\n"), std::string::npos) << said;
  EXPECT_EQ(log.lost_lines(), 0);
}

}  // namespace
}  // namespace millrace
