// Models exported by PyTorch: one step is Python's, and every plan is one process.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <cmath>

#include "models/archive/exported_program.h"
#include "models/exported/exported_model.h"
#include "models/exported/fused_calls.h"
#include "runtime/stage/stage_executor.h"
#include "tests/exported/archives.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

LayeredModel load(const std::string& name, const ExportedOptions& options = {}) {
  const auto model = make_exported_model((folder_with(name) / (name + ".pt2")).string(), options);
  EXPECT_TRUE(model) << (model ? "" : to_string(model.problems()));
  return model ? *model : LayeredModel{};
}

/// Distance as a share of the larger norm, or of `least` where both are less: a gradient that is zero but for
/// rounding (of an attention's key bias) has no digits to agree in.
double distance(const at::Tensor& found, const at::Tensor& expected, double least = 0) {
  const at::Tensor a = found.to(at::kDouble), b = expected.to(at::kDouble);
  const double size = std::max({a.norm().item<double>(), b.norm().item<double>(), least});
  return size == 0 ? 0 : a.sub(b).norm().item<double>() / size;
}

/// Loss of `batch` in evaluation, by a stage that is the whole model.
double evaluation_loss(const StageLayout& layout, ParameterStore& store, const Batch& batch,
                       std::uint64_t seed = 1) {
  const StageProgram program = compile_stage(layout, StageId(0));
  LayerRunner runner(program, store, seed);
  LayerSlot slot;
  slot.values.resize(program.num_places);
  for (const auto& [field, place] : program.fields) slot.values[place] = batch.fields[field];
  runner.forward(slot, 0, store.current(), LayerRunner::Run::Evaluate);
  const at::Tensor result = slot.values[program.heads[0].inputs[0]];
  return (result.dim() == 0 ? result : at::cross_entropy_loss(result, batch.fields.back())).item<double>();
}

/// Python's step was taken on another processor, whose kernels add in another order. These bounds are four
/// times what AVX2 and AVX-512 differ by; a wrong gradient is off by more than 1e-3. Batch norm over few
/// samples magnifies rounding.
constexpr double kRounding = 4e-6;
constexpr double kBatchNormRounding = 5e-5;

struct StepCase {
  const char* name;
  const char* granularity = "auto";
  double tolerance = kRounding;  ///< tolerance of the loss, and of each gradient's norm
  const char* head = "auto";
};
std::ostream& operator<<(std::ostream& out, const StepCase& c) {
  return out << c.name;
}

class EveryExportedModel : public ::testing::TestWithParam<StepCase> {};

