// Layers of a user's own: a forward alone, a LibTorch module. Every plan gives what one process gives.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include "models/chain.h"
#include "runtime/comm/rank_threads.h"
#include "runtime/layers/forward_layer.h"
#include "runtime/layers/module_layer.h"
#include "runtime/train/local_training.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

class Gate final : public ForwardLayer {
 public:
  explicit Gate(std::int64_t features) : features_(features) {}
  std::string kind() const override { return "gate"; }
  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "slope", .shape = {features_}, .init = Init::Ones},
            {.name = "mean", .shape = {features_}, .init = Init::Zeros, .is_buffer = true}};
  }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                     std::span<at::Tensor> buffers, const CallContext& context) const override {
    const at::Tensor mean = context.training ? inputs[0].mean(0) : buffers[0];
    if (context.training) buffers[0].mul_(0.9).add_(mean.detach(), 0.1);
    return inputs[0] * at::sigmoid(parameters[0] * (inputs[0] - mean));
  }

 private:
  std::int64_t features_;
};

/// Draws by LibTorch's default generator and does not say so.
class Noise final : public ForwardLayer {
 public:
  std::string kind() const override { return "noise"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&) const override {
    return inputs[0] * (1 + 0.1 * at::randn_like(inputs[0]));
  }
};

torch::nn::Sequential block() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)),
                               torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Dropout(0.3));
}

LayeredModel own_model() {
  LayeredModel model = classifier("own", {3, 8, 8}, 5);
  std::string last = "input";
  const auto then = [&](const std::string& name, LayerPtr layer) {
    model.layers.push_back({name, std::move(layer), {last}});
    last = name;
  };
  then("first", conv2d({.in = 3, .out = 4, .padding = 1}));
  then("block1", module_layer(block, {.kind = "block", .seed = 1}));
  then("block2", module_layer(block, {.kind = "block", .seed = 2}));
  then("flatten", flatten());
  then("gate", std::make_shared<Gate>(256));
  then("noise", std::make_shared<Noise>());
  then("last", linear(256, 5));
  end_in_cross_entropy(model);
  return model;
}

class OwnLayers : public Pipeline {};

TEST_F(OwnLayers, EveryPlanEqualsOneProcess) {
  const LayeredModel model = own_model();
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::GPipe), options(4));
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::ZeroBubbleH1,
                                  ScheduleKind::ZeroBubbleH2}) {
    const Outcome two = train(model, plan_for(model, {1, 1, 1}, 4, kind), options(4));
    expect_equal(one, two, to_string(kind));
  }
  Plan recomputes = plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB);
  for (PlanStage& stage : recomputes.stages) stage.recompute = true;
  expect_equal(one, train(model, recomputes, options(4)), "recompute");
}

// Each call of Chain::tie keeps those before it.
TEST_F(OwnLayers, ALayerMayHaveSeveralTies) {
  LayeredModel model = classifier("tied", {6}, 6);
  Chain chain(model);
  for (const char* name : {"first", "middle", "last"}) chain.then(name, linear(6, 6));
  chain.tie("weight", "first.weight");
  chain.tie("bias", "first.bias");
  end_in_cross_entropy(model);
  EXPECT_TRUE(validate(model).empty()) << to_string(validate(model));
  EXPECT_EQ(model.num_parameters(), 2 * (6 * 6 + 6));
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(3));
  EXPECT_FALSE(one.weights.contains("last.bias"));
  expect_equal(one, train(model, plan_for(model, {1, 1}, 4, ScheduleKind::OneFOneB), options(3)),
               "two stages");
  chain.tie("bias", "middle.bias");
  EXPECT_NE(to_string(validate(model)).find("ties bias twice, now to middle.bias"), std::string::npos);
}

