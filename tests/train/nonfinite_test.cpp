// Losses and gradients that are not finite: all ranks stop, skip or go back in the same step, and say where
// it began.
#include <cmath>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/train/loss_spikes.h"
#include "runtime/train/slow_steps.h"
#include "tests/train/overflow.h"

namespace millrace {
namespace {

/// Convolutions with batch normalisation. Layer `name` gives NaN in microbatch 2 of these steps.
LayeredModel normalised(const std::string& name, std::int64_t step) {
  LayeredModel model = conv_model();
  const auto place = std::ranges::find(model.layers, name, &NamedLayer::name);
  place->layer =
      std::make_shared<NanForward>(derive_seed(11, name, static_cast<std::uint64_t>(step * 4 + 2)));
  return model;
}

class Nonfinite : public Pipeline {
 protected:
  TrainOptions with(OnNonfinite on, std::int64_t steps, FiniteCheckOf check = FiniteCheckOf::Loss) {
    TrainOptions run = options(steps, UpdateRuleKind::Adam);
    run.nonfinite = {.on = on, .check = check};
    return run;
  }
  std::string error_of(const LayeredModel& model, const Plan& plan, const TrainOptions& run) {
    try {
      train(model, plan, run);
    } catch (const NumericError& error) {
      return error.what();
    }
    return "it went on";
  }
};

/// Looking at numbers changes none.
TEST_F(Nonfinite, JudgingTogetherLeavesTheBits) {
  const LayeredModel model = conv_model();
  const Plan plan = plan_for(model, {2, 1}, 4, ScheduleKind::OneFOneB);
  const Outcome plain = train(model, plan, with(OnNonfinite::Stop, 3));
  for (const FiniteCheckOf check : {FiniteCheckOf::Gradients, FiniteCheckOf::Activations})
    expect_equal(train(model, plan, with(OnNonfinite::Stop, 3, check)), plain, to_string(check));
  expect_equal(train(model, plan, with(OnNonfinite::Skip, 3)), plain, "skip");
}

TEST_F(Nonfinite, ASkippedStepIsSkippedByEveryPlan) {
  const LayeredModel model = overflowing({1, 3});
  const Outcome one =
      train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), with(OnNonfinite::Skip, 6));
  EXPECT_EQ(one.reports[0].skipped_steps, 2);
  for (const ScheduleKind kind : {ScheduleKind::OneFOneB, ScheduleKind::GPipe}) {
    const Outcome ours = train(model, plan_for(model, {1, 1, 1}, 4, kind), with(OnNonfinite::Skip, 6));
    expect_equal(ours, one, to_string(kind));
    for (const RunReport& report : ours.reports) EXPECT_EQ(report.skipped_steps, 2) << to_string(kind);
  }
}

/// Weights, the rule's state and running statistics are as if the step had not been, although its forwards
/// were NaN.
TEST_F(Nonfinite, ASkippedStepChangesNothing) {
  const LayeredModel model = normalised("relu1", 2);
  for (const bool shards : {false, true}) {
    const Plan plan = plan_for(model, {1, 2}, 4, ScheduleKind::OneFOneB);
    std::vector<Checkpoint> checkpoints;
    for (const std::int64_t steps : {2, 3}) {
      TrainOptions run = with(OnNonfinite::Skip, steps);
      run.rule.shard_state = shards;
      run.output_dir = (folder_ / ("out" + std::to_string(steps) + (shards ? "s" : ""))).string();
      run.checkpoint_at_end = true;
      train(model, plan, run);
      checkpoints.push_back(*open_checkpoint(run.output_dir));
    }
    std::size_t statistics = 0;
    for (const SafetensorsFile& shard : checkpoints[0].shards) {
      for (const std::string& name : shard.names()) {
        const SafetensorsFile* after = checkpoints[1].find(name);
        ASSERT_TRUE(after) << name;
        EXPECT_TRUE(at::equal(shard.tensor(name), after->tensor(name))) << name;
        statistics += name.find("running_") != std::string::npos;
      }
    }
    EXPECT_EQ(statistics, 4u);
  }
}

