// Runs in a lower precision: bit for bit whatever the plan, near float32, PyTorch's casts; steps that are
// skipped change nothing anywhere.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/comm/channel.h"
#include "runtime/layers/attention_layers.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/recurrent_layers.h"
#include "runtime/layers/sequence_layers.h"
#include "runtime/profile/profiler.h"
#include "tests/train/overflow.h"

namespace millrace {
namespace {

constexpr std::int64_t kTokens = 13, kFeatures = 8;
constexpr LossScaleKind kDynamic{.scaling = LossScaling::Dynamic};

/// Every kind of layer that matters: embedding tied to the last layer, positions, norms, self attention with
/// dropout, a skip connection over several stages, lengths that vary.
LayeredModel transformer() {
  LayeredModel model{
      .name = "transformer",
      .fields = {{.name = "tokens", .shape = {dimension(0)}, .dtype = at::kLong, .limit = kTokens},
                 {.name = "labels", .shape = {dimension(0)}, .dtype = at::kLong, .limit = kTokens}},
      .dimensions = {{.name = "length"}},
      .counts = {"tokens"}};
  auto& layers = model.layers;
  layers.push_back({"embedding", embedding({.vocabulary = kTokens, .features = kFeatures}), {"tokens"}});
  layers.push_back({"positions", learned_positions(16, kFeatures, 0.02), {"embedding"}});
  layers.push_back({"norm1", layer_norm(kFeatures), {"positions"}});
  layers.push_back({"qkv", linear(kFeatures, 3 * kFeatures), {"norm1"}});
  layers.push_back({"attention",
                    self_attention({.heads = 2, .dropout = 0.2, .causal = Causal::Yes, .packed = true}),
                    {"qkv"}});
  layers.push_back({"out", linear(kFeatures, kFeatures), {"attention"}});
  layers.push_back({"drop", dropout(0.1), {"out"}});
  layers.push_back({"skip1", add(), {"drop", "positions"}});
  layers.push_back({"norm2", layer_norm(kFeatures), {"skip1"}});
  layers.push_back({"up", linear(kFeatures, 2 * kFeatures), {"norm2"}});
  layers.push_back({"gelu", gelu(), {"up"}});
  layers.push_back({"down", linear(2 * kFeatures, kFeatures), {"gelu"}});
  layers.push_back({"skip2", add(), {"down", "skip1"}});
  layers.push_back({"scores", linear(kFeatures, kTokens), {"skip2"}});
  layers.back().tied = {{"weight", "embedding.weight"}};
  model.heads = {{"loss", token_cross_entropy_head({.ignored = 0}), {"scores", "labels"}}};
  return model;
}

/// Time-major, as GNMT: LSTMs and its attention.
LayeredModel translator() {
  LayeredModel model{.name = "translator",
                     .fields = {{.name = "source",
                                 .shape = {dimension(0)},
                                 .dtype = at::kLong,
                                 .limit = kTokens,
                                 .batch_dimension = 1},
                                {.name = "labels",
                                 .shape = {dimension(0)},
                                 .dtype = at::kLong,
                                 .limit = kTokens,
                                 .batch_dimension = 1}},
                     .dimensions = {{.name = "length"}},
                     .counts = {"tokens"}};
  auto& layers = model.layers;
  layers.push_back({"embedding", embedding({.vocabulary = kTokens, .features = kFeatures}), {"source"}});
  layers.push_back(
      {"both", bidirectional_lstm({.in = kFeatures, .hidden = kFeatures / 2}, 0), {"embedding", "source"}});
  layers.push_back({"lstm", lstm({.in = kFeatures, .hidden = kFeatures}), {"both"}});
  layers.push_back({"attention", bahdanau_attention({.features = kFeatures}), {"lstm", "both", "source"}});
  layers.push_back({"beside", concat_features(), {"lstm", "attention"}});
  layers.push_back({"scores", linear(2 * kFeatures, kTokens), {"beside"}});
  model.heads = {{"loss", token_cross_entropy_head({.ignored = 0}), {"scores", "labels"}}};
  return model;
}

class Precisions : public Pipeline {
 protected:
  TrainOptions in(Precision precision, std::int64_t steps, UpdateRuleKind rule = UpdateRuleKind::Sgd) {
    TrainOptions result = options(steps, rule);
    result.precision = precision;
    return result;
  }
  TrainOptions scaled(std::int64_t steps, UpdateRuleKind rule = UpdateRuleKind::Adam) {
    TrainOptions result = in(Precision::BFloat16, steps, rule);
    result.loss_scale.kind = kDynamic;
    result.loss_scale.growth_interval = 2;
    return result;
  }
  Plan alone(const LayeredModel& model, int microbatches = 4) {
    return plan_for(model, {1}, microbatches, ScheduleKind::OneFOneB);
  }
  /// Returns the loss scale's state, and expects it to be equal on all ranks.
  static LossScaleState state_of(const Outcome& outcome) {
    const LossScaleState first = *outcome.reports[0].loss_scale;
    for (const RunReport& report : outcome.reports) {
      EXPECT_EQ(report.loss_scale->scale, first.scale);
      EXPECT_EQ(report.loss_scale->skipped, first.skipped);
      EXPECT_EQ(report.loss_scale->since_growth, first.since_growth);
    }
    return first;
  }
};

struct Case {
  ScheduleKind kind;
  int places, chunks;
};
constexpr Case kCases[] = {{ScheduleKind::GPipe, 3, 1},        {ScheduleKind::OneFOneB, 2, 1},
                           {ScheduleKind::OneFOneB, 4, 1},     {ScheduleKind::Interleaved, 2, 2},
                           {ScheduleKind::ZeroBubbleH1, 3, 1}, {ScheduleKind::ZeroBubbleV, 2, 2},
                           {ScheduleKind::DualPipeV, 2, 2}};

TEST_F(Precisions, EveryPlanEqualsOneProcessBitForBit) {
  for (const Precision precision : {Precision::BFloat16, Precision::Float16}) {
    for (const LayeredModel& model : {small_model(), conv_model(), transformer(), translator()}) {
      const Outcome one = train(model, alone(model), in(precision, 4));
      for (const Case& c : kCases) {
        const Plan plan =
            uniform_plan(model.name, model.layer_names(), c.places * c.chunks, 1, 4, c.kind, c.chunks);
        expect_equal(train(model, plan, in(precision, 4)), one,
                     model.name + " " + to_string(precision) + " " + to_string(c.kind));
      }
    }
  }
}

/// Replicas, shared state, recompute, clipping: as without.
TEST_F(Precisions, GoTogetherWithWhatElseARunMayBe) {
  const LayeredModel model = small_model();
  TrainOptions clipped = scaled(4);
  clipped.clip.norm = 0.01;
  const Outcome two = train(model, plan_for(model, {2}, 4, ScheduleKind::GPipe), clipped);
  clipped.rule.shard_state = true;
  expect_equal(train(model, plan_for(model, {2, 2}, 4, ScheduleKind::OneFOneB), clipped), two, "zero-1");
  Plan again = plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB);
  for (PlanStage& stage : again.stages) stage.recompute = true;
  expect_equal(train(model, again, in(Precision::BFloat16, 4)),
               train(model, alone(model), in(Precision::BFloat16, 4)), "recompute");
  TrainOptions together = in(Precision::BFloat16, 3);
  together.sync_batch_norm = true;
  const LayeredModel conv = conv_model();
  expect_equal(train(conv, plan_for(conv, {2, 2}, 4, ScheduleKind::GPipe), together),
               train(conv, plan_for(conv, {2}, 4, ScheduleKind::GPipe), together),
               "statistics of all replicas");
}

TEST_F(Precisions, WithoutAFlushEqualTheDelayedGradientFormula) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1, 1}, 1, ScheduleKind::PipeDream);
  const TrainOptions options = in(Precision::BFloat16, 8);
  const Outcome ours = train(model, plan, options);
  const auto expected =
      Reference(model, plan, options).delayed(8, 1, [](int s, std::int64_t t) { return t - (2 - s); });
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(at::equal(tensor, ours.weights.at(name))) << name;
}

