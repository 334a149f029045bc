// DCGAN: two networks updated in turn, in one process as a plain PyTorch twin does it, and through plans as
// in one process.
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>

#include <cstdlib>
#include <fstream>

#include "models/registry.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/layers/adversarial_layers.h"
#include "runtime/model/turns.h"
#include "tests/models/one_step.h"

namespace millrace {
namespace {

LayeredModel small_dcgan(const char* size = "16") {
  return *make_model(
      "dcgan",
      {{"image-size", size}, {"latent", "5"}, {"generator-features", "4"}, {"discriminator-features", "4"}});
}

std::int64_t parameters_of(const LayeredModel& model, const std::string& network) {
  LayeredModel own = model;
  std::erase_if(own.layers, [&](const NamedLayer& layer) { return !layer.name.starts_with(network); });
  return own.num_parameters();
}

class Dcgan : public Pipeline {
 protected:
  Plan plan(const LayeredModel& model, int stages, ScheduleKind kind, int microbatches, int chunks = 1) {
    return uniform_plan(model.name, model.layer_names(), stages * chunks, 1, microbatches, kind, chunks);
  }
  TrainOptions adam(std::int64_t steps) {
    TrainOptions result = options(steps, UpdateRuleKind::Adam);
    result.rule.weight_decay = 0;
    result.rule.beta1 = 0.5;
    result.learning_rate.base = 2e-4;
    return result;
  }
  std::vector<Json> log_of(const fs::path& folder, int rank) {
    std::ifstream file(folder / ("steps.rank" + std::to_string(rank) + ".jsonl"));
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(*parse_json(line, "log"));
    return lines;
  }
};

TEST_F(Dcgan, HasThePublishedNetworks) {
  const LayeredModel model = *make_model("dcgan", {});
  EXPECT_EQ(parameters_of(model, "generator."), 3'576'704);
  EXPECT_EQ(parameters_of(model, "discriminator."), 2'765'568);
  std::map<std::string, Shape> shapes;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      shapes[layer.parameter_name(spec)] = spec.shape;
      if (spec.is_buffer || spec.name == "bias") continue;
      EXPECT_EQ(spec.a, 0.02) << layer.name;
      EXPECT_EQ(spec.mean, layer.layer->kind() == "batch_norm2d" ? 1 : 0) << layer.name;
    }
  }
  EXPECT_EQ(shapes.at("generator.main.0.weight"), (Shape{100, 512, 4, 4}));
  EXPECT_EQ(shapes.at("generator.main.10.running_var"), (Shape{64}));
  EXPECT_EQ(shapes.at("generator.main.12.weight"), (Shape{64, 3, 4, 4}));
  EXPECT_EQ(shapes.at("discriminator.main.0.weight"), (Shape{64, 3, 4, 4}));
  EXPECT_EQ(shapes.at("discriminator.main.9.bias"), (Shape{512}));
  EXPECT_EQ(shapes.at("discriminator.main.11.weight"), (Shape{1, 512, 4, 4}));
  EXPECT_EQ(shapes.size(), 5u + 4 * 5 + 5u + 3 * 5);
  for (const char* size : {"16", "32", "128"})
    EXPECT_TRUE(make_model("dcgan", {{"image-size", size}})) << size;
  for (const char* size : {"8", "48", "100"})
    EXPECT_FALSE(make_model("dcgan", {{"image-size", size}})) << size;
}

/// Tensors that a turn does not need are neither computed nor sent.
TEST_F(Dcgan, EachTurnIsCutToItsHeads) {
  const LayeredModel model = small_dcgan();
  const StageLayout layout = *make_layout(model, plan(model, 3, ScheduleKind::OneFOneB, 2), kMicrobatch);
  ASSERT_EQ(layout.turns.size(), 2u);
  const auto wanting = [](const StageLayout& turn, const std::string& beginning) {
    return std::ranges::count_if(turn.tensors, [&](const ModelTensor& t) {
      return t.name.starts_with(beginning) && t.wants_gradient;
    });
  };
  const auto tensors = [](const StageLayout& turn, const std::string& ending) {
    return std::ranges::count_if(turn.tensors,
                                 [&](const ModelTensor& t) { return t.name.ends_with(ending); });
  };
  const StageLayout &of_discriminator = layout.turns[0], &of_generator = layout.turns[1];
  EXPECT_EQ(wanting(of_discriminator, "generator."), 0);
  EXPECT_GT(wanting(of_generator, "generator."), 0);
  EXPECT_GT(tensors(of_discriminator, ".real"), 0);
  EXPECT_EQ(tensors(of_discriminator, ".real"), tensors(of_discriminator, ".fake"));
  EXPECT_EQ(tensors(of_generator, ".real"), 0);
  for (const Crossing& crossing : of_discriminator.crossings) {
    const std::string& name = of_discriminator.tensors[crossing.tensor].name;
    EXPECT_EQ(crossing.has_gradient, name.starts_with("discriminator.")) << name;
  }
  const auto frozen = [](const StageLayout& turn) {
    const StageProgram program = compile_stage(turn, StageId(2));
    return std::ranges::count_if(program.steps, &LayerStep::frozen);
  };
  EXPECT_EQ(frozen(of_discriminator), 0);
  EXPECT_EQ(frozen(of_generator), static_cast<std::ptrdiff_t>(layout.layers[2].size()));
}

