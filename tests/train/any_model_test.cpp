// Models that are no image classifiers: two inputs, two heads, lengths that vary, integer and boolean tensors
// between stages, a layer with two outputs, weights that are tied across stages.
#include <ATen/ops/allclose.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>

#include "runtime/base/error.h"
#include "runtime/layers/sequence_layers.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

/// Tokens [B, T] -> which of them are even: bool [B, T]; and the tokens again, halved: int64 [B, T].
class EvenTokens final : public MultiLayer {
 public:
  std::string kind() const override { return "even_tokens"; }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    return {{.shape = inputs[0].shape, .dtype = at::kBool, .differentiable = false},
            {.shape = inputs[0].shape, .dtype = at::kLong, .differentiable = false}};
  }
  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor>,
                                      std::span<at::Tensor>, const CallContext&, Saved*) const override {
    return {inputs[0].remainder(2).eq(0), inputs[0].floor_divide(2)};
  }
  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor>, std::span<const at::Tensor>, Saved&,
                                             std::span<const bool>) const override {
    return {at::Tensor()};
  }
};

/// x [B, T, F], mask [B, T] -> x where the mask holds [B, T, F], and the sum of all over T [B, F].
class MaskAndPool final : public MultiLayer {
 public:
  std::string kind() const override { return "mask_and_pool"; }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    return {{.shape = inputs[0].shape}, {.shape = {inputs[0].shape[0], inputs[0].shape[2]}}};
  }
  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs, std::span<const at::Tensor>,
                                      std::span<at::Tensor>, const CallContext&,
                                      Saved* saved) const override {
    const at::Tensor mask = inputs[1].to(inputs[0].scalar_type()).unsqueeze(2);
    if (saved) saved->tensors = {mask, inputs[0]};
    return {at::mul(inputs[0], mask), at::sum(inputs[0], 1)};
  }
  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor> grads, std::span<const at::Tensor>,
                                             Saved& saved, std::span<const bool>) const override {
    at::Tensor sum;
    if (grads[0].defined()) sum = at::mul(grads[0], saved.tensors[0]);
    if (grads[1].defined()) {
      const at::Tensor pooled = grads[1].unsqueeze(1).expand(saved.tensors[1].sizes());
      sum = sum.defined() ? at::add(sum, pooled) : pooled;
    }
    return {sum, at::Tensor()};
  }
};

constexpr std::int64_t kVocabulary = 11, kWidth = 8;

/// [B, F] beside every token of [B, T, F].
class AddPooled final : public Layer {
 public:
  std::string kind() const override { return "add_pooled"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&, Saved*) const override {
    return at::add(inputs[0], inputs[1].unsqueeze(1));
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved&,
                                         std::span<const bool>) const override {
    return {grad, at::sum(grad, 1)};
  }
};

/// A token model with a side input, a classifier head beside the language head, and (`tied`) the embedding's
/// weights again in the last layer.
LayeredModel token_model(bool tied) {
  LayeredModel model{
      .name = "tokens",
      .fields = {{.name = "tokens", .shape = {dimension(0)}, .dtype = at::kLong, .limit = kVocabulary},
                 {.name = "side", .shape = {kWidth}},
                 {.name = "labels", .shape = {dimension(0)}, .dtype = at::kLong, .limit = kVocabulary},
                 {.name = "class", .dtype = at::kLong, .limit = 3}},
      .dimensions = {{.name = "length"}},
      .counts = {"tokens"}};
  auto& layers = model.layers;
  layers.push_back({"embedding", embedding({.vocabulary = kVocabulary, .features = kWidth}), {"tokens"}});
  layers.push_back({"even", std::make_shared<EvenTokens>(), {"tokens"}, {"is_even", "half"}});
  layers.push_back({"norm", layer_norm(kWidth), {"embedding"}});
  layers.push_back({"side_in", linear(kWidth, kWidth), {"side"}});
  layers.push_back({"mix", std::make_shared<AddPooled>(), {"norm", "side_in"}});
  layers.push_back({"a", linear(kWidth, kWidth), {"mix"}});
  layers.push_back({"drop", dropout(0.2), {"a"}});
  layers.push_back({"pool", std::make_shared<MaskAndPool>(), {"drop", "is_even"}, {"masked", "pooled"}});
  layers.push_back({"half_embedding", embedding({.vocabulary = kVocabulary, .features = kWidth}), {"half"}});
  layers.push_back({"b", linear(kWidth, kWidth), {"masked"}});
  layers.push_back({"skip", add(), {"b", "half_embedding"}});
  layers.push_back({"gelu", gelu(), {"skip"}});
  layers.push_back({"classes", linear(kWidth, 3), {"pooled"}});
  layers.push_back({"scores", linear(kWidth, kVocabulary), {"gelu"}});
  if (tied) {
    layers[8].tied = {{"weight", "embedding.weight"}};
    layers[13].tied = {{"weight", "embedding.weight"}};
  }
  model.heads = {{"language", token_cross_entropy_head({.ignored = 0}), {"scores", "labels"}},
                 {"class", cross_entropy_head(), {"classes", "class"}, 0.5}};
  return model;
}

