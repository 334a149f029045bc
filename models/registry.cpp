#include "models/registry.h"

#include <functional>
#include <utility>

#include "models/models.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using Make = std::function<Result<LayeredModel>(const ModelOptions&)>;

const std::vector<std::pair<std::string, Make>>& table() {
  static const std::vector<std::pair<std::string, Make>> models{
      {"mlp", make_mlp},
      {"vgg16", [](const ModelOptions& o) { return make_vgg16(o, false); }},
      {"vgg16_bn", [](const ModelOptions& o) { return make_vgg16(o, true); }},
      {"alexnet", make_alexnet},
      {"resnet18", [](const ModelOptions& o) { return make_resnet("resnet18", o); }},
      {"resnet50", [](const ModelOptions& o) { return make_resnet("resnet50", o); }},
  };
  return models;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : table()) names.push_back(name);
  return names;
}

Result<LayeredModel> make_model(const std::string& name, const ModelOptions& options) {
  for (const auto& [known, make] : table()) {
    if (known == name) return make(options);
  }
  const auto names = model_names();
  const auto near = nearest_name(name, names);
  std::string all;
  for (const std::string& n : names) all += (all.empty() ? "" : ", ") + n;
  return Problem{"--model", "unknown model '" + name + "'",
                 near ? "did you mean '" + *near + "'? Known: " + all : "known: " + all};
}

}  // namespace millrace
