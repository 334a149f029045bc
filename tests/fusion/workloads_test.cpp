// The models of HFTA's study, and GNMT, in their smallest forms: in one process, through two stages, and as
// arrays.
#include <ATen/ops/allclose.h>

#include "models/registry.h"
#include "tests/fusion/job_arrays.h"
#include "tests/language/language_fixture.h"

namespace millrace {
namespace {

struct Workload {
  const char* name;
  GivenOptions options;
  bool reads_text = false;
  std::string form{};  ///< tells several workloads of one name apart
};

LayeredModel model_of(const Workload& workload) {
  auto model = make_model(workload.name, workload.options);
  EXPECT_TRUE(model) << to_string(model.problems());
  return *model;
}

class Workloads : public JobArrays, public ::testing::WithParamInterface<Workload> {
 protected:
  static constexpr int kMicrobatches = 2;
  void SetUp() override {
    JobArrays::SetUp();
    if (GetParam().reads_text)
      make_batches_ = [](const LayeredModel& model) {
        return text_batches(model, kMicrobatch, kMicrobatches);
      };
  }
};

TEST_P(Workloads, ArraysAreTheirJobsOwnRunsInLoopMode) {
  const LayeredModel model = model_of(GetParam());
  for (const std::vector<int>& stages : {std::vector{1}, {1, 1}}) {
    const Plan plan = plan_for(model, stages, kMicrobatches, ScheduleKind::OneFOneB);
    expect_own_runs(model, plan, three(2), model.name + " " + ::testing::PrintToString(stages));
  }
  const auto run = [&](const std::vector<int>& stages) {
    return train(model, plan_for(model, stages, kMicrobatches, ScheduleKind::OneFOneB), options(2));
  };
  expect_equal(run({1, 1}), run({1}), model.name + " by itself");
}

TEST_P(Workloads, KernelsOverAllJobsAgreeToRounding) {
  const LayeredModel model = model_of(GetParam());
  const Plan plan = plan_for(model, {1}, kMicrobatches, ScheduleKind::OneFOneB);
  const TrainOptions settings = three(1);
  const Outcome array = train(array_of(model, 3, ArrayKernels::Fused), plan, settings);
  for (std::size_t b = 0; b < 3; ++b) {
    const Outcome own = train(model, plan, alone(settings, b));
    EXPECT_NEAR(array.reports[0].jobs[b].losses.at(0), own.losses.at(0), 1e-4 * own.losses.at(0));
    // Few samples make the deviations of normalisation small, and so what divides rounding errors.
    for (const auto& [name, tensor] : own.weights)
      EXPECT_TRUE(at::allclose(array.job_weights[b].at(name), tensor, 1e-4, 2e-5))
          << b << ": " << name << " " << array.job_weights[b].at(name).sub(tensor).abs().max();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Smallest, Workloads,
    ::testing::Values(
        Workload{"pointnet_cls", {{"points", "12"}, {"feature-transform", "on"}}},
        Workload{"pointnet_seg", {{"points", "12"}, {"feature-transform", "on"}}},
        Workload{"dcgan",
                 {{"image-size", "16"},
                  {"latent", "6"},
                  {"generator-features", "4"},
                  {"discriminator-features", "4"}}},
        Workload{"dlrm", {{"table-rows", "9,5,2"}, {"bottom", "8,4"}, {"top", "6,1"}}},
        Workload{"unet3d", {{"image-size", "8"}, {"levels", "2"}, {"filters", "2"}}},
        Workload{"resnet18", {{"classes", "10"}, {"image-size", "32"}}},
        Workload{"autoencoder",
                 {{"image-size", "16"},
                  {"depth", "2"},
                  {"width", "4"},
                  {"norm", "group"},
                  {"activation", "prelu"},
                  {"padding", "circular"},
                  {"dilation", "2"},
                  {"dropout", "0.2"}}},
        Workload{"autoencoder",
                 {{"image-size", "16"},
                  {"depth", "2"},
                  {"width", "4"},
                  {"norm", "instance"},
                  {"padding", "reflect"}},
                 false,
                 "_instance_reflect"},
        Workload{"autoencoder",
                 {{"image-size", "16"}, {"depth", "2"}, {"width", "4"}, {"padding", "replicate"}},
                 false,
                 "_batch_replicate"},
        Workload{"resnet18", {{"classes", "10"}, {"image-size", "32"}, {"norm", "group"}}, false, "_group"},
        Workload{
            "resnet18", {{"classes", "10"}, {"image-size", "40"}, {"norm", "instance"}}, false, "_instance"},
        Workload{"transformer_lm",
                 {{"hidden", "16"},
                  {"heads", "2"},
                  {"feed-forward", "16"},
                  {"vocabulary", "37"},
                  {"max-norm", "0.2"}},
                 true,
                 "_max_norm"},
        Workload{"mobilenet_v2", {{"classes", "10"}, {"image-size", "40"}}},
        Workload{"mobilenet_v3_large", {{"classes", "10"}, {"image-size", "40"}}},
        Workload{"mobilenet_v3_small", {{"classes", "10"}, {"image-size", "40"}}},
        Workload{"transformer_lm",
                 {{"hidden", "16"}, {"heads", "2"}, {"feed-forward", "16"}, {"vocabulary", "37"}},
                 true},
        Workload{"gnmt", {{"layers", "2"}, {"hidden", "8"}, {"vocabulary", "37"}}, true},
        Workload{"s2vt",
                 {{"frame-features", "6"},
                  {"embedding-features", "8"},
                  {"hidden", "8"},
                  {"vocabulary", "37"},
                  {"length", "12"}},
                 true},
        Workload{"bert_base",
                 {{"layers", "2"},
                  {"hidden", "16"},
                  {"heads", "2"},
                  {"feed-forward", "32"},
                  {"vocabulary", "37"},
                  {"positions", "24"},
                  {"length", "20"}},
                 true}),
    [](const auto& info) { return info.param.name + info.param.form; });

}  // namespace
}  // namespace millrace
