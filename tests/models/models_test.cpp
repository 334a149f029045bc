#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/registry.h"
#include "runtime/base/error.h"
#include "runtime/layers/initialise.h"
#include "runtime/plan/plan.h"
#include "runtime/stage/stage_layout.h"

namespace millrace {
namespace {

std::map<std::string, Shape> state_dict(const LayeredModel& model) {
  std::map<std::string, Shape> shapes;
  for (const NamedLayer& layer : model.layers) {
    for (const ParameterSpec& spec : layer.layer->parameters())
      shapes[layer.name + "." + spec.name] = spec.shape;
  }
  return shapes;
}

TEST(Models, HaveThePapersParameterCounts) {
  const std::pair<const char*, std::int64_t> counts[] = {{"vgg16", 138357544},
                                                         {"vgg16_bn", 138365992},
                                                         {"alexnet", 61100840},
                                                         {"resnet18", 11689512},
                                                         {"resnet50", 25557032}};
  for (const auto& [name, count] : counts) EXPECT_EQ(make_model(name)->num_parameters(), count) << name;
}

TEST(Models, VggHasTorchvisionsNamesAndShapes) {
  std::map<std::string, Shape> expected;
  std::int64_t in = 3, index = 0;
  for (std::int64_t out : {64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0}) {
    if (out == 0) {
      ++index;
      continue;
    }
    expected["features." + std::to_string(index) + ".weight"] = {out, in, 3, 3};
    expected["features." + std::to_string(index) + ".bias"] = {out};
    in = out;
    index += 2;
  }
  expected["classifier.0.weight"] = {4096, 25088};
  expected["classifier.3.weight"] = {4096, 4096};
  expected["classifier.6.weight"] = {1000, 4096};
  for (const char* i : {"0", "3"}) expected[std::string("classifier.") + i + ".bias"] = {4096};
  expected["classifier.6.bias"] = {1000};
  EXPECT_EQ(state_dict(*make_model("vgg16")), expected);
}

TEST(Models, ResNetHasTorchvisionsNames) {
  for (const auto& [name, blocks, convs] :
       {std::tuple{"resnet18", std::vector{2, 2, 2, 2}, 2}, {"resnet50", std::vector{3, 4, 6, 3}, 3}}) {
    std::set<std::string> expected{"conv1.weight", "fc.weight", "fc.bias"};
    const auto norm = [&](const std::string& n) {
      for (const char* part : {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
        expected.insert(n + "." + part);
    };
    norm("bn1");
    for (int g = 0; g < 4; ++g) {
      for (int b = 0; b < blocks[static_cast<std::size_t>(g)]; ++b) {
        const std::string block = "layer" + std::to_string(g + 1) + "." + std::to_string(b);
        for (int c = 1; c <= convs; ++c) {
          expected.insert(block + ".conv" + std::to_string(c) + ".weight");
          norm(block + ".bn" + std::to_string(c));
        }
        if (b == 0 && (g > 0 || convs == 3)) {
          expected.insert(block + ".downsample.0.weight");
          norm(block + ".downsample.1");
        }
      }
    }
    std::set<std::string> found;
    for (const auto& [key, shape] : state_dict(*make_model(name))) found.insert(key);
    EXPECT_EQ(found, expected) << name;
  }
}

TEST(Models, ShapesFitForEveryModelAndForm) {
  for (const std::string& name : model_names()) {
    for (int size : {0, 32, 64, 224}) {
      const auto model = make_model(name, {.image_size = size});
      if (!model) {
        EXPECT_EQ(name, "alexnet") << to_string(model.problems());
        continue;
      }
      const Plan plan = uniform_plan(model->name, model->layer_names(), 1, 1, 1, ScheduleKind::GPipe);
      const auto layout = make_layout(*model, plan, 2);
      ASSERT_TRUE(layout) << name << ": " << to_string(layout.problems());
      EXPECT_EQ(layout->tensors.back().spec.shape, (Shape{2, model->field("target")->limit}));
    }
  }
}

TEST(Models, UnknownNameHasTheNearest) {
  const auto model = make_model("vgg61");
  ASSERT_FALSE(model);
  EXPECT_NE(to_string(model.problems()).find("did you mean 'vgg16'"), std::string::npos);
}

TEST(Initialise, DependsOnSeedAndNameOnly) {
  const auto specs = make_model("mlp", {.width = 16})->layers[0].layer->parameters();
  EXPECT_TRUE(initialise(specs, 3, "a")[0].equal(initialise(specs, 3, "a")[0]));
  EXPECT_FALSE(initialise(specs, 3, "a")[0].equal(initialise(specs, 3, "b")[0]));
  EXPECT_FALSE(initialise(specs, 3, "a")[0].equal(initialise(specs, 4, "a")[0]));
}

}  // namespace
}  // namespace millrace
