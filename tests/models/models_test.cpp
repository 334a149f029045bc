#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include <cmath>
#include <map>
#include <set>

#include "models/registry.h"
#include "runtime/base/error.h"
#include "runtime/layers/initialise.h"
#include "runtime/model/stage_layout.h"
#include "runtime/model/stage_program.h"
#include "runtime/plan/plan.h"
#include "runtime/rules/best_so_far.h"

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

/// Counts of a torchvision model: parameters, tensors of parameters, tensors of the state_dict.
struct Counts {
  const char* name;
  std::int64_t parameters;
  int trained, all;
  GivenOptions options;
};

TEST(Models, HaveTorchvisionsCounts) {
  const Counts models[] = {
      {"vgg16", 138357544, 32, 32},
      {"vgg16_bn", 138365992, 58, 97},
      {"alexnet", 61100840, 16, 16},
      {"resnet18", 11689512, 62, 122},
      {"resnet18", 11689512, 62, 122, {{"image-size", "32"}, {"stem", "imagenet"}, {"classes", "1000"}}},
      {"resnet50", 25557032, 161, 320},
      {"resnet101", 44549160, 314, 626},
      {"resnext50_32x4d", 25028904, 161, 320},
      {"resnext101_32x4d", 44177704, 314, 626},
      {"resnext101_32x8d", 88791336, 314, 626},
      {"densenet121", 7978856, 364, 727},
      {"squeezenet1_0", 1248424, 52, 52},
      {"squeezenet1_1", 1235496, 52, 52},
      {"inception_v3", 27161264, 292, 580},
      {"inception_v3", 23834568, 284, 566, {{"aux-weight", "0"}}},
      {"mobilenet_v2", 3504872, 158, 314},
      {"mobilenet_v3_large", 5483032, 174, 312},
      {"mobilenet_v3_small", 2542856, 142, 244},
      {"mobilenet_v2", 2236682, 158, 314, {{"classes", "10"}, {"image-size", "32"}}},
      {"mobilenet_v3_large", 4214842, 174, 312, {{"classes", "10"}, {"image-size", "32"}}},
      {"mobilenet_v3_small", 1528106, 142, 244, {{"classes", "10"}, {"image-size", "32"}}},
      // HFTA's.
      {"pointnet_cls", 1607961, 44, 74},
      {"pointnet_cls", 3465305, 66, 111, {{"feature-transform", "on"}}},
      {"pointnet_seg", 1670285, 48, 81},
      {"pointnet_seg", 3527629, 70, 118, {{"feature-transform", "on"}}},
      {"dcgan", 3576704 + 2765568, 24, 45},
      {"unet3d", 31190243, 78, 78},  // MLPerf's
      {"dlrm", 171392 + 2197505 + 26 * 128, 42, 42, {{"table-rows-cap", "1"}}},
      {"dlrm", 171392 + 2198529 + 26 * 128, 42, 42, {{"table-rows-cap", "1"}, {"reference", "nvidia"}}},
  };
  // Ours alone, and those over tokens: tests/language.
  std::set<std::string> counted{"mlp",      "gnmt", "gnmt_large", "bert_base", "bert_large", "transformer_lm",
                                "awd_lstm", "s2vt", "autoencoder"};
  for (const Counts& counts : models) {
    const auto model = make_model(counts.name, counts.options);
    ASSERT_TRUE(model) << to_string(model.problems());
    EXPECT_EQ(model->num_parameters(), counts.parameters) << counts.name;
    int trained = 0, all = 0;
    for (const NamedLayer& layer : model->layers) {
      for (const ParameterSpec& spec : layer.layer->parameters()) {
        ++all;
        trained += !spec.is_buffer;
      }
    }
    EXPECT_EQ(trained, counts.trained) << counts.name;
    EXPECT_EQ(all, counts.all) << counts.name;
    counted.insert(counts.name);
  }
  for (const std::string& name : model_names()) EXPECT_TRUE(counted.contains(name)) << name;
}

TEST(Models, RecordAStemThatDoesNotGoWithTheImageSize) {
  struct Case {
    const char *size, *stem, *form;
    bool recorded;
  };
  for (const Case& one : {Case{"32", "auto", "stem cifar", false},
                          {"32", "cifar", "stem cifar", false},
                          {"64", "imagenet", "stem imagenet", true},
                          {"0", "auto", "stem imagenet", false},
                          {"65", "imagenet", "stem imagenet", false},
                          {"96", "cifar", "stem cifar", true}}) {
    const GivenOptions given{{"image-size", one.size}, {"stem", one.stem}};
    EXPECT_EQ(chosen_form("resnet18", given), one.form) << one.size << one.stem;
    std::string recorded;
    for (const auto& [name, value] : recorded_options("resnet18", given))
      if (name == "stem") recorded = "stem " + value;
    EXPECT_EQ(recorded, one.recorded ? one.form : "") << one.size << one.stem;
  }
  EXPECT_EQ(chosen_form("vgg16", {}), "");
}