// Several microbatches with several versions of the weights are under way: a module that shared its tensors
// between them would use the newest.
TEST_F(OwnLayers, OldVersionsOfWeightsAreUsedByAnAsynchronousPipeline) {
  LayeredModel model = classifier("linears", {6}, 5);
  LayeredModel plain = model;
  std::string last = "input";
  for (int i = 0; i < 4; ++i) {
    const std::string name = "l" + std::to_string(i);
    const std::int64_t out = i == 3 ? 5 : 6;
    const auto make = [out] { return torch::nn::Linear(6, out); };
    model.layers.push_back(
        {name, module_layer(make, {.seed = static_cast<std::uint64_t>(i), .draws = false}), {last}});
    std::vector<ParameterSpec> specs = model.layers.back().layer->parameters();
    plain.layers.push_back({name, linear(6, out), {last}});
    last = name;
  }
  end_in_cross_entropy(model);
  end_in_cross_entropy(plain);
  // Both start from the module's values.
  const Outcome start = train(model, plan_for(model, {1}, 1, ScheduleKind::GPipe), options(0));
  TrainOptions more = options(9);
  fs::rename(folder_ / "weights.safetensors", folder_ / "start.safetensors");
  more.init_from = (folder_ / "start.safetensors").string();
  const Plan plan = plan_for(model, {1, 1, 1, 1}, 1, ScheduleKind::PipeDream);
  Plan of_plain = plan;
  of_plain.model = plain.name;
  const Outcome modules = train(model, plan, more), layers = train(plain, of_plain, more);
  for (std::size_t i = 0; i < layers.losses.size(); ++i)
    EXPECT_NEAR(modules.losses[i], layers.losses[i], 1e-6) << i;
  for (const auto& [name, tensor] : layers.weights)
    EXPECT_TRUE(at::allclose(tensor, modules.weights.at(name), 1e-5, 1e-6)) << name;
}

TEST_F(OwnLayers, AModuleKeepsItsNamesAndStartsAsTorchDraws) {
  const auto layer = module_layer(block, {.seed = 7});
  std::vector<std::string> names;
  for (const ParameterSpec& spec : layer->parameters())
    names.push_back(spec.name + (spec.is_counter ? " counter" : spec.is_buffer ? " buffer" : ""));
  EXPECT_EQ(names,
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean buffer",
                                      "1.running_var buffer", "1.num_batches_tracked counter"}));
  torch::manual_seed(7);
  const auto same = block();
  EXPECT_TRUE(at::equal(layer->parameters()[0].value, same->named_parameters()["0.weight"]));
  const auto before = at::rand({3});
  torch::manual_seed(3);
  const auto drawn = at::rand({3});
  torch::manual_seed(3);
  module_layer(block, {.seed = 9});
  EXPECT_TRUE(at::equal(drawn, at::rand({3}))) << "making a module moved LibTorch's generator";
}

TEST_F(OwnLayers, OneStepIsTorchsOwn) {
  LayeredModel model = classifier("linear", {6}, 3);
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
  };
  model.layers.push_back({"net", module_layer(make, {.seed = 4}), {"input"}});
  end_in_cross_entropy(model);
  TrainOptions one_step = options(1);
  one_step.rule = {};
  const Outcome outcome = train(model, plan_for(model, {1}, 1, ScheduleKind::GPipe), one_step);
  torch::manual_seed(4);
  auto net = make();
  const Batch batch = RandomBatches(model, kMicrobatch).get(0);
  const at::AutoGradMode with_grad(true);
  at::cross_entropy_loss(net->forward(batch.fields[0]), batch.fields[1]).backward();
  for (const auto& parameter : net->named_parameters()) {
    const at::Tensor expected = parameter.value().detach() - 0.05 * parameter.value().grad();
    EXPECT_TRUE(at::allclose(expected, outcome.weights.at("net." + parameter.key()), 1e-6, 1e-7))
        << parameter.key();
  }
}

TEST_F(OwnLayers, FrozenParametersStayAsTheyAre) {
  const auto make = [] {
    torch::nn::Linear linear(6, 5);
    linear->bias.set_requires_grad(false);
    return linear;
  };
  LayeredModel model = classifier("frozen", {6}, 5);
  model.layers.push_back({"net", module_layer(make), {"input"}});
  end_in_cross_entropy(model);
  const at::Tensor bias = model.layers[0].layer->parameters()[1].value;
  const Outcome outcome = train(model, plan_for(model, {1}, 1, ScheduleKind::GPipe), options(3));
  EXPECT_TRUE(at::equal(bias, outcome.weights.at("net.bias")));
  EXPECT_FALSE(at::equal(model.layers[0].layer->parameters()[0].value, outcome.weights.at("net.weight")));
}