constexpr ScheduleKind kFlushing[] = {ScheduleKind::GPipe, ScheduleKind::OneFOneB,
                                      ScheduleKind::ZeroBubbleH1};

TEST_F(Pipeline, AnyModelEqualsOneProcessBitForBit) {
  for (const bool tied : {false, true}) {
    const LayeredModel model = token_model(tied);
    const Outcome one =
        train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(5, UpdateRuleKind::Adam));
    ASSERT_EQ(one.losses.size(), 5u);
    for (const ScheduleKind kind : kFlushing) {
      for (int stages : {2, 3, 4}) {
        expect_equal(train(model, plan_for(model, std::vector<int>(stages, 1), 4, kind),
                           options(5, UpdateRuleKind::Adam)),
                     one, to_string(kind) + " " + std::to_string(stages) + (tied ? " tied" : ""));
      }
    }
  }
}

/// The norm of the gradient counts a tied parameter once, with all its uses added; ranks that hold several
/// stages agree before the first of them updates.
TEST_F(Pipeline, TiedParametersCountOnceInTheNorm) {
  const LayeredModel model = token_model(true);
  TrainOptions clipped = options(4, UpdateRuleKind::Lamb);
  clipped.clip.norm = 0.05;
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), clipped);
  for (int stages : {2, 3, 4})
    expect_equal(train(model, plan_for(model, std::vector<int>(stages, 1), 4, ScheduleKind::GPipe), clipped),
                 one, std::to_string(stages));
  for (ScheduleKind kind : {ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV, ScheduleKind::DualPipeV})
    expect_equal(train(model, uniform_plan(model.name, model.layer_names(), 4, 1, 4, kind, 2), clipped), one,
                 to_string(kind));
  // Averages go to the mirrors before an evaluation, and weights come back.
  evaluation_microbatches_ = 2;
  TrainOptions averaging = options(4, UpdateRuleKind::Asgd);
  averaging.rule.average_start = 0;
  averaging.evaluate_every = 2;
  const Outcome alone = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), averaging);
  const Outcome piped = train(model, plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB), averaging);
  expect_equal(piped, alone, "averages");
  ASSERT_EQ(piped.reports[2].evaluations.size(), alone.reports[0].evaluations.size());
  for (std::size_t e = 0; e < alone.reports[0].evaluations.size(); ++e)
    EXPECT_EQ(piped.reports[2].evaluations[e].values, alone.reports[0].evaluations[e].values) << e;
}

TEST_F(Pipeline, AnyModelWithSeveralStagesPerRank) {
  for (const bool tied : {false, true}) {
    const LayeredModel model = token_model(tied);
    const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(3));
    for (const ScheduleKind kind :
         {ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV, ScheduleKind::DualPipeV}) {
      const Plan plan = uniform_plan(model.name, model.layer_names(), 4, 1, 4, kind, 2);
      expect_equal(train(model, plan, options(3)), one, to_string(kind) + (tied ? " tied" : ""));
    }
  }
}

TEST_F(Pipeline, AnyModelRecomputes) {
  const LayeredModel model = token_model(true);
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(3));
  Plan plan = plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB);
  for (PlanStage& stage : plan.stages) stage.recompute = true;
  expect_equal(train(model, plan, options(3)), one, "recompute");
}

TEST_F(Pipeline, ReplicasOfAnyModelEqualOneProcessWithinRounding) {
  const LayeredModel model = token_model(true);
  const Outcome one = train(model, plan_for(model, {1}, 6, ScheduleKind::OneFOneB), options(4));
  for (const auto& replicas : {std::vector<int>{2}, {2, 1}, {1, 2}, {2, 2}, {3, 1}, {2, 3}}) {
    const Outcome many = train(model, plan_for(model, replicas, 6, ScheduleKind::OneFOneB), options(4));
    // Microbatches differ in size, the gradients are float32 sums in another order.
    for (const auto& [name, tensor] : one.weights)
      EXPECT_TRUE(at::allclose(many.weights.at(name), tensor, 1e-4, 1e-5))
          << ::testing::PrintToString(replicas) << " " << name;
    for (std::size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i], one.losses[i], 1e-5);
  }
}