/// Every number that an evaluation reports can be kept by, with a direction. Mean scores of a discriminator
/// and penalties that only training has are no goals.
TEST(Models, HaveMetricsOfWhichTheBetterDirectionIsKnown) {
  const std::set<std::string> lower{"loss", "nll", "perplexity"};
  const std::set<std::string> none{"errD.D_x", "errD.D_G_z1", "errG.D_G_z2", "activations.activation",
                                   "activations.change"};
  std::set<std::string> seen;
  for (const std::string& name : model_names()) {
    const auto model = make_model(name, {});
    ASSERT_TRUE(model) << to_string(model.problems());
    for (const auto& [metric, value] : head_values(*model, std::vector<double>(num_head_sums(*model), 1.0))) {
      const Result<bool> higher = higher_is_better(metric);
      EXPECT_EQ(higher.has_value(), !none.contains(metric)) << name << " " << metric;
      const std::string own = metric.substr(metric.rfind('.') + 1);
      if (higher) {
        EXPECT_EQ(*higher, !lower.contains(own)) << name << " " << metric;
      }
      seen.insert(own);
    }
  }
  for (const char* metric : {"loss", "nll", "perplexity", "top1", "top5", "accuracy", "auc", "mean_iou",
                             "part2", "dice", "dice_1"})
    EXPECT_TRUE(seen.contains(metric)) << metric;
}

/// Compares some tensors of torchvision's state_dicts: for each kind of place, one whose shape identifies it.
TEST(Models, HaveTorchvisionsNamesAndShapes) {
  const std::map<std::string, std::map<std::string, Shape>> expected{
      {"resnet101", {{"layer3.22.conv2.weight", {256, 256, 3, 3}}, {"layer4.2.bn3.running_var", {2048}}}},
      {"resnext50_32x4d",
       {{"layer1.0.conv1.weight", {128, 64, 1, 1}},
        {"layer1.0.conv2.weight", {128, 4, 3, 3}},
        {"layer4.0.conv2.weight", {1024, 32, 3, 3}},
        {"layer4.0.downsample.0.weight", {2048, 1024, 1, 1}}}},
      {"resnext101_32x4d", {{"layer3.22.conv2.weight", {512, 16, 3, 3}}}},
      {"resnext101_32x8d",
       {{"layer1.0.conv2.weight", {256, 8, 3, 3}}, {"layer4.2.conv3.weight", {2048, 2048, 1, 1}}}},
      {"densenet121",
       {{"features.conv0.weight", {64, 3, 7, 7}},
        {"features.norm0.running_mean", {64}},
        {"features.denseblock1.denselayer1.conv1.weight", {128, 64, 1, 1}},
        {"features.denseblock3.denselayer24.norm1.weight", {992}},
        {"features.denseblock4.denselayer16.conv2.weight", {32, 128, 3, 3}},
        {"features.transition3.norm.num_batches_tracked", {}},
        {"features.transition3.conv.weight", {512, 1024, 1, 1}},
        {"features.norm5.bias", {1024}},
        {"classifier.weight", {1000, 1024}}}},
      {"squeezenet1_0",
       {{"features.0.weight", {96, 3, 7, 7}},
        {"features.3.squeeze.weight", {16, 96, 1, 1}},
        {"features.7.expand3x3.weight", {128, 32, 3, 3}},
        {"features.12.expand1x1.bias", {256}},
        {"classifier.1.weight", {1000, 512, 1, 1}}}},
      {"squeezenet1_1",
       {{"features.0.weight", {64, 3, 3, 3}},
        {"features.6.squeeze.weight", {32, 128, 1, 1}},
        {"features.12.expand3x3.weight", {256, 64, 3, 3}}}},
      {"inception_v3",
       {{"Conv2d_4a_3x3.conv.weight", {192, 80, 3, 3}},
        {"Mixed_5b.branch5x5_2.conv.weight", {64, 48, 5, 5}},
        {"Mixed_5d.branch_pool.conv.weight", {64, 288, 1, 1}},
        {"Mixed_6a.branch3x3dbl_3.bn.weight", {96}},
        {"Mixed_6b.branch7x7_2.conv.weight", {128, 128, 1, 7}},
        {"Mixed_6d.branch7x7dbl_4.conv.weight", {160, 160, 7, 1}},
        {"Mixed_6e.branch7x7dbl_5.conv.weight", {192, 192, 1, 7}},
        {"AuxLogits.conv0.conv.weight", {128, 768, 1, 1}},
        {"AuxLogits.conv1.conv.weight", {768, 128, 5, 5}},
        {"AuxLogits.fc.weight", {1000, 768}},
        {"Mixed_7a.branch7x7x3_4.conv.weight", {192, 192, 3, 3}},
        {"Mixed_7b.branch3x3_2a.conv.weight", {384, 384, 1, 3}},
        {"Mixed_7c.branch3x3dbl_3b.conv.weight", {384, 384, 3, 1}},
        {"Mixed_7c.branch3x3dbl_1.bn.running_mean", {448}},
        {"fc.weight", {1000, 2048}}}},
      {"mobilenet_v2",
       {{"features.0.0.weight", {32, 3, 3, 3}},
        {"features.1.conv.0.0.weight", {32, 1, 3, 3}},
        {"features.1.conv.1.weight", {16, 32, 1, 1}},
        {"features.1.conv.2.running_var", {16}},
        {"features.17.conv.1.0.weight", {960, 1, 3, 3}},
        {"features.17.conv.2.weight", {320, 960, 1, 1}},
        {"features.18.1.bias", {1280}},
        {"classifier.1.weight", {1000, 1280}}}},
      {"mobilenet_v3_large",
       {{"features.1.block.0.0.weight", {16, 1, 3, 3}},
        {"features.1.block.1.0.weight", {16, 16, 1, 1}},
        {"features.4.block.2.fc1.weight", {24, 72, 1, 1}},
        {"features.15.block.2.fc2.bias", {960}},
        {"features.15.block.3.1.running_mean", {160}},
        {"features.16.0.weight", {960, 160, 1, 1}},
        {"classifier.0.weight", {1280, 960}},
        {"classifier.3.bias", {1000}}}},
      {"mobilenet_v3_small",
       {{"features.1.block.1.fc1.weight", {8, 16, 1, 1}},
        {"features.1.block.2.0.weight", {16, 16, 1, 1}},
        {"features.11.block.1.0.weight", {576, 1, 5, 5}},
        {"features.12.1.weight", {576}},
        {"classifier.0.weight", {1024, 576}}}},
  };
  for (const auto& [name, entries] : expected) {
    const auto found = state_dict(*make_model(name));
    for (const auto& [key, shape] : entries) {
      ASSERT_TRUE(found.contains(key)) << name << ": " << key;
      EXPECT_EQ(found.at(key), shape) << name << ": " << key;
    }
  }
}