TEST_F(Dcgan, TrainsThroughPlansAsInOneProcess) {
  constexpr int kMicrobatches = 4;
  const LayeredModel model = small_dcgan();
  for (const TrainOptions& told : {adam(3), options(3)}) {
    const Outcome one = train(model, plan(model, 1, ScheduleKind::OneFOneB, kMicrobatches), told);
    for (const double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
    const std::tuple<int, ScheduleKind, int> plans[] = {
        {2, ScheduleKind::GPipe, 1},        {3, ScheduleKind::GPipe, 1},
        {2, ScheduleKind::OneFOneB, 1},     {3, ScheduleKind::OneFOneB, 1},
        {2, ScheduleKind::Interleaved, 2},  {2, ScheduleKind::ZeroBubbleH1, 1},
        {3, ScheduleKind::ZeroBubbleH1, 1}, {2, ScheduleKind::ZeroBubbleV, 2},
        {4, ScheduleKind::OneFOneB, 1}};
    for (const auto& [stages, kind, chunks] : plans)
      expect_equal(train(model, plan(model, stages, kind, kMicrobatches, chunks), told), one,
                   to_string(told.rule.kind) + " " + to_string(kind) + " " + std::to_string(stages));
    Plan recomputed = plan(model, 3, ScheduleKind::OneFOneB, kMicrobatches);
    for (PlanStage& stage : recomputed.stages) stage.recompute = true;
    expect_equal(train(model, recomputed, told), one, "recomputed");
  }
}

TEST_F(Dcgan, ClippingIsOfEachTurnsGradientInEveryPlan) {
  const LayeredModel model = small_dcgan();
  TrainOptions told = options(3);
  const Outcome free = train(model, plan(model, 1, ScheduleKind::OneFOneB, 2), told);
  told.clip.norm = 0.05;
  const Outcome one = train(model, plan(model, 1, ScheduleKind::OneFOneB, 2), told);
  EXPECT_NE(one.losses, free.losses);
  expect_equal(train(model, plan(model, 3, ScheduleKind::OneFOneB, 2), told), one, "clipped");
}

TEST_F(Dcgan, ReplicasAgreeWithOneProcessToRounding) {
  const LayeredModel model = small_dcgan();
  const Outcome one = train(model, plan_for(model, {1}, 4, ScheduleKind::OneFOneB), options(3));
  for (const std::vector<int>& replicas : {std::vector{2}, {2, 1}, {1, 2}, {2, 2}}) {
    const Outcome many = train(model, plan_for(model, replicas, 4, ScheduleKind::OneFOneB), options(3));
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      EXPECT_NEAR(many.losses[i], one.losses[i], 1e-4) << ::testing::PrintToString(replicas);
    for (const auto& [name, tensor] : one.weights) {
      // Running statistics of replicas are means of theirs.
      if (name.find("running") != std::string::npos || name.find("tracked") != std::string::npos) continue;
      EXPECT_TRUE(at::allclose(many.weights.at(name), tensor, 1e-3, 1e-5))
          << ::testing::PrintToString(replicas) << " " << name;
    }
  }
}

TEST_F(Dcgan, GoesOnFromACheckpointUnderAnyPlan) {
  const LayeredModel model = small_dcgan();
  evaluation_microbatches_ = 3;
  TrainOptions unbroken = adam(5);
  unbroken.evaluate_every = 5;
  const Outcome whole = train(model, plan(model, 1, ScheduleKind::OneFOneB, 2), unbroken);
  TrainOptions first = unbroken;
  first.steps = 3;
  first.evaluate_every = 1;  // evaluations change nothing
  first.learning_rate.total_steps = 5;
  first.output_dir = (folder_ / "out").string();
  first.checkpoint_every = 3;
  train(model, plan(model, 3, ScheduleKind::OneFOneB, 2), first);
  for (int stages : {1, 2}) {
    TrainOptions rest = unbroken;
    rest.resume = first.output_dir;
    const Outcome resumed = train(model, plan(model, stages, ScheduleKind::GPipe, 2), rest);
    EXPECT_EQ(resumed.losses, (std::vector<double>{whole.losses.begin() + 3, whole.losses.end()}));
    for (const auto& [name, tensor] : whole.weights)
      EXPECT_TRUE(at::equal(tensor, resumed.weights.at(name))) << name;
    // The noise of evaluations depends on nothing but the seed.
    EXPECT_EQ(resumed.reports.back().evaluations.back().values, whole.reports[0].evaluations.back().values);
  }
}

TEST_F(Dcgan, LogsWhatTheReferenceLogs) {
  const LayeredModel model = small_dcgan();
  TrainOptions told = adam(2);
  told.output_dir = (folder_ / "out").string();
  const Outcome outcome = train(model, plan(model, 2, ScheduleKind::OneFOneB, 2), told);
  const std::vector<Json> lines = log_of(told.output_dir, 1);
  ASSERT_GE(lines.size(), 3u);  // a header
  const Json& line = lines.back();
  for (const char* name : {"errD.loss", "errG.loss"}) EXPECT_GT(line.find(name)->as_double(), 0) << name;
  for (const char* name : {"errD.D_x", "errD.D_G_z1", "errG.D_G_z2"}) {
    EXPECT_GT(line.find(name)->as_double(), 0) << name;
    EXPECT_LT(line.find(name)->as_double(), 1) << name;
  }
  EXPECT_DOUBLE_EQ(line.find("loss")->as_double(),
                   line.find("errD.loss")->as_double() + line.find("errG.loss")->as_double());
  EXPECT_DOUBLE_EQ(outcome.losses.back(), line.find("loss")->as_double());
}

TEST_F(Dcgan, WhatTurnsCannotDoIsRefused) {
  const LayeredModel model = small_dcgan();
  const auto refused = [&](const Plan& given, const TrainOptions& told, const std::string& why) {
    try {
      train(model, given, told);
      ADD_FAILURE() << why;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused(plan(model, 2, ScheduleKind::PipeDream, 1), options(2), "never flushes");
  TrainOptions half = options(2);
  half.precision = Precision::Float16;
  refused(plan(model, 1, ScheduleKind::OneFOneB, 2), half, "scaled loss");
  refused(plan(model, 1, ScheduleKind::OneFOneB, 2), options(2, UpdateRuleKind::Asgd), "ASGD");
}

TEST_F(Dcgan, TurnsThatDoNotFitTheModelAreFound) {
  const auto problems_with = [](const std::vector<TurnOptions>& turns) {
    LayeredModel model = small_dcgan();
    model.turns.clear();
    for (const TurnOptions& turn : turns) add_turn(model, turn);
    return to_string(validate(model));
  };
  const TurnOptions discriminator{"d", {"errD"}, "discriminator."}, generator{"g", {"errG"}, "generator."};
  EXPECT_EQ(problems_with({discriminator, generator}), "");
  EXPECT_NE(problems_with({discriminator}).find("not trained by exactly one turn"), std::string::npos);
  EXPECT_NE(problems_with({discriminator, generator, generator}).find("head errG"), std::string::npos);
  EXPECT_NE(problems_with({{"d", {}, "discriminator."}, generator}).find("has no head"), std::string::npos);
  EXPECT_NE(problems_with({{"d", {"errD"}, "nothing."}, generator}).find("in 0 places"), std::string::npos);
}

/// batches.safetensors: images and noise of each microbatch; before, after: weights; the log: the losses.
TEST_F(Dcgan, EqualsAPlainPyTorchTwin) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  constexpr int kSteps = 4;
  for (const char* size : {"16", "32"}) {
    const LayeredModel model = small_dcgan(size);
    for (const int microbatches : {1, 2}) {
      for (const char* rule : {"sgd", "adam"}) {
        const fs::path place =
            folder_ / (std::string(size) + "-" + std::to_string(microbatches) + "-" + rule);
        TrainOptions told = rule == std::string("sgd") ? options(kSteps) : adam(kSteps);
        told.rule.weight_decay = 0;
        if (rule == std::string("sgd")) told.rule.momentum = 0.9;
        told.output_dir = place.string();
        NamedTensors before, batches;
        for (const NamedLayer& layer : model.layers) {
          const auto specs = layer.layer->parameters();
          const auto values = initialise(specs, told.seed, layer.name);
          for (std::size_t i = 0; i < specs.size(); ++i)
            before.emplace_back(layer.parameter_name(specs[i]), values[i]);
        }
        RandomBatches images(model, kMicrobatch);
        for (std::int64_t position = 0; position < kSteps * microbatches; ++position) {
          const at::Tensor real = images.get(position).fields[0];
          const CallContext context{
              .random_seed = derive_seed(told.seed, "noise", static_cast<std::uint64_t>(position))};
          const at::Tensor inputs[] = {real};
          batches.emplace_back("real" + std::to_string(position), real);
          batches.emplace_back("noise" + std::to_string(position),
                               normal_noise({5, 1, 1})->forward(inputs, {}, {}, context, nullptr));
        }
        const Outcome after = train(model, plan(model, 1, ScheduleKind::OneFOneB, microbatches), told);
        write_safetensors(place / "before.safetensors", before);
        write_safetensors(place / "batches.safetensors", batches);
        write_safetensors(place / "after.safetensors", {after.weights.begin(), after.weights.end()});
      }
    }
  }
  const std::string command =
      std::string(python) + " " MILLRACE_SOURCE_DIR "/tests/reference/dcgan.py " + folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
