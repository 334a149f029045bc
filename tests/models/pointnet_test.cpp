// PointNet beside a plain PyTorch twin, and through plans as in one process.
#include <cstdlib>

#include "models/registry.h"
#include "runtime/layers/autograd_layer.h"
#include "tests/models/one_step.h"

namespace millrace {
namespace {

LayeredModel small(const char* name, const char* feature_transform, const char* dropout = "0") {
  GivenOptions options{{"classes", "5"}, {"points", "20"}, {"feature-transform", feature_transform}};
  if (std::string(name) == "pointnet_cls") options.push_back({"dropout", dropout});
  return *make_model(name, options);
}

class PointNet : public OneStep {};

TEST_F(PointNet, HasTheTwinsNamesLossAndGradients) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  for (const char* name : {"pointnet_cls", "pointnet_seg"}) {
    for (const char* on : {"off", "on"}) write_step(std::string(name) + "-" + on, small(name, on));
  }
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/pointnet.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(PointNet, TrainsThroughPlansAsInOneProcess) {
  constexpr int kMicrobatches = 3;
  for (const char* name : {"pointnet_cls", "pointnet_seg"}) {
    const LayeredModel model = small(name, "on", "0.3");
    const auto plan = [&](int stages, ScheduleKind kind) {
      return uniform_plan(model.name, model.layer_names(), stages, 1, kMicrobatches, kind);
    };
    const Outcome one = train(model, plan(1, ScheduleKind::OneFOneB), options(3));
    for (const double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
    for (const auto& [stages, kind] :
         {std::pair{2, ScheduleKind::OneFOneB}, {3, ScheduleKind::ZeroBubbleH1}, {4, ScheduleKind::GPipe}})
      expect_equal(train(model, plan(stages, kind), options(3)), one,
                   model.name + " " + to_string(kind) + " " + std::to_string(stages));
    LayeredModel fallback = model;
    for (NamedLayer& layer : fallback.layers) layer.layer = through_autograd(layer.layer);
    expect_equal(train(fallback, plan(1, ScheduleKind::OneFOneB), options(3)), one,
                 model.name + " by autograd");
  }
}

}  // namespace
}  // namespace millrace
