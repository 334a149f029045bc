// Independent trainings that fill one pipeline in turn: each is its own run, bit for bit, and no other's
// business.
#include "runtime/base/error.h"
#include "tests/fusion/job_arrays.h"

namespace millrace {
namespace {

class SeveralArrays : public JobArrays {
 protected:
  /// `sizes`: jobs of each array.
  std::vector<LayeredModel> arrays_of(const LayeredModel& model, const std::vector<std::size_t>& sizes) {
    std::vector<LayeredModel> arrays;
    for (const std::size_t size : sizes) arrays.push_back(array_of(model, size));
    return arrays;
  }
  static Plan for_arrays(Plan plan, std::size_t arrays) {
    plan.arrays = static_cast<int>(arrays);
    return plan;
  }
  /// Jobs that differ in seed, rate and momentum.
  TrainOptions jobs(std::size_t count, std::int64_t steps, UpdateRuleKind rule = UpdateRuleKind::Sgd) {
    TrainOptions result = options(steps, rule);
    for (std::uint64_t b = 0; b < count; ++b) {
      JobOptions job{.seed = 11 + b, .rule = result.rule, .learning_rate = result.learning_rate};
      job.learning_rate.base *= 1 + 0.5 * double(b);
      if (rule == UpdateRuleKind::Sgd && b > 0) job.rule.momentum = 0.5 + 0.1 * double(b);
      result.jobs.push_back(job);
    }
    return result;
  }
  static const RunReport& with_loss(const Outcome& outcome, const Plan& plan) {
    return outcome.reports[plan.stages.back().ranks[0].value];
  }
  void expect_own_runs(const LayeredModel& model, const Plan& plan, const std::vector<std::size_t>& sizes,
                       const TrainOptions& options, const std::string& what) {
    SCOPED_TRACE(what);
    const Outcome together = train(arrays_of(model, sizes), for_arrays(plan, sizes.size()), options);
    const RunReport& report = with_loss(together, plan);
    ASSERT_EQ(report.jobs.size(), options.jobs.size());
    for (std::size_t b = 0; b < options.jobs.size(); ++b) {
      const Outcome own = train(model, plan, alone(options, b));
      EXPECT_EQ(own.losses, report.jobs[b].losses) << "job " << b;
      ASSERT_EQ(own.weights.size(), together.job_weights.at(b).size());
      for (const auto& [name, tensor] : own.weights)
        EXPECT_TRUE(at::equal(tensor, together.job_weights[b].at(name))) << "job " << b << ": " << name;
      const auto& evaluations = with_loss(own, plan).evaluations;
      ASSERT_EQ(report.evaluations.size(), evaluations.size());
      for (std::size_t e = 0; e < evaluations.size(); ++e)
        EXPECT_EQ(report.evaluations[e].jobs.at(b), evaluations[e].values) << "job " << b;
    }
  }
};

TEST_F(SeveralArrays, AreTheirJobsOwnRuns) {
  using enum ScheduleKind;
  evaluation_microbatches_ = 5;
  const struct {
    std::vector<int> replicas;
    ScheduleKind kind;
    std::vector<std::size_t> sizes;
  } cases[] = {
      {{1}, OneFOneB, {1, 1, 1}},     {{1, 1}, OneFOneB, {1, 1, 1}}, {{1, 1}, GPipe, {1, 1, 1}},
      {{1, 1, 1}, OneFOneB, {2, 2}},  {{1, 1, 1}, GPipe, {1, 1, 1}}, {{1, 1}, OneFOneB, {2, 1}},
      {{1, 1}, ZeroBubbleH1, {2, 1}}, {{1, 1}, AutoOrder, {1, 1}},   {{2}, OneFOneB, {1, 1}},
      {{2, 1}, OneFOneB, {1, 2}},     {{1, 2}, GPipe, {1, 1}},
  };
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    for (const auto& c : cases) {
      std::size_t count = 0;
      for (const std::size_t size : c.sizes) count += size;
      TrainOptions options = jobs(count, 5);
      options.evaluate_every = 3;
      expect_own_runs(model, plan_for(model, c.replicas, 4, c.kind), c.sizes, options,
                      model.name + " " + to_string(c.kind) + " " + ::testing::PrintToString(c.replicas) +
                          " " + ::testing::PrintToString(c.sizes));
    }
  }
}

TEST_F(SeveralArrays, AreTheirJobsOwnRunsWhereARankHoldsSeveralStages) {
  const LayeredModel model = small_model();
  for (const ScheduleKind kind : {ScheduleKind::ZeroBubbleV, ScheduleKind::Interleaved})
    expect_own_runs(model, uniform_plan(model.name, model.layer_names(), 4, 1, 4, kind, 2), {1, 2},
                    jobs(3, 4), to_string(kind));
}

/// Each job by its own norm; the ranks agree on them after the last gradient of all arrays.
TEST_F(SeveralArrays, ClipEachJobByItself) {
  const LayeredModel model = small_model();
  TrainOptions options = jobs(3, 5);
  options.jobs[0].clip.norm = 0.1;
  options.jobs[2].clip.norm = 0.05;
  for (const auto& [replicas, sizes] :
       {std::pair{std::vector{1, 1}, std::vector<std::size_t>{1, 1, 1}}, {{2, 1}, {2, 1}}})
    expect_own_runs(model, plan_for(model, replicas, 4, ScheduleKind::OneFOneB), sizes, options, "clipped");
}

TEST_F(SeveralArrays, ShareTheRulesStateAmongReplicas) {
  const LayeredModel model = small_model();
  TrainOptions options = jobs(3, 4, UpdateRuleKind::Adam);
  for (JobOptions& job : options.jobs) job.rule.shard_state = true;
  expect_own_runs(model, plan_for(model, {2, 2}, 4, ScheduleKind::OneFOneB), {1, 2}, options, "zero-1");
}

TEST_F(SeveralArrays, TieParametersEachInItself) {
  const LayeredModel model = tied_model();
  expect_own_runs(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), {1, 2},
                  jobs(3, 5, UpdateRuleKind::Adam), "tied");
}

