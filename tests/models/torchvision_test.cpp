// torchvision's own models: the same names and shapes, and from the same weights the same gradients and
// statistics.
#include <cstdlib>

#include "models/registry.h"
#include "runtime/base/json.h"
#include "tests/models/one_step.h"

namespace millrace {
namespace {

class Torchvision : public OneStep {
 protected:
  void write_state_dicts() {
    Json all = Json::object();
    for (const std::string& name : model_names()) {
      const LayeredModel model = *make_model(name);
      if (!model.field("target") || model.fields.front().shape.size() != 3)
        continue;  // the model does not read images
      Json& shapes = all[name] = Json::object();
      for (const NamedLayer& layer : model.layers) {
        for (const ParameterSpec& spec : layer.layer->parameters()) {
          Json shape = Json::array();
          for (const std::int64_t d : spec.shape) shape.push_back(d);
          shapes.append_member(layer.name + "." + spec.name, std::move(shape));
        }
      }
    }
    ASSERT_TRUE(write_file_atomically(folder_ / "state_dicts.json", all.dump()));
  }

  void write_step(const std::string& name, GivenOptions given) {
    for (const auto& [option, text] : {std::pair{"classes", "7"}, {"dropout", "0"}})
      given.push_back({.name = option, .text = text});
    const auto model = make_model(name, given);
    ASSERT_TRUE(model) << to_string(model.problems());
    OneStep::write_step(name, *model);
  }
};

TEST_F(Torchvision, HasTheSameNamesAndGradients) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python || !*python) GTEST_SKIP() << "tests/reference/install makes it";
  write_state_dicts();
  const std::pair<const char*, GivenOptions> models[] = {
      {"resnet18", {{"image-size", "65"}}},
      {"resnext50_32x4d", {{"image-size", "65"}}},
      {"densenet121", {{"image-size", "32"}}},
      {"squeezenet1_0", {{"image-size", "47"}}},
      {"squeezenet1_1", {{"image-size", "40"}}},
      {"inception_v3", {{"image-size", "75"}, {"aux-weight", "0"}}},
      {"mobilenet_v2", {{"image-size", "33"}}},
      {"mobilenet_v3_large", {{"image-size", "40"}}},
      {"mobilenet_v3_small", {{"image-size", "40"}}}};
  for (const auto& [name, given] : models) write_step(name, given);
  const std::string command = std::string(python) +
                              " " MILLRACE_SOURCE_DIR "/tests/reference/torchvision_models.py " +
                              folder_.string();
  EXPECT_EQ(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace millrace
