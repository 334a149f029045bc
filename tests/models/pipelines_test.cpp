// Every image model trains through plans as in one process, bit for bit; and one process as LibTorch's
// autograd over the whole graph does.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/registry.h"
#include "runtime/base/error.h"
#include "runtime/layers/autograd_layer.h"
#include "runtime/layers/initialise.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

/// Which plans are compared. One is enough for the deepest models, which differ from shallower ones only in
/// length.
enum class Plans { All, One };

/// The smallest form that has every kind of layer.
struct Form {
  const char* model;
  const char* image_size;
  Plans plans = Plans::All;
  GivenOptions more;
};

LayeredModel model_of(const Form& form, const char* dropout) {
  GivenOptions options{{"image-size", form.image_size}, {"classes", "7"}, {"dropout", dropout}};
  options.insert(options.end(), form.more.begin(), form.more.end());
  auto model = make_model(form.model, options);
  if (!model) throw ConfigError(to_string(model.problems()));
  return *std::move(model);
}

class EveryModel : public Pipeline, public ::testing::WithParamInterface<Form> {
 protected:
  static constexpr int kMicrobatches = 3;
  Plan cut(const LayeredModel& model, int ranks, ScheduleKind kind, int chunks = 1) {
    return uniform_plan(model.name, model.layer_names(), ranks * chunks, 1, kMicrobatches, kind, chunks);
  }
  Plan alone(const LayeredModel& model, int microbatches = kMicrobatches) {
    return uniform_plan(model.name, model.layer_names(), 1, 1, microbatches, ScheduleKind::OneFOneB);
  }
};

TEST_P(EveryModel, TrainsThroughPlansAsInOneProcess) {
  const LayeredModel model = model_of(GetParam(), "0.1");
  const Outcome one = train(model, alone(model), options(2));
  for (const double loss : one.losses) EXPECT_TRUE(std::isfinite(loss));
  expect_equal(train(model, cut(model, 3, ScheduleKind::OneFOneB), options(2)), one, model.name + " 1f1b");
  if (GetParam().plans == Plans::One) return;
  const std::tuple<int, ScheduleKind, int> plans[] = {
      {2, ScheduleKind::GPipe, 1}, {2, ScheduleKind::Interleaved, 2}, {3, ScheduleKind::ZeroBubbleH1, 1}};
  for (const auto& [ranks, kind, chunks] : plans)
    expect_equal(train(model, cut(model, ranks, kind, chunks), options(2)), one,
                 model.name + " " + to_string(kind));
  LayeredModel fallback = model;
  for (NamedLayer& layer : fallback.layers) layer.layer = through_autograd(layer.layer);
  expect_equal(train(fallback, alone(model), options(2)), one, model.name + " by autograd");
}

/// Gradients of the whole graph in one call, the loss by torch's own function.
std::map<std::string, at::Tensor> gradients_of_whole_graph(const LayeredModel& model, std::uint64_t seed,
                                                           const Batch& batch) {
  std::map<std::string, at::Tensor> tensors, parameters;
  for (std::size_t f = 0; f < model.fields.size(); ++f) tensors[model.fields[f].name] = batch.fields[f];
  for (const NamedLayer& layer : model.layers) {
    const auto specs = layer.layer->parameters();
    const auto values = initialise(specs, seed, layer.name);
    std::vector<at::Tensor> inputs, trained, buffers;
    for (const std::string& name : layer.inputs) inputs.push_back(tensors.at(name));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!specs[i].is_buffer) parameters[layer.name + "." + specs[i].name] = values[i].requires_grad_(true);
      (specs[i].is_buffer ? buffers : trained).push_back(values[i]);
    }
    tensors[layer.name] = layer.layer->forward(inputs, trained, buffers, {.training = true}, nullptr);
  }
  at::Tensor loss = at::zeros({});
  for (const NamedHead& head : model.heads)
    loss =
        loss + head.weight * at::cross_entropy_loss(tensors.at(head.inputs[0]), tensors.at(head.inputs[1]));
  std::vector<at::Tensor> leaves;
  for (const auto& [name, tensor] : parameters) leaves.push_back(tensor);
  const auto found = torch::autograd::grad({loss}, leaves);
  std::size_t next = 0;
  for (auto& [name, tensor] : parameters) tensor = found[next++];
  return parameters;
}

void expect_gradients(const LayeredModel& model, const Batch& batch, const TrainOptions& options,
                      const Outcome& after_one_step) {
  for (const auto& [name, gradient] : gradients_of_whole_graph(model, options.seed, batch)) {
    const auto place = *find_parameter(model, name);
    const NamedLayer& layer = model.layers[place.layer];
    const at::Tensor before = initialise(layer.layer->parameters(), options.seed, layer.name)[place.spec];
    const at::Tensor step = before - after_one_step.weights.at(name);  // the rate is one
    // Sums of branches come in another order, and a step is rounded to the weights' last place.
    const double scale = gradient.abs().max().item<double>(), weight = before.abs().max().item<double>();
    const double error = (step - gradient).abs().max().item<double>();
    EXPECT_LE(error, 1e-3 * scale + 2e-7 * (weight + scale) + 1e-7) << model.name << " " << name;
  }
}

TEST_P(EveryModel, HasTheGradientsOfTheWholeGraph) {
  const LayeredModel model = model_of(GetParam(), "0");
  TrainOptions one_step = options(1);
  one_step.rule.weight_decay = 0;
  one_step.learning_rate.base = 1;
  const Outcome ours = train(model, alone(model, 1), one_step);
  expect_gradients(model, RandomBatches(model, kMicrobatch).get(0), one_step, ours);
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         ::testing::Values(Form{"resnet101", "65", Plans::One}, Form{"resnext50_32x4d", "65"},
                                           Form{"resnext101_32x8d", "65", Plans::One},
                                           Form{"densenet121", "32"}, Form{"squeezenet1_0", "47"},
                                           Form{"squeezenet1_1", "40"},
                                           Form{"inception_v3", "75", Plans::All, {{"aux-weight", "0"}}},
                                           Form{"mobilenet_v2", "33"}, Form{"mobilenet_v3_large", "40"},
                                           Form{"mobilenet_v3_small", "40"}),
                         [](const auto& info) { return std::string(info.param.model); });

// The images have full size, because the auxiliary classifier needs it. Its head reads from a middle stage.
TEST_F(Pipeline, InceptionsAuxiliaryHeadTrainsAcrossStages) {
  const LayeredModel model = model_of({.model = "inception_v3", .image_size = "299"}, "0");
  ASSERT_EQ(model.heads.size(), 2u);
  TrainOptions one_step = options(1);
  one_step.rule.weight_decay = 0;
  one_step.learning_rate.base = 1;
  const auto plan = [&](int stages) {
    return uniform_plan(model.name, model.layer_names(), stages, 1, 1, ScheduleKind::OneFOneB);
  };
  const Outcome one = train(model, plan(1), one_step);
  expect_equal(train(model, plan(3), one_step), one, "3 stages");
  expect_gradients(model, RandomBatches(model, kMicrobatch).get(0), one_step, one);
}

}  // namespace
}  // namespace millrace