/// torchvision's rules: kaiming and normal deviations are measured, the bounds of uniform ones too.
TEST(Models, StartFromTorchvisionsDistributions) {
  struct Expected {
    const char* model;
    const char* name;
    double deviation;
  };
  const double uniform = 1 / std::sqrt(3.0);  // deviation of [-a, a] is a / sqrt 3
  const Expected table[] = {
      {"resnext50_32x4d", "layer4.0.conv2.weight", std::sqrt(2.0 / (1024 * 9))},  // fan_out of all groups
      {"densenet121", "features.conv0.weight", std::sqrt(2.0 / (3 * 49))},
      {"densenet121", "classifier.weight", uniform / std::sqrt(1024.0)},
      {"densenet121", "classifier.bias", 0},
      {"squeezenet1_1", "features.12.expand3x3.weight", uniform * std::sqrt(6.0 / (64 * 9))},
      {"squeezenet1_1", "features.12.expand3x3.bias", 0},
      {"squeezenet1_1", "classifier.1.weight", 0.01},
      {"inception_v3", "Mixed_7b.branch3x3dbl_2.conv.weight", 0.1},
      {"inception_v3", "AuxLogits.conv1.conv.weight", 0.1},
      {"inception_v3", "AuxLogits.fc.weight", 0.001},
      {"inception_v3", "fc.weight", 0.1},
      {"inception_v3", "fc.bias", uniform / std::sqrt(2048.0)},
      {"mobilenet_v2", "features.17.conv.1.0.weight", std::sqrt(2.0 / (960 * 9))},
      {"mobilenet_v2", "classifier.1.weight", 0.01},
      {"mobilenet_v3_large", "features.15.block.2.fc1.weight", std::sqrt(2.0 / 240)},
      {"mobilenet_v3_large", "features.15.block.2.fc1.bias", 0},
      {"mobilenet_v3_large", "classifier.0.weight", 0.01},
  };
  for (const Expected& e : table) {
    const LayeredModel model = *make_model(e.model);
    const auto place = find_parameter(model, e.name);
    ASSERT_TRUE(place) << e.name;
    const NamedLayer& layer = model.layers[place->layer];
    const at::Tensor value = initialise(layer.layer->parameters(), 5, layer.name)[place->spec];
    const double found = std::sqrt(value.square().mean().item<double>());
    // The deviation of n draws is off by about 1/sqrt(2n) of itself; five times that is never seen.
    const double error = 5 * e.deviation / std::sqrt(2.0 * static_cast<double>(value.numel()));
    EXPECT_NEAR(found, e.deviation, error) << e.model << " " << e.name;
  }
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
      for (int b = 0; b < blocks[g]; ++b) {
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
  for (const ModelDescription& description : model_descriptions()) {
    const std::string& name = description.name;
    if (!description.find("classes")) continue;  // over tokens, or from a file
    for (int size : {0, 32, 64, 224}) {
      GivenOptions options;
      if (description.find("image-size")) options.push_back({"image-size", std::to_string(size)});
      const auto model = make_model(name, options);
      if (!model) {
        EXPECT_TRUE(name == "alexnet" || name == "inception_v3" || name == "unet3d")
            << to_string(model.problems());
        continue;
      }
      EXPECT_EQ(validate(*model).size(), 0u) << to_string(validate(*model));
      const Plan plan = uniform_plan(model->name, model->layer_names(), 1, 1, 1, ScheduleKind::GPipe);
      const auto layout = make_layout(*model, plan, 2);
      ASSERT_TRUE(layout) << name << ": " << to_string(layout.problems());
      const bool volumes = model->fields.front().form == SampleForm::Volumes;
      const FieldSpec& labels = model->fields[volumes ? 1 : model->fields.size() - 1];
      Shape scores = field_shape(labels, model->nominal_extent(2));
      if (volumes)
        scores[1] = labels.limit;
      else
        scores.push_back(labels.limit);
      EXPECT_EQ(layout->tensors.back().spec.shape, scores);
    }
  }
}

TEST(Models, TheSmallestImageGoesThroughAndOneLessDoesNot) {
  for (const auto& [name, smallest] :
       {std::pair{"inception_v3", 75}, {"densenet121", 29}, {"squeezenet1_0", 21}, {"squeezenet1_1", 17}}) {
    GivenOptions options{{"image-size", std::to_string(smallest)}};
    if (std::string(name) == "inception_v3") options.push_back({"aux-weight", "0"});
    const auto model = make_model(name, options);
    ASSERT_TRUE(model) << to_string(model.problems());
    const Plan plan = uniform_plan(model->name, model->layer_names(), 1, 1, 1, ScheduleKind::GPipe);
    EXPECT_TRUE(make_layout(*model, plan, 2)) << name;
    options[0].text = std::to_string(smallest - 1);
    const auto refused = make_model(name, options);
    ASSERT_FALSE(refused) << name;
    EXPECT_NE(to_string(refused.problems()).find("needs at least " + std::to_string(smallest) + " pixels"),
              std::string::npos)
        << to_string(refused.problems());
  }
  const auto auxiliary = make_model("inception_v3", {{"image-size", "224"}});
  ASSERT_FALSE(auxiliary);
  EXPECT_NE(to_string(auxiliary.problems()).find("--aux-weight 0 leaves it out"), std::string::npos);
}

TEST(Models, DescriptionsGoTogether) {
  const Problems problems = validate(model_descriptions());
  EXPECT_TRUE(problems.empty()) << to_string(problems);
  for (const ModelDescription& model : model_descriptions())
    EXPECT_TRUE(model.summary.ends_with(".")) << model.name;
}

TEST(Models, UnknownNamesAndOptionsHaveTheNearest) {
  const auto model = make_model("vgg61");
  ASSERT_FALSE(model);
  EXPECT_NE(to_string(model.problems()).find("did you mean 'vgg16'"), std::string::npos);
  const auto other = make_model("vgg16", {{"width", "8"}, {"image-sise", "32"}, {"classes", "ten"}});
  ASSERT_FALSE(other);
  const std::string all = to_string(other.problems());
  for (const char* part :
       {"--width: is not an option of vgg16. Hint: vgg16 takes --classes, --image-size, --dropout",
        "--image-sise: is not an option of vgg16. Hint: did you mean --image-size?",
        "--classes: 'ten' is not an integer"})
    EXPECT_NE(all.find(part), std::string::npos) << all;
}

TEST(Initialise, DependsOnSeedAndNameOnly) {
  const auto specs = make_model("mlp", {{"width", "16"}})->layers[0].layer->parameters();
  EXPECT_TRUE(initialise(specs, 3, "a")[0].equal(initialise(specs, 3, "a")[0]));
  EXPECT_FALSE(initialise(specs, 3, "a")[0].equal(initialise(specs, 3, "b")[0]));
  EXPECT_FALSE(initialise(specs, 3, "a")[0].equal(initialise(specs, 4, "a")[0]));
}

}  // namespace
}  // namespace millrace
