// UNET3D beside a plain PyTorch twin, and through plans as in one process: training, and evaluations of
// volumes window by window.
#include <ATen/ops/zeros.h>

#include <cstdlib>

#include "models/registry.h"
#include "runtime/layers/autograd_layer.h"
#include "tests/models/one_step.h"

namespace millrace {
namespace {

constexpr std::int64_t kSide = 8, kStride = kSide / 2;

LayeredModel small(const char* filters = "2") {
  return *make_model("unet3d", {{"image-size", "8"}, {"levels", "2"}, {"filters", filters}});
}

/// Windows of three volumes of random voxels, at most two in a microbatch.
class Windows final : public BatchSource {
 public:
  explicit Windows(const LayeredModel& model) : model_(model) {
    for (const Shape& sides : std::vector<Shape>{{8, 12, 16}, {8, 8, 8}, {12, 8, 8}}) {
      Shape counts;
      for (const std::int64_t side : sides) counts.push_back((side - kSide) / kStride + 1);
      const std::int64_t windows = counts[0] * counts[1] * counts[2];
      for (std::int64_t n = 0; n < windows; ++n)
        rows_.push_back({windows, n, n / (counts[1] * counts[2]) * kStride,
                         n / counts[2] % counts[1] * kStride, n % counts[2] * kStride, sides[0], sides[1],
                         sides[2]});
    }
  }
  std::int64_t microbatches() const { return (std::ssize(rows_) + 1) / 2; }
  Batch get(std::int64_t position) override {
    Batch batch = RandomBatches(model_, static_cast<int>(extent(position).samples)).get(position);
    for (std::int64_t i = 0; i < extent(position).samples; ++i)
      std::copy_n(rows_[2 * position + i].data(), 8,
                  batch.fields[2].mutable_data_ptr<std::int64_t>() + 8 * i);
    return batch;
  }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t position) const override {
    return {.samples = std::min<std::int64_t>(2, std::ssize(rows_) - 2 * position)};
  }

 private:
  LayeredModel model_;
  std::vector<Shape> rows_;
};

class Unet3d : public OneStep {
 protected:
  void SetUp() override {
    OneStep::SetUp();
    make_evaluation_ = [](const LayeredModel& model) {
      auto windows = std::make_unique<Windows>(model);
      const std::int64_t microbatches = windows->microbatches();
      return Evaluation{std::move(windows), microbatches};
    };
  }
  TrainOptions evaluated(std::int64_t steps) {
    TrainOptions all = options(steps);
    all.evaluate_every = 2;
    return all;
  }
  /// Compares the evaluations that the plans' last stages report.
  static void expect_same_evaluations(const Outcome& a, const Plan& of_a, const Outcome& b, const Plan& of_b,
                                      const std::string& what) {
    const auto& ours = a.reports[of_a.stages.back().ranks[0].value].evaluations;
    const auto& theirs = b.reports[of_b.stages.back().ranks[0].value].evaluations;
    ASSERT_EQ(ours.size(), theirs.size()) << what;
    ASSERT_FALSE(ours.empty()) << what;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].values, theirs[i].values) << what;
      EXPECT_EQ(ours[i].samples, 3) << what << ": volumes, not windows";
    }
  }
};

