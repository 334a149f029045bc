// Job arrays trained through plans and schedules: every job equals its own run, bit for bit in loop mode.
#include <ATen/ops/allclose.h>

#include "runtime/base/error.h"
#include "tests/fusion/job_arrays.h"
#include "tests/train/overflow.h"

namespace millrace {
namespace {

TEST_F(JobArrays, AreTheirJobsOwnRunsUnderEveryRule) {
  for (const UpdateRuleKind rule :
       {UpdateRuleKind::Sgd, UpdateRuleKind::Adam, UpdateRuleKind::AdamW, UpdateRuleKind::Lamb,
        UpdateRuleKind::Lars, UpdateRuleKind::Adadelta, UpdateRuleKind::RmsProp, UpdateRuleKind::Asgd}) {
    const LayeredModel model = small_model();
    expect_own_runs(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), three(6, rule), to_string(rule));
  }
}

TEST_F(JobArrays, AreTheirJobsOwnRunsThroughPipelines) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    for (const auto& [replicas, kind] : {std::pair{std::vector{1}, ScheduleKind::OneFOneB},
                                         {{1, 1}, ScheduleKind::OneFOneB},
                                         {{1, 1}, ScheduleKind::GPipe},
                                         {{1, 1}, ScheduleKind::ZeroBubbleH1},
                                         {{2}, ScheduleKind::OneFOneB},
                                         {{2, 1}, ScheduleKind::OneFOneB},
                                         {{1, 1}, ScheduleKind::PipeDream}}) {
      if (kind == ScheduleKind::PipeDream) {
        TrainOptions options = three(6);
        options.jobs[2].clip = {};
        expect_own_runs(model, plan_for(model, replicas, 4, kind), options, to_string(kind));
        continue;
      }
      expect_own_runs(model, plan_for(model, replicas, 4, kind), three(5),
                      model.name + " " + to_string(kind) + " " + ::testing::PrintToString(replicas));
    }
  }
}

TEST_F(JobArrays, AreTheirJobsOwnRunsWhereARankHoldsSeveralStages) {
  const LayeredModel model = small_model();
  const Plan plan = uniform_plan(model.name, model.layer_names(), 4, 1, 4, ScheduleKind::ZeroBubbleV, 2);
  expect_own_runs(model, plan, three(5), "zb-v");
}

TEST_F(JobArrays, AreTheirJobsOwnRunsWhereReplicasShareTheRulesState) {
  const LayeredModel model = small_model();
  for (const UpdateRuleKind rule : {UpdateRuleKind::Adam, UpdateRuleKind::Lamb}) {
    TrainOptions options = three(4, rule);
    for (JobOptions& job : options.jobs) job.rule.shard_state = true;
    expect_own_runs(model, plan_for(model, {2}, 4, ScheduleKind::OneFOneB), options, to_string(rule));
  }
}

TEST_F(JobArrays, KernelsAgreeWithTheJobsOwnRunsToRounding) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
    const TrainOptions options = three(20);
    const LayeredModel fused = array_of(model, 3, ArrayKernels::Fused, {.unfused = {model.layers[2].name}});
    const Outcome array = train(fused, plan, options);
    for (std::size_t b = 0; b < 3; ++b) {
      const Outcome own = train(model, plan, alone(options, b));
      for (const auto& [name, tensor] : own.weights)
        EXPECT_TRUE(at::allclose(array.job_weights[b].at(name), tensor, 1e-3, 1e-4)) << b << ": " << name;
    }
  }
}