TEST_F(OwnLayers, InputsThatAModuleDoesNotTakeAreAConfigError) {
  LayeredModel model = classifier("wrong", {7}, 5);
  model.layers.push_back(
      {"net", module_layer([] { return torch::nn::Linear(6, 5); }, {.kind = "mine"}), {"input"}});
  end_in_cross_entropy(model);
  try {
    train(model, plan_for(model, {1}, 1, ScheduleKind::GPipe), options(1));
    FAIL() << "took 7 features for 6";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("mine does not take these inputs"), std::string::npos)
        << error.what();
  }
  const auto two = module_layer([] { return torch::nn::Linear(6, 5); }, {.kind = "mine"});
  EXPECT_THROW(two->output_shape(std::vector<Shape>{{2, 6}, {2, 6}}), ConfigError);
}

/// Its shapes are wrong in one of three ways.
class Misshapen final : public ForwardLayer {
 public:
  enum class How { Torch, OutOfRange, OtherOutput };
  explicit Misshapen(How how) : how_(how) {}
  std::string kind() const override { return "misshapen"; }
  Shape output_shape(std::span<const Shape> inputs) const override {
    if (how_ == How::Torch) return at::zeros(inputs[0]).view({-1, 7}).sizes().vec();
    if (how_ == How::OutOfRange) return {inputs[0][0], inputs[0].at(9)};
    return inputs[0];
  }
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&) const override {
    return inputs[0].unsqueeze(1);
  }

 private:
  How how_;
};