TEST_P(EveryExportedModel, TakesPythonsStep) {
  MILLRACE_NEEDS_REFERENCE();
  at::NoGradGuard no_grad;
  at::set_num_threads(1);
  const std::string name = GetParam().name;
  const LayeredModel model = load(name, {.head = GetParam().head, .granularity = GetParam().granularity});
  ASSERT_FALSE(model.layers.empty());
  const auto step = SafetensorsFile::open((folder_with(name) / (name + ".step.safetensors")).string());
  ASSERT_TRUE(step) << to_string(step.problems());
  Batch batch;
  BatchExtent extent;
  extent.lengths.resize(model.dimensions.size());
  for (const FieldSpec& field : model.fields) {
    batch.fields.push_back(step->tensor("input/" + field.name).to(field.dtype));
    extent.samples = batch.fields.back().size(field.batch_dimension);
    std::vector<std::int64_t> lengths = batch.fields.back().sizes().vec();
    lengths.erase(lengths.begin() + field.batch_dimension);
    for (std::size_t d = 0; d < lengths.size(); ++d)
      if (field.shape[d] < 0) extent.lengths[-1 - field.shape[d]] = lengths[d];
  }
  const Plan plan = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  const auto layout = make_layout(model, plan, static_cast<int>(extent.samples));
  ASSERT_TRUE(layout) << to_string(layout.problems());
  ParameterStore store(*layout, StageId(0), 1);
  auto rule = make_update_rule({}, store);
  if (name != "inception_v3") {  // PyTorch's evaluation leaves the auxiliary loss out
    EXPECT_NEAR(evaluation_loss(*layout, store, batch), step->tensor("evaluation").item<double>(), 2e-6);
  }
  Alone alone;
  const auto device = make_cpu_device();
  StageExecutor executor({*layout, StageId(0), store, *rule, alone, nullptr, *device}, {.seeds = {1}});
  executor.begin({.extent_of = [&](std::int64_t) { return extent; }});
  executor.feed(MicrobatchId(0), batch);
  executor.execute({Op::Forward, StageId(0), MicrobatchId(0)});
  executor.execute({Op::Backward, StageId(0), MicrobatchId(0)});
  for (const TiedUse& use : store.tied())
    store.add_tied_gradient(static_cast<std::size_t>(use.slot), use.gradient);

  const double loss = executor.heads().take_losses().mean_loss();
  const double expected = step->tensor("loss").item<double>();
  EXPECT_NEAR(loss, expected, GetParam().tolerance * std::abs(expected));
  std::set<std::string> seen;
  double worst = 0;
  const double total = store.flat_gradient().norm().item<double>();
  for (std::size_t i = 0; i < store.slots().size(); ++i) {
    const ParameterSlot& slot = store.slots()[i];
    std::vector<std::string> names = slot.also;
    names.push_back(slot.name);
    for (const std::string& one : names) {
      ASSERT_TRUE(step->contains("grad/" + one)) << one << " has no gradient in Python";
      seen.insert("grad/" + one);
      const double far =
          distance(store.view(store.flat_gradient(), i), step->tensor("grad/" + one), 0.01 * total);
      worst = std::max(worst, far);
      EXPECT_LT(far, GetParam().tolerance) << one;
    }
  }
  for (const auto& [buffer, value] : store.named_buffers()) {
    if (!step->contains("buffer/" + buffer)) continue;
    seen.insert("buffer/" + buffer);
    // A mean of values around zero is all rounding: it is compared on the scale of their standard deviation.
    double scale = 0;
    if (const auto at = buffer.rfind("running_mean"); at != std::string::npos)
      scale = step->tensor("buffer/" + buffer.substr(0, at) + "running_var").sqrt().norm().item<double>();
    EXPECT_LT(distance(value, step->tensor("buffer/" + buffer), scale), GetParam().tolerance) << buffer;
  }
  for (const std::string& one : step->names()) {
    if (!one.starts_with("grad/") && !one.starts_with("buffer/")) continue;
    EXPECT_TRUE(seen.contains(one)) << one;
  }
  std::printf("%s: %zu layers, loss %.9g (Python %.9g), gradients differ by at most %.2g\n", name.c_str(),
              model.layers.size(), loss, expected, worst);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EveryExportedModel,
    testing::Values(StepCase{"mlp"}, StepCase{"mlp", "call"}, StepCase{"mlp", "0"}, StepCase{"corners"},
                    StepCase{"corners", "call"}, StepCase{"written_out"}, StepCase{"frozen_batch"},
                    StepCase{"fourier"}, StepCase{"fourier", "call"}, StepCase{"spectral"},
                    StepCase{"spectral", "call"}, StepCase{"written"}, StepCase{"written", "call"},
                    StepCase{"translator"}, StepCase{"translator", "0"}, StepCase{"translator", "call"},
                    StepCase{"lstm"}, StepCase{"bert"}, StepCase{"bert", "call"}, StepCase{"gpt2"},
                    StepCase{"llama"}, StepCase{"mixtral"}, StepCase{"resnet18", "auto", kBatchNormRounding},
                    StepCase{"resnet18", "auto", kBatchNormRounding, "cross-entropy"},
                    StepCase{"resnet50", "auto", kBatchNormRounding}, StepCase{"vgg16"},
                    StepCase{"inception_v3", "auto", kBatchNormRounding},
                    StepCase{"efficientnet_b0", "auto", kBatchNormRounding}, StepCase{"vit_b_16"},
                    StepCase{"swin_t"}),
    [](const auto& info) {
      std::string head = info.param.head == std::string("auto") ? "" : "_" + std::string(info.param.head);
      std::ranges::replace(head, '-', '_');
      return std::string(info.param.name) + "_" + info.param.granularity + head;
    });

TEST(ExportedHeads, CrossEntropyOfALossInsideKnowsTheBestClasses) {
  MILLRACE_NEEDS_REFERENCE();
  const LayeredModel model = load("resnet18", {.head = "cross-entropy"});
  ASSERT_EQ(model.heads.size(), 1u);
  EXPECT_EQ(model.heads[0].head->metrics(), (std::vector<std::string>{"loss", "top1", "top5"}));
  EXPECT_EQ(model.heads[0].inputs.back(), "labels");
  EXPECT_EQ(model.fields.size(), 2u) << "the labels that the model takes, and no second ones";
  EXPECT_EQ(load("resnet18").heads[0].head->metrics(), (std::vector<std::string>{"loss"}));
  // Its scores are those of all tokens together, which are no samples.
  const std::string lstm = (folder_with("lstm") / "lstm.pt2").string();
  EXPECT_FALSE(make_exported_model(lstm, {.head = "cross-entropy"}));
}