TEST_F(Precisions, ScalesOfTheLossNeedAFlush) {
  const LayeredModel model = small_model();
  const Plan plan = plan_for(model, {1, 1}, 1, ScheduleKind::PipeDream);
  EXPECT_THROW(train(model, plan, in(Precision::Float16, 2)), ConfigError);
}

TEST_F(Precisions, AutogradGivesTheSameBits) {
  for (const LayeredModel& model : {small_model(), conv_model()}) {
    LayeredModel fallback = model;
    for (NamedLayer& layer : fallback.layers) layer.layer = through_autograd(layer.layer);
    for (const Precision precision : {Precision::BFloat16, Precision::Float16})
      expect_equal(train(fallback, alone(model), in(precision, 3)),
                   train(model, alone(model), in(precision, 3)), model.name);
  }
}

/// bfloat16 keeps 8 bits, float16 11: a product is off by at most 2^-9 or 2^-12 of itself. Steps pile that
/// up, most where a batch of 3 is normalised: 1.8 % and 1.2 % of the
/// loss at most over 20 of them.
TEST_F(Precisions, LossesStayNearFloat32s) {
  for (const LayeredModel& model : {small_model(), conv_model(), transformer(), translator()}) {
    const auto losses = [&](Precision precision) {
      TrainOptions run = in(precision, 20);
      run.learning_rate.base = 0.01;
      return train(model, alone(model), run).losses;
    };
    const std::vector<double> exact = losses(Precision::Float32), bfloat16 = losses(Precision::BFloat16),
                              float16 = losses(Precision::Float16);
    ASSERT_EQ(exact.size(), 20u);
    double worst = 0, worst16 = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      worst = std::max(worst, std::abs(exact[i] - bfloat16[i]) / exact[i]);
      worst16 = std::max(worst16, std::abs(exact[i] - float16[i]) / exact[i]);
    }
    EXPECT_LT(worst, 0x1p-5) << model.name;
    EXPECT_LT(worst16, 0x1p-6) << model.name;
    EXPECT_GT(worst, 0) << model.name << " was computed in float32";
  }
}