TEST_F(OwnLayers, ShapesThatDoNotFitNameTheLayerAndWhatItReads) {
  const auto said = [&](Misshapen::How how) -> std::string {
    LayeredModel model = classifier("wrong", {6}, 5);
    model.layers.push_back({"conv1", linear(6, 6), {"input"}});
    model.layers.push_back({"conv2", std::make_shared<Misshapen>(how), {"conv1"}});
    model.layers.push_back({"last", linear(6, 5), {"conv2"}});
    end_in_cross_entropy(model);
    try {
      train(model, plan_for(model, {1}, 1, ScheduleKind::GPipe), options(1));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing";
  };
  const std::string read = "model wrong, layer 1 'conv2', which reads conv1 [3, 6]: ";
  EXPECT_NE(said(Misshapen::How::Torch).find(read), std::string::npos) << said(Misshapen::How::Torch);
  EXPECT_NE(said(Misshapen::How::OutOfRange).find(read), std::string::npos)
      << said(Misshapen::How::OutOfRange);
  EXPECT_NE(said(Misshapen::How::OtherOutput)
                .find("layer 1 'conv2' (misshapen) made [3, 1, 6] of [3, 6]; its output_shape says [3, 6]"),
            std::string::npos)
      << said(Misshapen::How::OtherOutput);
}

/// Fails in what its user asks for.
class Failing final : public ForwardLayer {
 public:
  enum class By { Int, Torch, Memory };
  explicit Failing(By by) : by_(by) {}
  std::string kind() const override { return "failing"; }
  Shape output_shape(std::span<const Shape> inputs) const override { return inputs[0]; }
  at::Tensor compute(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext&) const override {
    if (by_ == By::Int) throw 42;
    if (by_ == By::Torch) return at::add(inputs[0], at::zeros({7, 5}));
    throw std::bad_alloc();
  }

 private:
  By by_;
};

TEST_F(OwnLayers, AFailureNamesLayerCallAndShapes) {
  const std::pair<Failing::By, std::string> cases[] = {
      {Failing::By::Int, "an exception of type int"},
      {Failing::By::Torch, "The size of tensor a (6) must match the size of tensor b (5)"},
      {Failing::By::Memory, "out of memory: "}};
  for (const auto& [by, text] : cases) {
    LayeredModel model = classifier("failing", {6}, 6);
    model.layers.push_back({"first", linear(6, 6), {"input"}});
    model.layers.push_back({"second", std::make_shared<Failing>(by), {"first"}});
    end_in_cross_entropy(model);
    for (const std::vector<int>& ranks : {std::vector<int>{1}, {1, 1}}) {
      try {
        train(model, plan_for(model, ranks, 1, ScheduleKind::GPipe), options(1));
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        const std::string what = error.what();
        EXPECT_NE(what.find("step 0, action "), std::string::npos) << what;
        EXPECT_NE(what.find("layer second (failing), forward of [3, 6]: " + text), std::string::npos) << what;
        EXPECT_EQ(what.find("Exception raised from"), std::string::npos) << what;
        EXPECT_EQ(error.code(), ExitCode::RunFailed);
      }
    }
  }
}

// ---- steps of one's own loop, ranks as threads
// --------------------------------------------------------------

class OwnLoop : public Pipeline {
 protected:
  MakeBatches batches_of_model(const LayeredModel& model) {
    return [this, model](const BatchNeeds&, const BatchNeeds&) {
      BatchSources sources{.train = make_batches_(model)};
      if (evaluation_microbatches_ > 0)
        sources.evaluation = {std::make_unique<RandomBatches>(model, kMicrobatch), evaluation_microbatches_};
      return sources;
    };
  }
};

TEST_F(OwnLoop, StepsAreThoseOfARun) {
  const LayeredModel model = small_model();
  evaluation_microbatches_ = 3;
  for (const ScheduleKind kind :
       {ScheduleKind::OneFOneB, ScheduleKind::PipeDream, ScheduleKind::PipeDream2BW}) {
    for (const std::vector<int>& replicas : {std::vector{1}, {1, 1}, {2, 1}}) {
      const Plan plan = plan_for(model, replicas, 4, kind);
      TrainOptions steps = options(6);
      steps.evaluate_every = 4;
      const Outcome run = train(model, plan, steps);
      steps.save_weights = (folder_ / "stepped.safetensors").string();
      const auto ranks = make_local_communicators(plan.num_ranks(), std::chrono::seconds(60));
      const int with_loss = plan.stages.back().ranks[0].value;
      RunReport report;
      run_as_threads(ranks, [&](Communicator& c) {
        at::set_num_threads(1);
        Trainer trainer({c, steady_clock(), *device_}, model, plan, steps, batches_of_model(model));
        // Some by hand, the rest by run().
        for (std::int64_t before = -1; trainer.steps_done() < 5 && trainer.step();
             before = trainer.steps_done())
          EXPECT_GT(trainer.steps_done(), before);
        const RunReport rest = trainer.run();
        EXPECT_FALSE(trainer.step()) << "a step after the last";
        if (c.rank().value == with_loss) report = rest;
      });
      const std::string what = to_string(kind) + " of " + std::to_string(plan.num_ranks());
      EXPECT_EQ(report.losses, run.losses) << what;
      const RunReport& whole = run.reports[with_loss];
      ASSERT_EQ(report.evaluations.size(), whole.evaluations.size()) << what;
      for (std::size_t i = 0; i < whole.evaluations.size(); ++i) {
        EXPECT_EQ(report.evaluations[i].step, whole.evaluations[i].step) << what;
        EXPECT_EQ(report.evaluations[i].values, whole.evaluations[i].values) << what;
      }
      const auto file = SafetensorsFile::open(steps.save_weights);
      ASSERT_TRUE(file);
      for (const auto& [name, tensor] : run.weights)
        EXPECT_TRUE(at::equal(tensor, file->tensor(name))) << what << ": " << name;
    }
  }
}

TEST_F(OwnLoop, MayEndBeforeTheLastStep) {
  const LayeredModel model = small_model();
  const auto world = make_local_communicators(1, std::chrono::seconds(60));
  Trainer trainer({*world[0], steady_clock(), *device_}, model,
                  plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(100), batches_of_model(model));
  EXPECT_EQ(trainer.steps_done(), 0);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(trainer.step());
  EXPECT_EQ(trainer.steps_done(), 3);
  EXPECT_EQ(trainer.report().losses.size(), 3u);
}

TEST_F(OwnLoop, RanksAsThreadsGiveTheReportWithTheLossAndTheFirstError) {
  const LayeredModel model = small_model();
  const Plan one = plan_for(model, {1}, 4, ScheduleKind::OneFOneB),
             two = plan_for(model, {2, 1}, 4, ScheduleKind::OneFOneB);
  const RunReport a = train_locally(model, one, options(4), batches_of_model(model));
  const RunReport b = train_locally(model, two, options(4), batches_of_model(model));
  EXPECT_EQ(a.losses.size(), 4u);
  EXPECT_EQ(a.losses, b.losses);
  on_batch_ = [](std::int64_t position) {
    if (position == 6) throw DataError("sample 6 is gone");
  };
  try {
    train_locally(model, two, options(4), batches_of_model(model), {.deadline = std::chrono::seconds(20)});
    FAIL() << "trained without sample 6";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("sample 6 is gone"), std::string::npos) << error.what();
  }
  Plan bad = two;
  bad.stages[0].layers.pop_back();
  EXPECT_THROW(train_locally(model, bad, options(1), batches_of_model(model)), ConfigError);
}

}  // namespace
}  // namespace millrace