TEST(FusedCalls, StandForWhatIsWrittenOutAndNobodyElseReads) {
  MILLRACE_NEEDS_REFERENCE();
  const auto archive = ExportedArchive::open((folder_with("written_out") / "written_out.pt2").string());
  ASSERT_TRUE(archive) << to_string(archive.problems());
  Result<FlatProgram> program = flatten((*archive)->program(), "written_out");
  ASSERT_TRUE(program) << to_string(program.problems());
  const auto count = [&](const std::string& op) {
    return std::ranges::count(program->calls, op, &FlatCall::op);
  };
  ASSERT_EQ(count("aten::tanh"), 4);
  ASSERT_EQ(count("aten::softmax"), 5);
  std::set<std::string> parameters;
  for (const ExportedInput& input : (*archive)->program().inputs)
    if (input.kind == ExportedInput::Kind::Parameter) parameters.insert(input.value);
  fuse_calls(*program, program->results.front(), parameters);
  EXPECT_EQ(count("aten::gelu"), 3);
  EXPECT_EQ(count("aten::scaled_dot_product_attention"), 3);
  EXPECT_EQ(count("aten::tanh"), 1) << "the one that is read twice";
  EXPECT_EQ(count("aten::softmax"), 2) << "a bias that learns, weights that are read";
  EXPECT_EQ(count("aten::pow"), 1);
}

/// Integers without a limit (masks) are drawn from 0 and 1; the models have at most 64 positions.
LayeredModel with_limits(LayeredModel model) {
  for (FieldSpec& field : model.fields)
    if (!at::isFloatingType(field.dtype) && field.limit == 0) field.limit = 2;
  return model;
}

class ExportedPipeline : public Pipeline, public ::testing::WithParamInterface<StepCase> {};

TEST_P(ExportedPipeline, EveryPlanEqualsOneProcess) {
  MILLRACE_NEEDS_REFERENCE();
  const LayeredModel model = with_limits(load(GetParam().name, {.granularity = GetParam().granularity}));
  ASSERT_GE(model.layers.size(), 4u);
  const int steps = 2, microbatches = 4;
  const Outcome one =
      train(model, plan_for(model, {1}, microbatches, ScheduleKind::OneFOneB), options(steps));
  ASSERT_EQ(one.losses.size(), static_cast<std::size_t>(steps));
  for (double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
  for (int stages : {2, 4}) {
    const Plan plan = plan_for(model, std::vector<int>(stages, 1), microbatches, ScheduleKind::OneFOneB);
    expect_equal(train(model, plan, options(steps)), one, std::to_string(stages) + " stages");
  }
  Plan recomputing = plan_for(model, {1, 1}, microbatches, ScheduleKind::OneFOneB);
  for (PlanStage& stage : recomputing.stages) stage.recompute = true;
  expect_equal(train(model, recomputing, options(steps)), one, "recompute");
  if (model.layers.size() < 8) return;
  const Plan v =
      uniform_plan(model.name, model.layer_names(), 4, 1, microbatches, ScheduleKind::ZeroBubbleV, 2);
  expect_equal(train(model, v, options(steps)), one, "zb-v, two ranks");
  const Plan v4 =
      uniform_plan(model.name, model.layer_names(), 8, 1, microbatches, ScheduleKind::ZeroBubbleV, 2);
  expect_equal(train(model, v4, options(steps)), one, "zb-v, four ranks");
}

INSTANTIATE_TEST_SUITE_P(Models, ExportedPipeline,
                         testing::Values(StepCase{"mlp_dropout", "call"}, StepCase{"corners", "call"},
                                         StepCase{"fourier", "call"}, StepCase{"translator"},
                                         StepCase{"lstm_dropout", "call"}, StepCase{"bert_dropout"},
                                         StepCase{"gpt2_dropout"}, StepCase{"llama_dropout"},
                                         StepCase{"mixtral_dropout"}, StepCase{"resnet18"},
                                         StepCase{"efficientnet_b0_dropout"}, StepCase{"swin_t_dropout"}),
                         [](const auto& info) { return std::string(info.param.name); });

class ExportedInLowerPrecision : public ExportedPipeline {};

TEST_P(ExportedInLowerPrecision, EveryPlanEqualsOneProcess) {
  MILLRACE_NEEDS_REFERENCE();
  const LayeredModel model = with_limits(load(GetParam().name, {.granularity = GetParam().granularity}));
  TrainOptions run = options(2);
  const Outcome exact = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), run);
  for (const Precision precision : {Precision::BFloat16, Precision::Float16}) {
    run.precision = precision;
    const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), run);
    EXPECT_NE(one.losses, exact.losses) << "no layer was cast";
    EXPECT_NEAR(one.losses[0], exact.losses[0], 0.03 * exact.losses[0]);
    expect_equal(train(model, plan_for(model, {1, 1, 1, 1}, 4, ScheduleKind::OneFOneB), run), one,
                 to_string(precision));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExportedInLowerPrecision,
                         testing::Values(StepCase{"mlp_dropout", "call"}, StepCase{"gpt2_dropout", "call"},
                                         StepCase{"resnet18", "call"}),
                         [](const auto& info) { return std::string(info.param.name); });