TEST_F(Unet3d, HasTheTwinsNamesLossAndGradients) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  make_evaluation_ = {};
  const LayeredModel model = *make_model("unet3d", {{"image-size", "16"}, {"levels", "3"}, {"filters", "4"}});
  write_step("unet3d", model);
  write_step("unet3d-fast", model, 4096);
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/unet3d.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(Unet3d, TrainsAndEvaluatesThroughPlansAsInOneProcess) {
  constexpr int kMicrobatches = 4;
  const LayeredModel model = small();
  const auto plan = [&](int stages, ScheduleKind kind, int chunks = 1) {
    return uniform_plan(model.name, model.layer_names(), stages * chunks, 1, kMicrobatches, kind, chunks);
  };
  const Plan alone = plan(1, ScheduleKind::OneFOneB);
  const Outcome one = train(model, alone, evaluated(3));
  for (const double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
  for (const auto& [stages, kind, chunks] : {std::tuple{2, ScheduleKind::OneFOneB, 1},
                                             {3, ScheduleKind::ZeroBubbleH1, 1},
                                             {4, ScheduleKind::GPipe, 1},
                                             {2, ScheduleKind::Interleaved, 2},
                                             {2, ScheduleKind::ZeroBubbleV, 2},
                                             {3, ScheduleKind::VHalf, 2},
                                             {2, ScheduleKind::DualPipeV, 2}}) {
    const Plan cut = plan(stages, kind, chunks);
    const Outcome other = train(model, cut, evaluated(3));
    const std::string what = to_string(kind) + " " + std::to_string(stages);
    expect_equal(other, one, what);
    expect_same_evaluations(other, cut, one, alone, what);
  }
  LayeredModel fallback = model;
  for (NamedLayer& layer : fallback.layers) layer.layer = through_autograd(layer.layer);
  expect_equal(train(fallback, alone, evaluated(3)), one, "by autograd");
}

/// Replicas of the last stage see every other microbatch, so no replica has all windows of a volume.
TEST_F(Unet3d, ReplicasEvaluateWholeVolumesTogether) {
  const LayeredModel model = small();
  const auto evaluate = [&](const Plan& plan) {
    TrainOptions settings = evaluated(2);
    settings.learning_rate.base = 0;  // sums of gradients come in another order, so weights stay as they are
    settings.rule.weight_decay = 0;
    return train(model, plan, settings);
  };
  const Plan alone = plan_for(model, {1}, 6, ScheduleKind::OneFOneB);
  const Outcome one = evaluate(alone);
  for (const std::vector<int>& replicas : {std::vector{2}, {3}, {1, 2}, {2, 3}}) {
    const Plan plan = plan_for(model, replicas, 6, ScheduleKind::OneFOneB);
    expect_same_evaluations(evaluate(plan), plan, one, alone, ::testing::PrintToString(replicas));
  }
}

/// With a level's encoder and decoder on one rank, what skips the levels below crosses no border of ranks.
TEST(Unet3dPlans, FoldedLevelsSendNoSkips) {
  const LayeredModel model = small();
  const auto position = [&](const char* name) {
    return std::ranges::find(model.layers, name, &NamedLayer::name) - model.layers.begin();
  };
  Plan plan = uniform_plan(model.name, model.layer_names(), 4, 1, 4, ScheduleKind::ZeroBubbleV, 2);
  const std::ptrdiff_t ends[] = {0, position("downsample.0.conv1.0"), position("bottleneck.conv1.0"),
                                 position("upsample.1.upsample_conv.0"), std::ssize(model.layers)};
  for (std::size_t s = 0; s < 4; ++s) {
    plan.stages[s].layers.clear();
    for (std::ptrdiff_t i = ends[s]; i < ends[s + 1]; ++i)
      plan.stages[s].layers.push_back(model.layers[i].name);
  }
  const auto layout = make_layout(model, plan, 1);
  ASSERT_TRUE(layout) << to_string(layout.problems());
  const auto skips = [](const StageLink& link) { return link.to.value > link.from.value + 1; };
  EXPECT_EQ(std::ranges::count_if(layout->links, skips), 1)
      << "the first level's skip, between stages of one rank";
  const auto schedule = make_schedule(plan.schedule, shape_of(plan, *layout, 4), Transport::Buffered);
  ASSERT_TRUE(schedule) << to_string(schedule.problems());
  int sent = 0;
  for (const auto& actions : schedule->ranks)
    for (const Action& action : actions) {
      if (action.op != Op::SendActivation) continue;
      ++sent;
      EXPECT_EQ(action.peer_stage.value, action.stage.value + 1);
    }
  EXPECT_EQ(sent, 2 * 4) << "into the V and out of it, for each microbatch";
}

TEST(Unet3dOptions, ACropThatCannotBeHalvedIsRefused) {
  for (const auto& [size, levels] : {std::pair{"32", "5"}, {"100", "5"}, {"12", "3"}, {"8", "3"}}) {
    const auto model = make_model("unet3d", {{"image-size", size}, {"levels", levels}});
    ASSERT_FALSE(model) << size;
    EXPECT_NE(to_string(model.problems()).find("give a multiple of "), std::string::npos);
  }
  EXPECT_TRUE(make_model("unet3d", {{"image-size", "64"}}));
  EXPECT_FALSE(make_model("unet3d", {{"classes", "1"}}));
}

}  // namespace
}  // namespace millrace