/// Tensors that cross borders are half as large, also in messages.
TEST_F(Precisions, MessagesAreOfTheTensorsType) {
  struct Counting final : ForwardingChannel {
    Counting(std::shared_ptr<Channel> inner, std::shared_ptr<std::atomic<std::int64_t>> bytes)
        : ForwardingChannel(std::move(inner)), sent(std::move(bytes)) {}
    std::unique_ptr<Pending> post(const Transfer& transfer) override {
      if (transfer.direction == Direction::Send) *sent += static_cast<std::int64_t>(transfer.tensor.nbytes());
      return ForwardingChannel::post(transfer);
    }
    std::shared_ptr<std::atomic<std::int64_t>> sent;
  };
  const LayeredModel model = conv_model();
  const auto sent_in = [&](Precision precision) {
    const auto bytes = std::make_shared<std::atomic<std::int64_t>>(0);
    make_ranks_ = [bytes](int size, std::chrono::milliseconds deadline) {
      return make_local_communicators(size, deadline, {[bytes](std::shared_ptr<Channel> inner) {
                                        return std::make_shared<Counting>(std::move(inner), bytes);
                                      }});
    };
    TrainOptions one = in(precision, 2), three = in(precision, 4);
    const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
    train(model, plan, one);
    const std::int64_t two_steps = bytes->exchange(0);
    train(model, plan, three);
    return *bytes - two_steps;  // bytes of two steps, without those that a run sends once
  };
  const std::int64_t whole = sent_in(Precision::Float32), half = sent_in(Precision::BFloat16);
  // Tensors of 3 x 8 x 8 x 8 elements, 8 microbatches, both ways; votes and others stay what they are.
  const std::int64_t halved = std::int64_t{3 * 8 * 8 * 8} * 8 * 2 * 2;
  EXPECT_EQ(whole - half, halved);
}

TEST_F(Precisions, AProfileHasTheBytesOfTheRun) {
  SteadyClock clock;
  const LayeredModel model = conv_model();
  ProfileOptions options{.microbatch = 4, .warmup = 1, .repetitions = 1, .blocks = 1};
  const LayerGraph whole = profile_model(model, options, clock, *device_);
  options.precision = Precision::BFloat16;
  const LayerGraph half = profile_model(model, options, clock, *device_);
  EXPECT_EQ(half.precision, "bfloat16");
  for (std::size_t i = 0; i < whole.nodes.size(); ++i) {
    EXPECT_EQ(half.nodes[i].activation_bytes * 2, whole.nodes[i].activation_bytes) << whole.nodes[i].name;
    EXPECT_EQ(half.nodes[i].parameter_bytes, whole.nodes[i].parameter_bytes);
    const bool lowered = whole.nodes[i].kind == "conv2d" || whole.nodes[i].kind == "linear";
    EXPECT_EQ(half.nodes[i].lowered_bytes * 2, lowered ? whole.nodes[i].parameter_bytes : 0);
    // In full precision, small linear layers have copies in the order in which kernels read them.
    EXPECT_LE(whole.nodes[i].lowered_bytes,
              whole.nodes[i].kind == "linear" ? whole.nodes[i].parameter_bytes : 0);
  }
  for (std::size_t i = 0; i < whole.edges.size(); ++i)
    EXPECT_EQ(half.edges[i].bytes * 2, whole.edges[i].bytes);
  const Result<LayerGraph> read = LayerGraph::parse(half.to_json(), "half");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->to_json(), half.to_json());
}

