#include "models/translate/gnmt_stages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "runtime/base/check.h"

namespace millrace {
namespace {

// Positions of a usual sentence, on which the work of attention depends.
constexpr double kPositions = 25;
// The cost of tanh, and that of choosing a word for each token of the vocabulary, in multiply-adds.
constexpr double kTanh = 16, kRanking = 32;

bool decodes(const NamedLayer& layer) {
  return layer.name.starts_with(kGnmtDecoder);
}

std::map<std::string, int> stage_of_layers(const GnmtStages& stages) {
  std::map<std::string, int> places;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const std::string& layer : stages[s]) places[layer] = static_cast<int>(s);
  }
  return places;
}

/// Returns the multiply-adds of a layer for one position of a sentence.
double work_of(const NamedLayer& layer, int beam) {
  if (layer.layer->kind() == "embedding") return 0;
  double weights = 0;
  for (const ParameterSpec& spec : layer.layer->parameters()) {
    if (spec.shape.size() == 2) weights += static_cast<double>(spec.shape[0] * spec.shape[1]);
  }
  if (!decodes(layer)) return weights;
  if (layer.name == kGnmtAttention) {
    const auto features = static_cast<double>(layer.layer->parameters().front().shape[0]);
    return weights / 2 * (beam + 1) + beam * kPositions * features * (kTanh + 2);
  }
  if (layer.name == kGnmtClassifier)
    weights += kRanking * static_cast<double>(layer.layer->parameters().front().shape[0]);
  return weights * beam;
}

/// Returns the features, the last dimension, of each tensor by name.
std::map<std::string, std::int64_t> features_of(const LayeredModel& model) {
  std::map<std::string, Shape> shapes;
  for (const FieldSpec& field : model.fields) shapes[field.name] = {1, 1};
  std::map<std::string, std::int64_t> features;
  for (const NamedLayer& layer : model.layers) {
    std::vector<Shape> inputs;
    for (const std::string& input : layer.inputs) inputs.push_back(shapes.at(input));
    features[layer.name] = (shapes[layer.name] = layer.layer->output_shape(inputs)).back();
  }
  return features;
}

}  // namespace

Result<GnmtStages> gnmt_stages(const LayeredModel& model, const Plan& plan, const std::string& file) {
  std::map<std::string, int> planned;
  for (int s = 0; s < plan.num_stages(); ++s) {
    for (const std::string& layer : plan.stages[s].layers) planned[layer] = s;
  }
  GnmtStages stages(plan.stages.size());
  Problems problems;
  for (const NamedLayer& layer : model.layers) {
    const auto place = planned.find(layer.name);
    if (place == planned.end()) {
      problems.push_back({file, "no stage has layer " + layer.name,
                          "give a plan of the model that was trained, or --stages"});
      continue;
    }
    for (const std::string& input : layer.inputs) {
      const auto before = planned.find(input);
      if (before == planned.end() || before->second <= place->second) continue;
      problems.push_back({file,
                          "layer " + layer.name + " is in stage " + std::to_string(place->second) +
                              " and reads " + input + " of stage " + std::to_string(before->second),
                          "stages read from those before them"});
    }
    stages[place->second].push_back(layer.name);
  }
  if (problems.empty() && (stages.back().empty() || stages.back().back() != kGnmtClassifier))
    problems.push_back({file, "the last stage is without " + std::string(kGnmtClassifier),
                        "words are chosen in the last stage"});
  if (!problems.empty()) return problems;
  return stages;
}

Result<GnmtStages> even_gnmt_stages(const LayeredModel& model, int stages, int beam) {
  const std::size_t layers = model.layers.size(), count = static_cast<std::size_t>(stages);
  if (count > layers)
    return Problem{"--stages",
                   std::to_string(stages) + " of a model of " + std::to_string(layers) + " layers",
                   "give at most as many"};
  std::vector<double> until{0};  // [n]: work of the first n layers
  for (const NamedLayer& layer : model.layers) until.push_back(until.back() + work_of(layer, beam));
  // least[s][n] is the most work of a stage if the first n layers are cut into s stages as evenly as
  // possible. begin[s][n] is the first layer of the last of these stages.
  const double none = std::numeric_limits<double>::infinity();
  std::vector least(count + 1, std::vector<double>(layers + 1, none));
  std::vector begin(count + 1, std::vector<std::size_t>(layers + 1, 0));
  least[0][0] = 0;
  for (std::size_t s = 1; s <= count; ++s) {
    for (std::size_t n = s; n <= layers; ++n) {
      for (std::size_t first = s - 1; first < n; ++first) {
        const double most = std::max(least[s - 1][first], until[n] - until[first]);
        if (most < least[s][n]) least[s][n] = most, begin[s][n] = first;
      }
    }
  }
  GnmtStages cut(count);
  std::size_t end = layers;
  for (std::size_t s = count; s > 0; --s) {
    for (std::size_t i = begin[s][end]; i < end; ++i) cut[s - 1].push_back(model.layers[i].name);
    end = begin[s][end];
  }
  return cut;
}

std::vector<GnmtCrossing> gnmt_crossings(const LayeredModel& model, const GnmtStages& stages) {
  const std::map<std::string, int> stage = stage_of_layers(stages);
  const std::map<std::string, std::int64_t> features = features_of(model);
  std::vector<GnmtCrossing> crossings;
  const auto add = [&](const GnmtCrossing& crossing) {
    const bool there = std::ranges::any_of(crossings, [&](const GnmtCrossing& other) {
      return other.tensor == crossing.tensor && other.to == crossing.to;
    });
    if (crossing.from != crossing.to && !there) crossings.push_back(crossing);
  };
  using When = GnmtCrossing::When;
  for (const NamedLayer& layer : model.layers) {
    for (const std::string& input : layer.inputs) {
      const auto made = stage.find(input);
      if (made == stage.end()) continue;  // the input is a field
      add({.tensor = input,
           .from = made->second,
           .to = stage.at(layer.name),
           .when = input.starts_with(kGnmtDecoder) ? When::Decoding : When::Encoding,
           .features = features.at(input)});
    }
  }
  add({.tensor = kGnmtLooks,
       .from = stage.at(kGnmtAttention),
       .to = static_cast<int>(stages.size()) - 1,
       .when = When::Looking});
  return crossings;
}

}  // namespace millrace
