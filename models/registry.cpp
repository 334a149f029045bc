#include "models/registry.h"

#include <algorithm>

#include "models/exported/exported_model.h"
#include "models/model.h"
#include "runtime/base/numbers.h"

// One line for each file. The file's function is called `FILE_models`.
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
  FILE(transformer_lm)             \
  FILE(awd_lstm)                   \
  FILE(s2vt)                       \
  FILE(pointnet)                   \
  FILE(dcgan)                      \
  FILE(autoencoder)                \
  FILE(unet3d)                     \
  FILE(dlrm)

namespace millrace {

#define DECLARE(FILE) std::vector<Model> FILE##_models();
MILLRACE_MODEL_FILES(DECLARE)
#undef DECLARE

namespace {

std::vector<Model> all_models(const std::vector<Model>& own = {}) {
  std::vector<Model> all;
#define APPEND(FILE) \
  for (Model & model : FILE##_models()) all.push_back(std::move(model));
  MILLRACE_MODEL_FILES(APPEND)
#undef APPEND
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

constexpr int kEveryCall = 64;

ModelDescription exported_description() {
  ModelOption eager_difference =
      choice_option("eager-difference", "refuse", {"refuse", "warn"},
                    "What to do with an archive whose graph takes another step than eager PyTorch "
                    "did, where it holds one (docs/pytorch-models.md).");
  eager_difference.of_gradients = true;
  return {
      .name = kExportedModels,
      .summary = "A model exported by PyTorch, any file of that ending (docs/pytorch-models.md).",
      .options = {choice_option("head", "auto", {"auto", "loss", "cross-entropy", "mean-squared-error"},
                                "How it ends: a loss computed inside, or a head on its scores; auto: the "
                                "first that fits. cross-entropy counts top1 and top5 also where the model "
                                "ends in F.cross_entropy(scores, labels)."),
                  integer_option("granularity", -1, {-1, kEveryCall},
                                 "How deep into its modules layers are cut, 0: one layer, 64: every call is "
                                 "one, -1: the least depth with 16 layers.",
                                 "DEPTH"),
                  std::move(eager_difference)}};
}

ExportedOptions exported_options(const ModelOptions& options) {
  const std::int64_t depth = options.integer("granularity");
  return {.head = options.text("head"),
          .granularity = depth < 0             ? "auto"
                         : depth == kEveryCall ? "call"
                                               : std::to_string(depth)};
}

constexpr std::string_view kStem = "stem";

/// Returns whether the model is one with stem_option(), and not one of a user's own with an option of that
/// name.
bool has_stem(const ModelDescription& model) {
  const ModelOption *stem = model.find(kStem), own = stem_option();
  return stem && stem->value == own.value && model.find("image-size");
}

ModelOptions with_automatic_stem(const ModelDescription& model, GivenOptions given) {
  std::erase_if(given, [](const GivenOption& option) { return option.name == kStem; });
  return *options_for(model, given);
}

}  // namespace

std::vector<ModelDescription> model_descriptions(const std::vector<Model>& own) {
  std::vector<ModelDescription> descriptions;
  for (Model& model : all_models(own)) descriptions.push_back(std::move(model.description));
  descriptions.push_back(exported_description());
  return descriptions;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelDescription& model : model_descriptions()) {
    if (model.name != kExportedModels) names.push_back(model.name);
  }
  return names;
}

Result<LayeredModel> make_model(const std::string& name, const GivenOptions& given,
                                const std::vector<Model>& own) {
  if (is_exported_model(name)) {
    const Result<ModelOptions> options = options_for(exported_description(), given);
    if (!options) return options.problems();
    return make_exported_model(name, exported_options(*options));
  }
  const std::vector<Model> models = all_models(own);
  const auto found = std::ranges::find(models, name, [](const Model& m) { return m.description.name; });
  if (found == models.end()) return find_model(model_descriptions(own), name).problems();
  const Result<ModelOptions> options = options_for(found->description, given);
  if (!options) return options.problems();
  return found->make(*options);
}

std::vector<std::pair<std::string, std::string>> recorded_options(const std::string& name,
                                                                  const GivenOptions& given,
                                                                  const std::vector<Model>& own) {
  const ModelDescription model = *find_model(model_descriptions(own), name);
  const ModelOptions options = *options_for(model, given);
  auto values = recorded_values(model, options);
  // Checkpoints of versions whose image models had no smoothing can be resumed: 0 is not recorded there.
  constexpr std::string_view kSmoothing = "label-smoothing";
  const ModelOption* smoothing = model.find(kSmoothing);
  if (smoothing && number_of<double>(smoothing->fallback) == 0) {
    std::erase_if(values, [&](const auto& value) {
      return value.first == kSmoothing && number_of<double>(value.second) == 0;
    });
  }
  // Versions before took the stem that goes with the image's size, which is not recorded.
  if (has_stem(model)) {
    const std::string stem = stem_of(options);
    std::erase_if(values, [&](auto& value) {
      if (value.first != kStem) return false;
      value.second = stem;
      return stem == stem_of(with_automatic_stem(model, given));
    });
  }
  return values;
}

std::string chosen_form(const std::string& name, const GivenOptions& given, const std::vector<Model>& own) {
  const ModelDescription model = *find_model(model_descriptions(own), name);
  return has_stem(model) ? "stem " + stem_of(*options_for(model, given)) : "";
}

}  // namespace millrace