TEST_F(SeveralArrays, GoOnWhenOneHasGoneAstray) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  for (const bool clipped : {false, true}) {
    TrainOptions options = jobs(3, 8);
    for (JobOptions& job : options.jobs) job.clip.norm = clipped ? 0.5 : 0;
    options.jobs[1].learning_rate.base = 1e30;
    options.jobs[1].clip = {};
    const Outcome together = train(arrays_of(model, {1, 1, 1}), for_arrays(plan, 3), options);
    const std::vector<JobReport>& reports = with_loss(together, plan).jobs;
    EXPECT_GE(reports[1].nonfinite_step, 0);
    EXPECT_TRUE(together.job_weights[1].empty()) << "nothing of it is saved";
    for (const std::size_t b : {0, 2}) {
      EXPECT_EQ(reports[b].nonfinite_step, -1);
      const Outcome own = train(model, plan, alone(options, b));
      EXPECT_EQ(own.losses, reports[b].losses);
      for (const auto& [name, tensor] : own.weights)
        EXPECT_TRUE(at::equal(tensor, together.job_weights[b].at(name))) << b << ": " << name;
    }
    for (JobOptions& job : options.jobs) job = options.jobs[1];
    EXPECT_THROW(train(arrays_of(model, {1, 2}), for_arrays(plan, 2), options), NumericError);
  }
}

/// A checkpoint has the form of one array of all jobs, so a run with another division can continue from it.
TEST_F(SeveralArrays, GoOnFromCheckpointsBitForBit) {
  const LayeredModel model = conv_model();
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  const TrainOptions unbroken = jobs(4, 8, UpdateRuleKind::Adam);
  const Outcome whole = train(arrays_of(model, {4}), plan, unbroken);
  TrainOptions first = unbroken;
  first.steps = 5;
  for (JobOptions& job : first.jobs) job.learning_rate.total_steps = 8;
  first.output_dir = (folder_ / "out").string();
  first.checkpoint_every = 5;
  train(arrays_of(model, {1, 1, 1, 1}), for_arrays(plan, 4), first);
  TrainOptions rest = unbroken;
  rest.resume = first.output_dir;
  for (const std::vector<std::size_t>& sizes : {std::vector<std::size_t>{4}, {2, 2}, {1, 1, 1, 1}}) {
    const Outcome resumed =
        train(arrays_of(model, sizes),
              for_arrays(plan_for(model, {1, 1, 1}, 4, ScheduleKind::GPipe), sizes.size()), rest);
    for (std::size_t b = 0; b < 4; ++b) {
      for (const auto& [name, tensor] : whole.job_weights[b])
        EXPECT_TRUE(at::equal(tensor, resumed.job_weights[b].at(name))) << b << ": " << name;
    }
  }
}

/// A rank stashes the microbatches of one array at a time.
TEST_F(SeveralArrays, KeepTheMicrobatchesOfOneArrayAtATime) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  const Outcome together = train(arrays_of(model, {1, 1, 1}), for_arrays(plan, 3), jobs(3, 2));
  EXPECT_EQ(together.reports[0].peak_stash, 2);
  EXPECT_EQ(together.reports[1].peak_stash, 1);
}

TEST_F(SeveralArrays, RefuseWhatHasNoPlaceForThem) {
  const LayeredModel model = small_model();
  const auto refused = [&](const Plan& plan, const std::vector<std::size_t>& sizes, const std::string& says) {
    try {
      train(arrays_of(model, sizes), plan, jobs(2, 2));
      FAIL() << says;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refused(for_arrays(plan_for(model, {1, 1}, 4, ScheduleKind::PipeDream), 2), {1, 1}, "several arrays");
  refused(for_arrays(plan_for(model, {2, 1}, 3, ScheduleKind::OneFOneB), 2), {1, 1}, "do not divide among 2");
  refused(plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), {1, 1}, "for 1 arrays, this job has 2");
}

}  // namespace
}  // namespace millrace