/// Scaling alone changes nothing: powers of two.
TEST_F(Precisions, AScaleThatDoesNotOverflowLeavesTheBits) {
  const LayeredModel model = small_model();
  for (const UpdateRuleKind rule : {UpdateRuleKind::Sgd, UpdateRuleKind::Adam, UpdateRuleKind::Lamb}) {
    TrainOptions plain = options(5, rule);
    plain.clip.norm = 0.05;  // norm of the gradient, not of the scaled gradient
    const Outcome without = train(model, alone(model), plain);
    for (const LossScaleKind kind : {kDynamic, LossScaleKind{LossScaling::Fixed, 256}}) {
      TrainOptions with = plain;
      with.loss_scale.kind = kind;
      if (kind.scaling == LossScaling::Dynamic) with.loss_scale.growth_interval = 2;
      const Outcome outcome = train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), with);
      expect_equal(outcome, without, to_string(rule));
      EXPECT_EQ(state_of(outcome).scale, kind.scaling == LossScaling::Dynamic ? 0x1p18 : 256);
    }
  }
  TrainOptions clamped = options(4);
  clamped.clip.value = 1e-3;
  TrainOptions scaled_clamped = clamped;
  scaled_clamped.loss_scale.kind = kDynamic;
  expect_equal(train(model, alone(model), scaled_clamped), train(model, alone(model), clamped), "clip value");
}

/// A gradient of one microbatch in one stage is infinite: no rank updates, whoever holds that stage.
TEST_F(Precisions, StepsAreSkippedOnAllRanksOrNone) {
  const LayeredModel model = overflowing({1, 2, 5});
  const Outcome one = train(model, alone(model), scaled(8));
  EXPECT_EQ(state_of(one).skipped, 3);
  EXPECT_EQ(state_of(one).scale, 0x1p15);  // / 2 / 2, x 2 after steps 3 and 4, / 2, x 2 after 6 and 7
  for (const Case& c : kCases) {
    const Plan plan =
        uniform_plan(model.name, model.layer_names(), c.places * c.chunks, 1, 4, c.kind, c.chunks);
    const Outcome ours = train(model, plan, scaled(8));
    expect_equal(ours, one, to_string(c.kind));
    EXPECT_EQ(state_of(ours).skipped, 3) << to_string(c.kind);
    EXPECT_EQ(state_of(ours).scale, state_of(one).scale) << to_string(c.kind);
  }
}

/// Weights, state of the rule and its counts are as if the step had not been.
TEST_F(Precisions, ASkippedStepChangesNothing) {
  const LayeredModel model = overflowing({2, 3});
  const Plan plan = plan_for(model, {2, 1}, 4, ScheduleKind::OneFOneB);
  for (const bool shards : {false, true}) {
    std::vector<Checkpoint> checkpoints;
    for (const std::int64_t steps : {2, 4}) {
      TrainOptions run = scaled(steps);
      run.rule.shard_state = shards;
      run.output_dir = (folder_ / ("out" + std::to_string(steps) + (shards ? "s" : ""))).string();
      run.checkpoint_at_end = true;
      train(model, plan, run);
      checkpoints.push_back(*open_checkpoint(run.output_dir));
    }
    EXPECT_EQ(checkpoints[1].info.loss_scale->skipped, 2);
    for (const SafetensorsFile& shard : checkpoints[0].shards) {
      for (const std::string& name : shard.names()) {
        const SafetensorsFile* after = checkpoints[1].find(name);
        ASSERT_TRUE(after) << name;
        EXPECT_TRUE(at::equal(shard.tensor(name), after->tensor(name))) << name;
      }
    }
    const SafetensorsFile* counts = checkpoints[1].find("rule/updates/a.weight");
    ASSERT_TRUE(counts) << "it has seen 2 updates in 4 steps";
    EXPECT_EQ(counts->tensor("rule/updates/a.weight").item<std::int64_t>(), 2);
  }
}

