#include "models/registry.h"

#include <algorithm>

#include "models/model.h"

// One line a file: what it is called here is the name of its function, `FILE_models`.
#define MILLRACE_MODEL_FILES(FILE) \
  FILE(mlp)                        \
  FILE(vgg16)                      \
  FILE(alexnet)                    \
  FILE(resnet)                     \
  FILE(densenet)                   \
  FILE(squeezenet)                 \
  FILE(inception)                  \
  FILE(mobilenet_v2)               \
  FILE(mobilenet_v3)               \
  FILE(gnmt)                       \
  FILE(bert)                       \
  FILE(transformer_lm)

namespace millrace {

#define DECLARE(FILE) std::vector<Model> FILE##_models();
MILLRACE_MODEL_FILES(DECLARE)
#undef DECLARE

namespace {

std::vector<Model> all_models() {
  std::vector<Model> all;
#define APPEND(FILE) \
  for (Model & model : FILE##_models()) all.push_back(std::move(model));
  MILLRACE_MODEL_FILES(APPEND)
#undef APPEND
  return all;
}

}  // namespace

std::vector<ModelDescription> model_descriptions() {
  std::vector<ModelDescription> descriptions;
  for (Model& model : all_models()) descriptions.push_back(std::move(model.description));
  return descriptions;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelDescription& model : model_descriptions()) names.push_back(model.name);
  return names;
}

Result<LayeredModel> make_model(const std::string& name, const GivenOptions& given) {
  const std::vector<Model> models = all_models();
  const auto found = std::ranges::find(models, name, [](const Model& m) { return m.description.name; });
  if (found == models.end()) return find_model(model_descriptions(), name).problems();
  const Result<ModelOptions> options = options_for(found->description, given);
  if (!options) return options.problems();
  return found->make(*options);
}

std::vector<std::pair<std::string, std::string>> recorded_options(const std::string& name,
                                                                  const GivenOptions& given) {
  const ModelDescription model = *find_model(model_descriptions(), name);
  return recorded_values(model, *options_for(model, given));
}

}  // namespace millrace