TEST_F(Pipeline, TiedWeightsAreOneParameter) {
  const LayeredModel model = token_model(true);
  const Outcome one = train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), options(1));
  EXPECT_FALSE(one.weights.contains("scores.weight"));
  EXPECT_TRUE(one.weights.contains("embedding.weight"));
  EXPECT_EQ(token_model(false).num_parameters() - model.num_parameters(), 2 * kVocabulary * kWidth);
  EXPECT_THROW(train(model, plan_for(model, {1, 1}, 4, ScheduleKind::PipeDream), options(4)), ConfigError);
}

/// If both stages are on one rank, the user's stage may be updated before the owner's.
TEST_F(Pipeline, AnOwnerMayComeAfterItsUsers) {
  LayeredModel model = token_model(false);
  model.layers[0].tied = {{"weight", "scores.weight"}};
  model.layers[8].tied = {{"weight", "scores.weight"}};
  const Outcome one =
      train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(4, UpdateRuleKind::Adam));
  EXPECT_FALSE(one.weights.contains("embedding.weight"));
  for (const ScheduleKind kind :
       {ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleV, ScheduleKind::DualPipeV}) {
    const Plan plan = uniform_plan(model.name, model.layer_names(), 4, 1, 4, kind, 2);
    expect_equal(train(model, plan, options(4, UpdateRuleKind::Adam)), one, to_string(kind));
  }
  for (int stages : {2, 3}) {
    const Plan plan = plan_for(model, std::vector<int>(stages, 1), 4, ScheduleKind::OneFOneB);
    expect_equal(train(model, plan, options(4, UpdateRuleKind::Adam)), one,
                 std::to_string(stages) + " stages");
  }
}

TEST_F(Pipeline, TiedModelsResumeUnderAnyPlan) {
  const LayeredModel model = token_model(true);
  const TrainOptions unbroken = options(6, UpdateRuleKind::Adam);
  const Outcome whole = train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), unbroken);
  TrainOptions first = unbroken;
  first.steps = 3;
  first.learning_rate.total_steps = 6;
  first.output_dir = (folder_ / "out").string();
  first.checkpoint_every = 3;
  train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), first);
  TrainOptions rest = unbroken;
  rest.resume = first.output_dir;
  for (int stages : {1, 3}) {
    const Outcome resumed =
        train(model, plan_for(model, std::vector<int>(stages, 1), 4, ScheduleKind::GPipe), rest);
    for (const auto& [name, tensor] : whole.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << stages << " " << name;
  }
}

/// The loss of a step is a mean over all its tokens, and over all its samples, whatever the microbatches.
TEST_F(Pipeline, MicrobatchesCountByTheirTokens) {
  at::NoGradGuard no_grad;
  const LayeredModel model = token_model(false);
  const Plan plan = plan_for(model, {1}, 4, ScheduleKind::OneFOneB);
  const Outcome run = train(model, plan, options(1));
  const StageLayout layout = *make_layout(model, plan, kMicrobatch);
  ParameterStore store(layout, StageId(0), options(1).seed);
  auto rule = make_update_rule({}, store);
  Alone alone;
  StageExecutor executor({layout, StageId(0), store, *rule, alone, nullptr, *device_},
                         {.seeds = {options(1).seed}});
  RandomBatches batches(model, kMicrobatch);
  double language = 0, tokens = 0, classes = 0, samples = 0;
  executor.begin({.extent_of = [&](std::int64_t position) { return batches.extent(position); }});
  for (int m = 0; m < 4; ++m) {
    executor.feed(MicrobatchId(m), batches.get(m));
    executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
    const LossSums one = executor.heads().take_losses();
    ASSERT_EQ(one.values[1].first, "language.loss");
    ASSERT_EQ(one.values[5].first, "class.loss");
    const auto size = static_cast<double>(batches.extent(m).samples);
    language += one.values[1].second * one.weight;
    tokens += one.weight;
    classes += one.values[5].second * size;
    samples += size;
  }
  EXPECT_NEAR(run.losses.at(0), language / tokens + 0.5 * classes / samples, 1e-9);
}

TEST_F(Pipeline, ModelsThatCannotBeAreRefused) {
  LayeredModel model = token_model(false);
  model.layers[2].inputs = {"nothing"};
  model.heads.push_back(model.heads.front());
  const auto layout =
      make_layout(model, uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::GPipe), 2);
  ASSERT_FALSE(layout);
  const std::string text = to_string(layout.problems());
  EXPECT_NE(text.find("reads 'nothing'"), std::string::npos) << text;
  EXPECT_NE(text.find("two heads are called 'language'"), std::string::npos) << text;
  LayeredModel tied = token_model(true);
  tied.layers[13].tied = {{"weight", "a.weight"}};
  EXPECT_FALSE(
      make_layout(tied, uniform_plan(tied.name, tied.layer_names(), 1, 1, 1, ScheduleKind::GPipe), 2));
}

}  // namespace
}  // namespace millrace