TEST_F(Nonfinite, TheFirstTensorIsNamed) {
  const struct {
    std::string layer;
    std::vector<int> replicas;
    FiniteCheckOf check;
    std::string place;
  } cases[] = {
      {"relu1",
       {1, 1},
       FiniteCheckOf::Activations,
       "the activations of layer relu1 in microbatch 2 (stage 0)"},
      {"bn2", {1, 1}, FiniteCheckOf::Activations, "the activations of layer bn2 in microbatch 2 (stage 1)"},
      {"bn2", {1, 2}, FiniteCheckOf::Activations, "the activations of layer bn2 in microbatch 2 (stage 1)"},
      {"relu1", {1, 1}, FiniteCheckOf::Gradients, "the loss is NaN in microbatch 2 (stage 1)"},
      {"relu1", {1}, FiniteCheckOf::Loss, "the loss is NaN in microbatch 2 (stage 0)"},
  };
  for (const auto& c : cases) {
    const LayeredModel model = normalised(c.layer, 1);
    const Plan plan = plan_for(model, c.replicas, 4, ScheduleKind::OneFOneB);
    const std::string error = error_of(model, plan, with(OnNonfinite::Stop, 3, c.check));
    EXPECT_NE(error.find(c.place), std::string::npos) << error << "; expected " << c.place;
    EXPECT_EQ(error.find("step 1, "), 0u) << error;
  }
  const LayeredModel model = overflowing({1});
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  const std::string error = error_of(model, plan, with(OnNonfinite::Stop, 3, FiniteCheckOf::Gradients));
  EXPECT_NE(error.find("the gradient of parameter i.bias (stage 1)"), std::string::npos) << error;
}

/// Without a flush each stage looks by itself, before its own update.
TEST_F(Nonfinite, AsynchronousStagesLookAtTheirOwn) {
  LayeredModel model = conv_model();
  const auto place = std::ranges::find(model.layers, "relu1", &NamedLayer::name);
  place->layer = std::make_shared<NanForward>(derive_seed(11, "relu1", 5));
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::PipeDream);
  const std::string error = error_of(model, plan, with(OnNonfinite::Stop, 12, FiniteCheckOf::Activations));
  EXPECT_NE(error.find("the activations of layer relu1 in microbatch 5 (stage 0)"), std::string::npos)
      << error;
}

TEST_F(Nonfinite, AHundredSkippedStepsInARowEndTheRun) {
  std::vector<std::int64_t> all(120);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const LayeredModel model = overflowing(all);
  const std::string error =
      error_of(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), with(OnNonfinite::Skip, 120));
  EXPECT_NE(error.find("the last 100 steps were skipped"), std::string::npos) << error;
}

TEST(NonfiniteOptions, SayWithWhichRunsTheyDoNotGo) {
  const NonfiniteOptions skip{.on = OnNonfinite::Skip}, back{.on = OnNonfinite::Rollback},
      look{.check = FiniteCheckOf::Activations};
  const NonfiniteRun usual{.saves = true};
  for (const NonfiniteOptions& options : {NonfiniteOptions{}, skip, back, look})
    EXPECT_TRUE(validate(options, usual).empty());
  EXPECT_EQ(validate(skip, {.asynchronous = true}).size(), 1u);
  EXPECT_EQ(validate(back, {.asynchronous = true, .saves = true}).size(), 1u);
  EXPECT_EQ(validate(back, {.scales_loss = true, .several_jobs = true}).size(), 3u);
  EXPECT_EQ(validate(look, {.several_jobs = true}).size(), 1u);
  EXPECT_TRUE(validate(skip, {.scales_loss = true, .several_jobs = true}).empty());
}

TEST(SlowSteps, AreToldOnceAfterTwentyInARow) {
  SlowSteps steps;
  EXPECT_FALSE(steps.add(50)) << "the first one warms up";
  for (int step = 0; step < 20; ++step) EXPECT_FALSE(steps.add(1));
  for (int step = 0; step < 19; ++step) EXPECT_FALSE(steps.add(2));
  EXPECT_FALSE(steps.add(1.4)) << "one as usual between them";
  for (int step = 0; step < 19; ++step) EXPECT_FALSE(steps.add(3));
  const auto slow = steps.add(3);
  ASSERT_TRUE(slow);
  EXPECT_EQ(*slow, 3);
  for (int step = 0; step < 50; ++step) EXPECT_FALSE(steps.add(3)) << "once";
}

TEST(LossSpikes, StandOutFromTheLossesBefore) {
  LossSpikes spikes;
  for (int step = 0; step < 15; ++step) EXPECT_FALSE(spikes.add(step == 3 ? 90 : 2)) << "too few to judge by";
  EXPECT_FALSE(spikes.add(2));
  const auto usual = spikes.add(8);
  ASSERT_TRUE(usual);
  EXPECT_EQ(*usual, 2);
  EXPECT_TRUE(spikes.add(8)) << "a spike does not make the next one usual";
  EXPECT_FALSE(spikes.add(2.4)) << "not a quarter above the median";
  EXPECT_FALSE(spikes.add(std::numeric_limits<double>::quiet_NaN()));
}

/// Losses that fall and swing as those of a training do are no spikes.
TEST(LossSpikes, ANoisyFallHasNone) {
  LossSpikes spikes;
  for (int step = 0; step < 2000; ++step) {
    const double noise = std::sin(step * 12.9898) * 43758.5453;
    EXPECT_FALSE(spikes.add(4 / (1 + 0.01 * step) + 0.5 * (noise - std::floor(noise)))) << step;
  }
}

}  // namespace
}  // namespace millrace
