// Jobs of one array that began at different times, or end apart: each equals its own run bit for bit, through
// pipelines, replicas and a resume, and none disturbs another.
#include <atomic>
#include <fstream>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/job_checkpoints.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/train/job_batches.h"
#include "tests/fusion/job_arrays.h"

namespace millrace {
namespace {

class JobSteps : public JobArrays {
 protected:
  static constexpr std::int64_t kSteps = 9;

  /// Jobs with warm-up, a rate that depends on the end, and other seeds and rates.
  TrainOptions jobs(std::size_t count, UpdateRuleKind rule) {
    TrainOptions result = options(kSteps, rule);
    for (std::uint64_t b = 0; b < count; ++b) {
      JobOptions job{.seed = 21 + b, .rule = result.rule, .learning_rate = result.learning_rate};
      job.learning_rate.base *= 1 + 0.5 * double(b);
      job.learning_rate.policy = RatePolicy::Cosine;
      job.learning_rate.warmup_steps = 4;
      job.learning_rate.total_steps = 20;
      if (b == 1) job.clip.norm = 0.5;
      result.jobs.push_back(job);
    }
    return result;
  }
  /// Other batches for each job, by its own positions.
  std::unique_ptr<BatchSource> batches_of(const LayeredModel& model, std::size_t job) {
    return std::make_unique<ShiftedBatches>(std::make_unique<RandomBatches>(model, kMicrobatch),
                                            [job] { return -1'000'000 * static_cast<std::int64_t>(job); });
  }
  void give_each_its_own(const LayeredModel& model) {
    batches_of_job_ = [this, model](std::size_t job) { return batches_of(model, job); };
  }
  Outcome train_alone(const LayeredModel& model, const Plan& plan, TrainOptions options, std::size_t job) {
    options = alone(options, job);
    const auto of_arrays = std::exchange(batches_of_job_, nullptr);
    const auto shared =
        std::exchange(make_batches_, [this, job](const LayeredModel& one) { return batches_of(one, job); });
    Outcome outcome = train(model, plan, options);
    batches_of_job_ = of_arrays;
    make_batches_ = shared;
    return outcome;
  }
  /// A checkpoint of a job after `steps` steps of its own run.
  Checkpoint after(const LayeredModel& model, const Plan& plan, TrainOptions options, std::size_t job,
                   std::int64_t steps) {
    options.output_dir = (folder_ / ("alone" + std::to_string(job) + "-" + std::to_string(steps))).string();
    options.overwrite = true;
    options.checkpoint_at_end = true;
    options.steps = steps;
    train_alone(model, plan, options, job);
    return *open_checkpoint(options.output_dir);
  }
  /// Joins jobs as `millrace fuse` does.
  std::string fuse_into(const std::string& name, const std::vector<JobSource>& sources,
                        std::size_t num_new = 0) {
    auto joined = join_jobs(sources, num_new);
    EXPECT_TRUE(joined) << to_string(joined.problems());
    if (!joined) return {};
    joined->info.run = new_run_id();
    const fs::path folder = folder_ / name;
    fs::remove_all(folder);
    fs::create_directories(folder);
    const auto world = local_ranks(1, std::chrono::milliseconds(60'000));
    EXPECT_FALSE(save_checkpoint(*world.front(), (folder / run_files::kCheckpoints).string(), joined->info, 1,
                                 {{0, joined->tensors}}, {}));
    return folder.string();
  }
  static const RunReport& with_loss(const Outcome& outcome, const Plan& plan) {
    return outcome.reports[plan.stages.back().ranks[0].value];
  }
  /// The job's losses are the last ones of its own run, its weights all of them.
  static void expect_own(const Outcome& own, const Outcome& array, const Plan& plan, std::size_t job,
                         const std::string& what) {
    const JobReport& report = with_loss(array, plan).jobs.at(job);
    EXPECT_EQ(report.steps, static_cast<std::int64_t>(own.losses.size())) << what << ", job " << job;
    const auto from = own.losses.begin() + report.first_step;
    EXPECT_EQ(std::vector<double>(from, own.losses.end()), report.losses) << what << ", job " << job;
    ASSERT_EQ(own.weights.size(), array.job_weights.at(job).size());
    for (const auto& [name, tensor] : own.weights)
      EXPECT_TRUE(at::equal(tensor, array.job_weights[job].at(name)))
          << what << ", job " << job << ": " << name;
  }
  template <class Work>
  static void expect_refused(Work&& work, const std::string& says) {
    try {
      work();
      FAIL() << says;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }
};

TEST_F(JobSteps, WhoJoinsLaterIsItsOwnRun) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    give_each_its_own(model);
    for (const auto& [replicas, kind] : {std::pair{std::vector{1, 1}, ScheduleKind::OneFOneB},
                                         {{1}, ScheduleKind::GPipe},
                                         {{2, 1}, ScheduleKind::OneFOneB},
                                         {{1, 1}, ScheduleKind::ZeroBubbleH1}}) {
      const UpdateRuleKind rule = UpdateRuleKind::Adam;
      const std::string what = model.name + " " + to_string(kind) + ::testing::PrintToString(replicas);
      const Plan plan = plan_for(model, replicas, 4, kind);
      const LayeredModel array = array_of(model, 3, ArrayKernels::Loop, {.data = JobData::Own});
      TrainOptions options = jobs(3, rule);
      const Checkpoint first = after(model, plan, options, 0, 5), second = after(model, plan, options, 1, 2);
      options.resume = fuse_into("fused", {{&first}, {&second}}, 1);
      EXPECT_EQ(progress_of(*open_checkpoint(options.resume)),
                (std::vector<JobProgress>{{5, 20, 5}, {2, 8, 2}, {0, 0, 0, true}}));
      options.output_dir = (folder_ / "array").string();
      options.overwrite = true;
      options.checkpoint_every = 4;
      options.keep_checkpoints = 0;
      const Outcome together = train(array, plan, options);
      // After 8 steps all are under way, after 12 two have ended.
      for (const std::string from : {"step-00000008", "step-00000012"}) {
        TrainOptions rest = options;
        rest.resume = (folder_ / "array" / run_files::kCheckpoints / from).string();
        rest.output_dir = (folder_ / "rest").string();
        const Plan other = plan_for(model, {1}, 4, ScheduleKind::GPipe);
        const Plan& with =
            replicas == std::vector{2, 1} ? plan : other;  // several replicas add up in another order
        const Outcome resumed = train(array, with, rest);
        for (std::size_t b = 0; b < 3; ++b) {
          for (const auto& [name, tensor] : together.job_weights[b])
            EXPECT_TRUE(at::equal(tensor, resumed.job_weights[b].at(name)))
                << what << " " << from << " " << b;
        }
      }
      options.resume.clear();
      options.output_dir.clear();
      options.checkpoint_every = 0;
      options.overwrite = false;
      for (std::size_t b = 0; b < 3; ++b)
        expect_own(train_alone(model, plan, options, b), together, plan, b, what);
    }
  }
}

/// A job that ends earlier keeps its weights, the state of its rule and its running statistics. Later
/// checkpoints contain the same.
TEST_F(JobSteps, WhoEndsEarlierStaysAsItIs) {
  evaluation_microbatches_ = 3;
  // The forward of this model writes to weights.
  LayeredModel scaling = classifier("scaling", {6}, 5);
  scaling.fields[0].dtype = at::kLong;
  scaling.fields[0].limit = 20;
  scaling.layers.push_back(
      {"embedding", embedding({.vocabulary = 20, .features = 4, .max_norm = 0.5}), {"input"}});
  scaling.layers.push_back({"flatten", flatten(), {"embedding"}});
  scaling.layers.push_back({"linear", linear(24, 5), {"flatten"}});
  end_in_cross_entropy(scaling);
  for (const LayeredModel& model : {small_model(), conv_model(), tied_model(), scaling}) {
    for (const std::vector<int>& replicas : {std::vector{1}, {1, 1}, {2, 1}}) {
      if (model.name == scaling.name && replicas.front() > 1) continue;  // refused
      const std::string what = model.name + " " + ::testing::PrintToString(replicas);
      const Plan plan = plan_for(model, replicas, 4, ScheduleKind::OneFOneB);
      TrainOptions options = jobs(3, UpdateRuleKind::Adam);
      const std::int64_t ends[] = {3, 9, 6};
      for (std::size_t b = 0; b < 3; ++b) options.jobs[b].steps = ends[b];
      options.output_dir = (folder_ / "out").string();
      options.overwrite = true;
      options.checkpoint_every = 4;
      options.keep_checkpoints = 0;
      const LayeredModel array = array_of(model, 3);
      const Outcome together = train(array, plan, options);
      EXPECT_EQ(with_loss(together, plan).losses.size(), 9u);
      const Checkpoint last = *open_checkpoint((folder_ / "out").string());
      EXPECT_EQ(last.info.step, 8);
      EXPECT_EQ(progress_of(last), (std::vector<JobProgress>{{3, 12, 3}, {8, 32, 8}, {6, 24, 6}}));
      // The one that had ended goes on from where it was, beside one that is farther.
      TrainOptions rest = options;
      rest.resume = fuse_into("fused", {{&last, 0}, {&last, 2}});
      rest.output_dir.clear();
      rest.overwrite = false;
      rest.checkpoint_every = 0;
      rest.jobs.erase(rest.jobs.begin() + 1);
      for (JobOptions& job : rest.jobs) job.steps.reset();
      batches_of_job_ = [&](std::size_t) { return std::make_unique<RandomBatches>(model, kMicrobatch); };
      evaluation_microbatches_ = 0;
      const Outcome rested =
          train(array_of(model, 2, ArrayKernels::Loop, {.data = JobData::Own}), plan, rest);
      evaluation_microbatches_ = 3;
      batches_of_job_ = nullptr;
      for (std::size_t b = 0; b < 3; ++b) {
        TrainOptions own = alone(options, b);
        own.output_dir.clear();
        own.overwrite = false;
        own.checkpoint_every = 0;
        own.steps = ends[b];
        const Outcome ended = train(model, plan, own);
        expect_own(ended, together, plan, b, what);
        EXPECT_EQ(with_loss(together, plan).evaluations.back().jobs.at(b),
                  with_loss(ended, plan).evaluations.back().values)
            << what << ", job " << b;
        if (b == 1) continue;
        own.steps = kSteps;
        expect_own(train(model, plan, own), rested, plan, b / 2, what + ", on to the end");
      }
    }
  }
}

/// Jobs of one array are at one step and share its batches. The arrays are at different steps.
TEST_F(JobSteps, SeveralArraysAreEachAtTheirOwn) {
  const LayeredModel model = small_model();
  Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  TrainOptions options = jobs(3, UpdateRuleKind::Adam);
  const auto shared = [&](TrainOptions own, std::size_t job, std::int64_t steps) {
    own = alone(own, job);
    own.steps = steps;
    if (steps < kSteps) {
      own.output_dir = (folder_ / ("of" + std::to_string(job))).string();
      own.checkpoint_at_end = true;
    }
    return train(model, plan, own);
  };
  std::vector<Checkpoint> parts;
  for (std::size_t b = 0; b < 3; ++b) {
    shared(options, b, b == 0 ? 5 : 2);
    parts.push_back(*open_checkpoint((folder_ / ("of" + std::to_string(b))).string()));
  }
  TrainOptions rest = options;
  rest.resume = fuse_into("fused", {{&parts[0]}, {&parts[1]}, {&parts[2]}});
  plan.arrays = 2;
  const Outcome together = train(std::vector{model, array_of(model, 2)}, plan, rest);
  plan.arrays = 1;
  for (std::size_t b = 0; b < 3; ++b) expect_own(shared(options, b, kSteps), together, plan, b, "arrays");
}

/// An array of which nobody goes on is no longer in the pipeline.
TEST_F(JobSteps, ArraysThatHaveEndedLeaveThePipeline) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    for (const auto& [replicas, kind] : {std::pair{std::vector{1, 1}, ScheduleKind::OneFOneB},
                                         {{2, 1}, ScheduleKind::OneFOneB},
                                         {{1, 1}, ScheduleKind::ZeroBubbleH1},
                                         {{1, 1}, ScheduleKind::GPipe}}) {
      for (const bool clipped : {false, true}) {
        Plan plan = plan_for(model, replicas, 4, kind);
        TrainOptions options = jobs(4, UpdateRuleKind::Adam);
        const std::int64_t ends[] = {2, 6, 4, 3};
        for (std::size_t b = 0; b < 4; ++b) {
          options.jobs[b].steps = ends[b];
          options.jobs[b].clip.norm = clipped ? 0.5 : 0;
        }
        plan.arrays = 3;
        std::atomic<int> read = 0;
        on_batch_ = [&](std::int64_t) { ++read; };
        const Outcome together = train(std::vector{model, model, array_of(model, 2)}, plan, options);
        on_batch_ = nullptr;
        plan.arrays = 1;
        // Every stage that needs fields reads them: the last one reads the targets.
        EXPECT_EQ(read, (2 + 6 + 4) * 4 * static_cast<int>(replicas.size()));
        for (std::size_t b = 0; b < 4; ++b) {
          TrainOptions own = alone(options, b);
          own.steps = ends[b];
          expect_own(train(model, plan, own), together, plan, b, model.name + " " + to_string(kind));
        }
      }
    }
  }
}

/// Arrays that share one rank need not take turns at each step.
TEST_F(JobSteps, ArraysOfOneRankGoOnInStretches) {
  constexpr std::int64_t kEnds[] = {20, 9, 20, 14};
  const LayeredModel model = conv_model();
  Plan plan = plan_for(model, {1}, 4, ScheduleKind::OneFOneB);
  TrainOptions options = jobs(4, UpdateRuleKind::Adam);
  options.steps = 20;
  options.trace_count = 1;
  for (std::size_t b = 0; b < 4; ++b) options.jobs[b].steps = kEnds[b];
  options.output_dir = (folder_ / "array").string();
  options.checkpoint_every = 8;
  options.keep_checkpoints = 0;
  const std::vector<LayeredModel> arrays{model, model, array_of(model, 2)};
  const auto train_arrays = [&](const TrainOptions& with) {
    plan.arrays = 3;
    Outcome outcome = train(arrays, plan, with);
    plan.arrays = 1;
    return outcome;
  };
  int follows = 0;
  std::int64_t before = 0;
  on_batch_ = [&](std::int64_t position) {
    follows += position == before + 1 && position % 4 == 0;
    before = position;
  };
  const Outcome together = train_arrays(options);
  on_batch_ = nullptr;
  // Stretches end with steps 1, 8, 9, 14, 16 and 20. After each end the first array follows the last one.
  EXPECT_EQ(follows, (20 - 6) + (9 - 3) + (20 - 6) + 5);
  std::vector<std::int64_t> logged;
  double ended_before = 0;
  std::ifstream file(folder_ / "array" / "steps.rank0.jsonl");
  for (std::string line; std::getline(file, line);) {
    const Result<Json> step = parse_json(line, "step");
    ASSERT_TRUE(step) << line;
    const Json* number = step->find("step");
    if (!number) continue;  // the log's first line
    logged.push_back(number->as_int());
    const double ended = step->find("ended_s")->as_double(), seconds = step->find("step_s")->as_double();
    EXPECT_GE(ended - seconds, ended_before - 1e-6) << "steps do not overlap: " << line;
    ended_before = ended;
  }
  std::vector<std::int64_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(logged, all);
  TrainOptions rest = options;
  rest.resume = (folder_ / "array" / run_files::kCheckpoints / "step-00000008").string();
  rest.output_dir = (folder_ / "rest").string();
  const Outcome resumed = train_arrays(rest);
  options.output_dir.clear();
  options.checkpoint_every = 0;
  for (std::size_t b = 0; b < 4; ++b) {
    TrainOptions own = alone(options, b);
    own.steps = kEnds[b];
    const Outcome mine = train(model, plan, own);
    expect_own(mine, together, plan, b, "stretches");
    expect_own(mine, resumed, plan, b, "resumed");
  }
}

/// NT-ASGD: averages of each job begin where they begin in its own run, though its evaluations are not those
/// that the array's steps ask for; a break and a split change nothing of it.
TEST_F(JobSteps, AveragesOfEachJobBeginByItsOwnEvaluations) {
  const LayeredModel model = small_model();
  evaluation_microbatches_ = 3;
  give_each_its_own(model);
  TrainOptions options = jobs(3, UpdateRuleKind::Asgd);
  options.steps = 18;
  options.evaluate_every = 2;
  const double rates[] = {0.3, 0.6, 0.05};
  for (std::size_t b = 0; b < 3; ++b) {
    options.jobs[b].clip = {};
    options.jobs[b].learning_rate = {.base = rates[b], .total_steps = 18};
    options.jobs[b].rule = {
        .kind = UpdateRuleKind::Asgd, .lambd = 0, .average_start = 0, .nonmonotone = b == 0 ? 3.0 : 1.0};
  }
  options.jobs[2].rule = {.kind = UpdateRuleKind::Adam};  // this rule waits for no average
  const auto saving = [this](TrainOptions own, const std::string& name) {
    own.output_dir = (folder_ / name).string();
    own.overwrite = true;
    own.checkpoint_every = 1;
    own.keep_checkpoints = 0;
    return own;
  };
  const auto begun_at = [this](const std::string& name, std::size_t job) {
    const auto averaging = progress_of(*open_checkpoint((folder_ / name).string())).at(job).averaging;
    return averaging ? averaging->from : -2;
  };
  for (const std::vector<int>& replicas : {std::vector{1}, {1, 1}, {2, 1}}) {
    const Plan plan = plan_for(model, replicas, 4, ScheduleKind::OneFOneB);
    const std::string what = ::testing::PrintToString(replicas);
    std::vector<Outcome> own;
    std::vector<std::int64_t> begins;
    for (std::size_t b = 0; b < 3; ++b) {
      const std::string name = "own" + std::to_string(b);
      own.push_back(train_alone(model, plan, saving(options, name), b));
      begins.push_back(begun_at(name, 0));
    }
    ASSERT_GT(begins[0], 0);
    ASSERT_GT(begins[1], 0);
    ASSERT_NE(begins[0], begins[1]);
    EXPECT_EQ(begins[2], -2);

    // Job 1 joins when job 0 has done 3 steps: its evaluations are where the array has none.
    const LayeredModel array = array_of(model, 3, ArrayKernels::Loop, {.data = JobData::Own});
    const Checkpoint first = after(model, plan, options, 0, 3);
    TrainOptions joined = saving(options, "array");
    joined.resume = fuse_into("fused", {{&first}}, 2);
    const Outcome together = train(array, plan, joined);
    for (std::size_t b = 0; b < 3; ++b) {
      expect_own(own[b], together, plan, b, what);
      EXPECT_EQ(begun_at("array", b), begins[b]) << what << ", job " << b;
      EXPECT_EQ(with_loss(together, plan).evaluations.back().jobs.at(b),
                with_loss(own[b], plan).evaluations.back().values)
          << what << ", job " << b;
    }

    const std::int64_t lasts[] = {begins[0] - 1, begins[0], begins[1] + 3, begins[1] + 4};
    for (const std::int64_t last : lasts) {
      if (last <= 3) continue;  // steps of job 0, which is the array
      const std::string what_then = what + ", a break after " + std::to_string(last);
      TrainOptions rest = options;
      rest.resume = (folder_ / "array" / run_files::kCheckpoints / printed("step-%08d", int(last))).string();
      const Outcome resumed = train(array, plan, rest);
      const Checkpoint then = *open_checkpoint(rest.resume);
      for (std::size_t b = 0; b < 3; ++b) {
        expect_own(own[b], resumed, plan, b, what_then);
        TrainOptions alone_again = options;
        alone_again.resume = fuse_into("split", {{&then, b}});
        const Outcome split = train_alone(model, plan, alone_again, b);
        for (const auto& [name, tensor] : own[b].weights)
          EXPECT_TRUE(at::equal(tensor, split.weights.at(name))) << what_then << ", split " << b << name;
      }
    }
  }
}

TEST_F(JobSteps, WhatCannotBeIsRefused) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1}, 4, ScheduleKind::OneFOneB);
  TrainOptions options = jobs(2, UpdateRuleKind::Sgd);
  for (JobOptions& job : options.jobs) job.clip = {};
  const Checkpoint first = after(model, plan, options, 0, 3), second = after(model, plan, options, 1, 2);
  options.resume = fuse_into("fused", {{&first}, {&second}});
  expect_refused([&] { train(array_of(model, 2), plan, options); }, "read the same batches");
  give_each_its_own(model);
  const LayeredModel array = array_of(model, 2, ArrayKernels::Loop, {.data = JobData::Own});
  options.resume_changes = {"all"};
  expect_refused(
      [&] {
        train(array, plan_for(model, {1, 1}, 4, ScheduleKind::PipeDream2BW), options);
      },
      "never flushes");
  options.resume.clear();
  options.resume_changes.clear();
  options.jobs[1].steps = 4;
  expect_refused(
      [&] {
        train(array, plan_for(model, {1, 1}, 4, ScheduleKind::PipeDream2BW), options);
      },
      "ends jobs apart");
  const Checkpoint fused = *open_checkpoint((folder_ / "fused").string());
  const auto none = join_jobs({{&fused, 0}}, 1);
  ASSERT_TRUE(none);
  const std::string half = fuse_into("half", {{&fused, 0}}, 1);
  const Checkpoint with_new = *open_checkpoint(half);
  const auto nothing = join_jobs({{&with_new, 1}});
  ASSERT_FALSE(nothing);
  EXPECT_NE(to_string(nothing.problems()).find("has not begun"), std::string::npos);
}

}  // namespace
}  // namespace millrace