TEST_F(Precisions, ARunThatResumesEqualsOneThatWasNotInterrupted) {
  const LayeredModel model = overflowing({1, 4});
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  const Outcome whole = train(model, plan, scaled(8));
  for (const std::int64_t at : {2, 3, 5}) {
    TrainOptions first = scaled(at);
    first.output_dir = (folder_ / ("first" + std::to_string(at))).string();
    first.checkpoint_at_end = true;
    train(model, plan, first);
    TrainOptions rest = scaled(8);
    rest.resume = first.output_dir;
    const Outcome resumed = train(model, plan_for(model, {1, 1, 1}, 4, ScheduleKind::GPipe), rest);
    for (const auto& [name, tensor] : whole.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << at << " " << name;
    EXPECT_EQ(state_of(resumed).scale, state_of(whole).scale) << at;
    EXPECT_EQ(state_of(resumed).since_growth, state_of(whole).since_growth) << at;
    EXPECT_EQ(state_of(resumed).skipped, 2) << at;
  }
}

/// float16's range is what scaling is for: too large a first scale comes down by itself.
TEST_F(Precisions, Float16FindsItsScale) {
  const LayeredModel model = small_model();
  TrainOptions run = in(Precision::Float16, 12);
  run.loss_scale.initial = 0x1p26;
  const Outcome one = train(model, alone(model), run);
  EXPECT_GT(state_of(one).skipped, 2);
  EXPECT_LT(state_of(one).skipped, 12);
  EXPECT_EQ(state_of(one).scale, 0x1p26 * std::pow(0.5, double(state_of(one).skipped)));
  expect_equal(train(model, plan_for(model, {1, 1, 1}, 4, ScheduleKind::OneFOneB), run), one, "three stages");
}

/// A gradient that is never finite is not for ever skipped; and without a scale it stops the run at once.
TEST_F(Precisions, ARunWithoutAnyUpdateStops) {
  std::vector<std::int64_t> all(200);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const LayeredModel model = overflowing(all);
  const Plan plan = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  try {
    train(model, plan, scaled(200));
    FAIL() << "it went on";
  } catch (const NumericError& error) {
    EXPECT_NE(std::string(error.what()).find("the last 100 steps were skipped"), std::string::npos);
  }
}

// ---- PyTorch
// ---------------------------------------------------------------------------------------------------

/// Two models whose layers PyTorch has too; dropout off.
LayeredModel residual_model() {
  LayeredModel model = classifier("residual", {3, 8, 8}, 4);
  model.layers = {{"conv1", conv2d({.in = 3, .out = 8, .padding = 1}), {"input"}},
                  {"bn1", batch_norm2d(8), {"conv1"}},
                  {"relu1", relu(), {"bn1"}},
                  {"conv2", conv2d({.in = 8, .out = 8, .padding = 1, .bias = false}), {"relu1"}},
                  {"bn2", batch_norm2d(8), {"conv2"}},
                  {"sum", add(), {"bn2", "relu1"}},
                  {"pool", max_pool2d(2, 2), {"sum"}},
                  {"mean", adaptive_avg_pool2d(2, 2), {"pool"}},
                  {"flat", flatten(), {"mean"}},
                  {"fc", linear(32, 4), {"flat"}}};
  end_in_cross_entropy(model);
  return model;
}

LayeredModel attention_model() {
  LayeredModel model{.name = "attention",
                     .fields = {{.name = "tokens", .shape = {6}, .dtype = at::kLong, .limit = kTokens},
                                {.name = "target", .dtype = at::kLong, .limit = 3}}};
  model.layers = {{"embedding", embedding({.vocabulary = kTokens, .features = 8}), {"tokens"}},
                  {"norm1", layer_norm(8), {"embedding"}},
                  {"qkv", linear(8, 24), {"norm1"}},
                  {"attention", self_attention({.heads = 2, .packed = true}), {"qkv"}},
                  {"out", linear(8, 8), {"attention"}},
                  {"sum", add(), {"out", "embedding"}},
                  {"norm2", layer_norm(8), {"out"}},
                  {"beside", concat_features(), {"sum", "norm2"}},
                  {"up", linear(16, 16), {"beside"}},
                  {"gelu", gelu(), {"up"}},
                  {"first", first_token(), {"gelu"}},
                  {"norm3", layer_norm(16), {"first"}},
                  {"fc", linear(16, 3), {"norm3"}}};
  end_in_cross_entropy(model);
  return model;
}

/// `microbatches` batches; inputs of some are multiplied so that the scaled gradient overflows.
struct LoudBatches final : BatchSource {
  LoudBatches(const LayeredModel& model, int microbatch, std::vector<std::int64_t> loud)
      : parts(model, microbatch), positions(std::move(loud)) {}
  Batch get(std::int64_t position) override {
    Batch batch = parts.get(position);
    if (std::ranges::find(positions, position) != positions.end()) batch.fields[0].mul_(1e12);
    return batch;
  }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t position) const override { return parts.extent(position); }
  RandomBatches parts;
  std::vector<std::int64_t> positions;
};