using Exported = Pipeline;

TEST_F(Exported, EvaluationDropsNothingAndLeavesBuffersAlone) {
  MILLRACE_NEEDS_REFERENCE();
  at::NoGradGuard no_grad;
  for (const char* name : {"resnet18", "efficientnet_b0_dropout", "lstm_dropout", "spectral", "written"}) {
    const LayeredModel model = load(name);
    const auto layout = *make_layout(
        model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 3);
    ParameterStore store(layout, StageId(0), 1);
    const auto before = store.copy_of_buffers();
    const Batch batch = RandomBatches(model, 3).get(0);
    EXPECT_EQ(evaluation_loss(layout, store, batch, 1), evaluation_loss(layout, store, batch, 2))
        << name << " drew random numbers";
    for (std::size_t l = 0; l < before.size(); ++l)
      for (std::size_t b = 0; b < before[l].size(); ++b)
        EXPECT_TRUE(at::equal(before[l][b], store.buffers(static_cast<int>(l))[b])) << name;
  }
}

TEST_F(Exported, ZeroBubbleHasAWeightHalf) {
  MILLRACE_NEEDS_REFERENCE();
  // The input half must not compute weight gradients: those of linear maps wait for the weight half.
  at::NoGradGuard no_grad;
  const LayeredModel model = load("mlp");
  const auto layout =
      *make_layout(model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB), 3);
  ParameterStore store(layout, StageId(0), 1);
  const StageProgram program = compile_stage(layout, StageId(0));
  const Batch batch = RandomBatches(model, 3).get(0);
  LayerRunner runner(program, store, 1);
  LayerSlot slot;
  slot.values.resize(program.num_places);
  slot.gradients.resize(program.num_places);
  for (const auto& [field, place] : program.fields) slot.values[place] = batch.fields[field];
  runner.forward(slot, 0, store.current(), LayerRunner::Run::Train);
  const int scores = program.heads[0].inputs[0];
  runner.add_gradient(slot, scores, program.heads[0].use, at::ones_like(slot.values[scores]));
  runner.backward_input(slot, store.current());
  EXPECT_EQ(store.flat_gradient().abs().sum().item<double>(), 0);
  runner.backward_weight(slot, [](int) {});
  EXPECT_GT(store.flat_gradient().abs().sum().item<double>(), 0);
}

TEST_F(Exported, LayersFollowTheModules) {
  MILLRACE_NEEDS_REFERENCE();
  const LayeredModel model = load("bert", {.granularity = "3"});
  const std::vector<std::string> names = model.layer_names();
  for (const char* name : {"bert.encoder.layer.0", "bert.encoder.layer.1", "cls.predictions.transform"})
    EXPECT_NE(std::ranges::find(names, name), names.end()) << name;
  ASSERT_EQ(model.dimensions.size(), 1u);
  ASSERT_NE(model.field("labels"), nullptr);
  EXPECT_EQ(model.field("labels")->limit, 100);
  EXPECT_EQ(model.field("labels")->padding, -100);
  EXPECT_EQ(model.field("input_ids")->limit, 100);
  EXPECT_EQ(load("bert", {.granularity = "0"}).layers.size(), 1u);
}

}  // namespace
}  // namespace millrace