/// A tensor of several jobs is one tensor only between two fused layers of a stage. It stays separate for
/// each job if several layers, another stage or a layer that runs job by job reads it.
TEST_F(JobArrays, JobsStayTogetherBetweenTwoLayersOfAStage) {
  const auto together = [&](const LayeredModel& model, int stages) {
    const Plan plan = uniform_plan(model.name, model.layer_names(), stages, 1, 1, ScheduleKind::OneFOneB);
    std::vector<std::string> names;
    for (int stage = 0; stage < stages; ++stage) {
      const StageLayout layout = *make_layout(model, plan, 3);
      for (const LayerStep& step : compile_stage(layout, StageId(stage)).steps)
        if (!step.together.empty() && step.together[0]) names.push_back(step.named->name);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  const LayeredModel model = small_model();  // b is read by c and g
  Names all = model.layer_names();
  std::erase(all, "b");
  EXPECT_EQ(together(array_of(model, 3, ArrayKernels::Fused), 1), all);
  EXPECT_EQ(together(array_of(model, 3, ArrayKernels::Fused), 2).size(), all.size() - 1)
      << "one at the border";
  EXPECT_EQ(together(array_of(model, 3, ArrayKernels::Fused, {.unfused = {"d"}}), 1),
            (Names{"a", "e", "f", "g", "h", "i", "j"}));
  EXPECT_EQ(together(array_of(model, 3, ArrayKernels::Loop), 1), Names{});
  EXPECT_EQ(together(model, 1), Names{}) << "no array";
}

TEST_F(JobArrays, GoOnWhenOneHasGoneAstray) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  TrainOptions options = three(8);
  for (JobOptions& job : options.jobs) job.clip.norm = 0.5;
  options.jobs[1].learning_rate.base = 1e30;
  options.jobs[1].clip = {};
  for (const ArrayKernels mode : {ArrayKernels::Loop, ArrayKernels::Fused}) {
    fs::remove(folder_ / "weights.job1.safetensors");
    const Outcome array = train(array_of(model, 3, mode), plan, options);
    const std::vector<JobReport>& jobs = array.reports[1].jobs;
    EXPECT_GE(jobs[1].nonfinite_step, 0);
    EXPECT_TRUE(array.job_weights[1].empty()) << "nothing of it is saved";
    TrainOptions others = options;
    others.jobs.erase(others.jobs.begin() + 1);
    const Outcome without = train(array_of(model, 2, mode), plan, others);
    for (const auto& [with, at] : {std::pair<std::size_t, std::size_t>{0, 0}, {2, 1}}) {
      const std::vector<double>& expected = without.reports[1].jobs[at].losses;
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(jobs[with].losses.at(i), expected[i], mode == ArrayKernels::Loop ? 0 : 1e-5);
      EXPECT_EQ(jobs[with].nonfinite_step, -1);
      for (const auto& [name, tensor] : without.job_weights[at]) {
        const at::Tensor& found = array.job_weights[with].at(name);
        EXPECT_TRUE(mode == ArrayKernels::Loop ? at::equal(tensor, found)
                                               : at::allclose(tensor, found, 1e-4, 1e-6))
            << name;
      }
    }
  }
}

TEST_F(JobArrays, GoOnFromCheckpointsBitForBit) {
  const LayeredModel model = conv_model();
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  const LayeredModel array = array_of(model, 3);
  const TrainOptions unbroken = three(8, UpdateRuleKind::Adam);
  const Outcome whole = train(array, plan, unbroken);
  TrainOptions first = unbroken;
  first.steps = 5;
  for (JobOptions& job : first.jobs) job.learning_rate.total_steps = 8;
  first.output_dir = (folder_ / "out").string();
  first.checkpoint_every = 5;
  train(array, plan, first);
  TrainOptions rest = unbroken;
  rest.resume = first.output_dir;
  const Outcome resumed = train(array, plan_for(model, {1}, 4, ScheduleKind::GPipe), rest);
  for (std::size_t b = 0; b < 3; ++b) {
    for (const auto& [name, tensor] : whole.job_weights[b])
      EXPECT_TRUE(at::equal(tensor, resumed.job_weights[b].at(name))) << b << ": " << name;
  }
  rest.jobs.pop_back();
  EXPECT_THROW(train(array_of(model, 2), plan, rest), CheckpointError);
}

/// A job that skips a step skips it alone; scales of the loss go their own ways, also through checkpoints.
TEST_F(JobArrays, ScalesOfTheLossAreEachJobsOwn) {
  const LayeredModel model = overflowing_where({{11, 1}, {11, 2}, {11, 5}, {13, 3}});
  for (const Precision precision : {Precision::BFloat16, Precision::Float32}) {
    for (const auto& [replicas, kind] : {std::pair{std::vector{1}, ScheduleKind::OneFOneB},
                                         {{1, 1}, ScheduleKind::OneFOneB},
                                         {{2, 1}, ScheduleKind::ZeroBubbleH1}}) {
      TrainOptions options = three(8, UpdateRuleKind::Adam);
      options.precision = precision;
      options.loss_scale.kind = {.scaling = LossScaling::Dynamic};
      options.loss_scale.growth_interval = 2;
      options.jobs[1].clip.value = 1e-3;
      const Plan plan = plan_for(model, replicas, 4, kind);
      const std::string what =
          to_string(precision) + " " + to_string(kind) + " " + std::to_string(replicas.size()) + " stages";
      TrainOptions first = options;
      first.steps = 4;
      for (JobOptions& job : first.jobs) job.learning_rate.total_steps = 8;
      first.output_dir = (folder_ / what).string();
      first.checkpoint_at_end = true;
      train(array_of(model, 3), plan, first);
      TrainOptions rest = options;
      rest.resume = first.output_dir;
      const Outcome array = train(array_of(model, 3), plan, options),
                    resumed = train(array_of(model, 3), plan, rest),
                    fused = train(array_of(model, 3, ArrayKernels::Fused), plan, options);
      const std::vector<std::int64_t> skipped{3, 0, 1};
      const auto last = static_cast<std::size_t>(plan.stages.back().ranks[0].value);
      for (std::size_t b = 0; b < 3; ++b) {
        const Outcome own = train(model, plan, alone(options, b));
        const std::string job = what + ", job " + std::to_string(b);
        EXPECT_EQ(own.reports[last].loss_scale->skipped, skipped[b]) << job;
        for (const Outcome* outcome : {&array, &resumed, &fused}) {
          EXPECT_EQ(outcome->reports[last].jobs.at(b).loss_scale, own.reports[last].loss_scale) << job;
          for (const auto& [name, tensor] : own.weights) {
            const at::Tensor& found = outcome->job_weights.at(b).at(name);
            EXPECT_TRUE(outcome == &fused ? at::allclose(tensor, found, 1e-3, 1e-4)
                                          : at::equal(tensor, found))
                << job << ": " << name;
          }
        }
        EXPECT_EQ(array.reports[last].jobs[b].losses, own.losses) << job;
      }
    }
  }
}

TEST_F(JobArrays, TiedParametersAreEachJobsOwn) {
  const LayeredModel model = tied_model();
  for (const std::vector<int>& stages : {std::vector{1}, {1, 1}})
    expect_own_runs(model, plan_for(model, stages, 4, ScheduleKind::OneFOneB), three(5, UpdateRuleKind::Adam),
                    "tied");
}

TEST_F(JobArrays, ModelsGetWhatOthersHaveAndTheyLeaveOut) {
  const auto with = [](double before, double after, std::int64_t width = 8) {
    LayeredModel model = classifier("m", {12}, 5);
    std::string last = "input";
    const auto then = [&](const std::string& name, LayerPtr layer) {
      model.layers.push_back({name, std::move(layer), {last}});
      last = name;
    };
    then("a", linear(12, width));
    if (before > 0) then("before", dropout(before));
    then("relu", relu());
    if (after > 0) then("after", dropout(after));
    then("b", linear(width, 5));
    end_in_cross_entropy(model);
    return model;
  };
  std::vector<LayeredModel> models{with(0.1, 0), with(0, 0.2), with(0, 0)};
  complete(models);
  for (const LayeredModel& model : models) {
    EXPECT_EQ(model.layer_names(), with(0.1, 0.2).layer_names());
    EXPECT_TRUE(validate(model).empty());
  }
  EXPECT_FALSE(models[0].layers[3].layer->draws());
  EXPECT_TRUE(models[1].layers[3].layer->draws());
  EXPECT_FALSE(models[2].layers[1].layer->draws() || models[2].layers[3].layer->draws());
  const auto array = fuse(models, choices(ArrayKernels::Loop));
  ASSERT_TRUE(array) << to_string(array.problems());
  // Models with other differences are refused.
  std::vector<LayeredModel> others{with(0.1, 0), with(0, 0, 9)};
  complete(others);
  EXPECT_FALSE(fuse(others, choices(ArrayKernels::Loop)));
  std::vector<LayeredModel> longer{with(0, 0), with(0.1, 0)};
  longer[1].layers.insert(longer[1].layers.begin() + 1, {"more", relu(), {"a"}});
  complete(longer);
  EXPECT_EQ(longer[0].layer_names(), with(0, 0).layer_names());
}

TEST_F(JobArrays, ModelsOfOtherFormsAreRefused) {
  const auto with = [](std::int64_t width) {
    LayeredModel model = classifier("m", {12}, 5);
    model.layers.push_back({"a", linear(12, width), {"input"}});
    model.layers.push_back({"b", linear(width, 5), {"a"}});
    end_in_cross_entropy(model);
    return model;
  };
  const auto refused = fuse({with(8), with(9)}, choices(ArrayKernels::Loop));
  ASSERT_FALSE(refused);
  EXPECT_NE(to_string(refused.problems()).find("a.weight is [8, 12] in job 0 and [9, 12] in job 1"),
            std::string::npos)
      << to_string(refused.problems());
  const auto pattern = fuse({with(8), with(8)}, choices(ArrayKernels::Loop), {.unfused = {"z*"}});
  ASSERT_FALSE(pattern);
  EXPECT_EQ(fuse({with(8)}, choices(ArrayKernels::Loop))->jobs(), 1) << "one job is a plain model";
}

}  // namespace
}  // namespace millrace