class BesideTorch : public Precisions {
 protected:
  static constexpr int kSteps = 20;

  /// Weights before and after, batches, losses and what is said of every layer's output, for
  /// tests/reference/precision.py.
  void write(const LayeredModel& model, TrainOptions run, const std::vector<std::int64_t>& loud) {
    make_batches_ = [loud](const LayeredModel& m) {
      return std::make_unique<LoudBatches>(m, kMicrobatch, loud);
    };
    const std::string name = model.name + "-" + to_string(run.precision);
    const Plan plan = alone(model, 1);
    TrainOptions none = run;
    none.steps = 0;
    const Outcome before = train(model, plan, none);
    run.output_dir = (folder_ / name).string();
    const Outcome after = train(model, plan, run);
    NamedTensors batches;
    LoudBatches source(model, kMicrobatch, loud);
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = source.get(step);
      for (std::size_t f = 0; f < model.fields.size(); ++f)
        batches.emplace_back(std::to_string(step) + "/" + model.fields[f].name, batch.fields[f]);
    }
    const auto file = [&](const std::string& what) {
      return (folder_ / (name + "." + what + ".safetensors")).string();
    };
    write_safetensors(file("before"), {before.weights.begin(), before.weights.end()});
    write_safetensors(file("after"), {after.weights.begin(), after.weights.end()});
    write_safetensors(file("batches"), batches);
    Json dtypes = Json::object(), losses = Json::array();
    const StageLayout layout = *make_layout(model, plan, kMicrobatch, run.precision);
    for (const ModelTensor& tensor : layout.tensors)
      if (tensor.layer >= 0) dtypes[tensor.name] = std::string(toString(tensor.spec.dtype));
    for (double loss : after.losses) losses.push_back(loss);
    Json json =
        Json::object({{"model", model.name},
                      {"precision", to_string(run.precision)},
                      {"steps", kSteps},
                      {"lr", run.learning_rate.base},
                      {"adam", run.rule.kind == UpdateRuleKind::Adam},
                      {"growth_interval", run.loss_scale.growth_interval},
                      {"initial", run.loss_scale.initial},
                      {"scales", after.reports[0].loss_scale.has_value()},
                      {"skipped", after.reports[0].loss_scale ? after.reports[0].loss_scale->skipped : 0},
                      {"log", (fs::path(run.output_dir) / "steps.rank0.jsonl").string()},
                      {"dtypes", dtypes},
                      {"losses", losses}});
    ASSERT_TRUE(write_file_atomically(folder_ / (name + ".json"), json.dump()));
  }
};

TEST_F(BesideTorch, CastsAndSkipsAreTheSame) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  for (const LayeredModel& model : {residual_model(), attention_model()}) {
    for (const Precision precision : {Precision::BFloat16, Precision::Float16}) {
      TrainOptions run = in(precision, kSteps);
      run.rule.weight_decay = 0;
      write(model, run, {});
    }
  }
  TrainOptions run = options(kSteps, UpdateRuleKind::Adam);  // float32 weights and products, scaled
  run.rule.weight_decay = 0;
  run.loss_scale = {.kind = kDynamic, .initial = 0x1p100, .growth_interval = 3};
  LayeredModel mlp = classifier("mlp", {12}, 5);
  mlp.layers = {{"a", linear(12, 16), {"input"}}, {"b", gelu(), {"a"}}, {"c", linear(16, 5), {"b"}}};
  end_in_cross_entropy(mlp);
  write(mlp, run, {3, 4, 11});
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/precision.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
