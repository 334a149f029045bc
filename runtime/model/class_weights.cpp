#include "runtime/model/class_weights.h"

#include <algorithm>
#include <cmath>

#include "runtime/layers/soft_cross_entropy.h"
#include "runtime/model/layered_model.h"

namespace millrace {

Result<int> labels_to_weigh(const LayeredModel& model) {
  const Problem refused{"--class-weights",
                        "weighs the classes of models that end in cross-entropy of one label for each "
                        "sample, not of " +
                            model.name,
                        "leave it out; an exported model that ends in scores, or in their "
                        "cross-entropy, takes --head cross-entropy"};
  int labels = -1;
  for (const NamedHead& head : model.heads) {
    const bool fits = head.inputs.size() == 2 && with_class_weights(*head.head, {1});
    const auto field = std::ranges::find(model.fields, fits ? head.inputs[1] : "", &FieldSpec::name);
    if (field == model.fields.end() || !field->shape.empty() || field->limit < 1) return refused;
    const int own = static_cast<int>(field - model.fields.begin());
    if (labels >= 0 && own != labels) return refused;
    labels = own;
  }
  if (labels < 0 || !model.turns.empty() || model.jobs() > 1) return refused;
  return labels;
}

Status weigh_classes(LayeredModel& model, std::span<const double> weights) {
  const Result<int> labels = labels_to_weigh(model);
  if (!labels) return labels.problems();
  const std::int64_t classes = model.fields[static_cast<std::size_t>(*labels)].limit;
  const char* form = "give a number of at least zero for each class, in the order of the classes";
  if (static_cast<std::int64_t>(weights.size()) != classes)
    return Problem{"--class-weights",
                   "there are " + std::to_string(weights.size()) + " weights, and the model has " +
                       std::to_string(classes) + " classes",
                   form};
  for (std::size_t c = 0; c < weights.size(); ++c) {
    if (!std::isfinite(static_cast<float>(weights[c])) || weights[c] < 0)
      return Problem{"--class-weights",
                     "the weight of class " + std::to_string(c) +
                         (weights[c] < 0 ? " is negative" : " is no finite number of float32"),
                     form};
  }
  if (std::ranges::none_of(weights, [](double w) { return static_cast<float>(w) > 0; }))
    return Problem{"--class-weights", "all weights are zero", form};
  const std::vector<std::int64_t> units = units_of_weights(weights);
  for (NamedHead& head : model.heads) head.head = with_class_weights(*head.head, units);
  model.counts.emplace_back(kClassUnits);
  return Ok{};
}

WeighedLabels weighed_labels(const LayeredModel& model) {
  for (const NamedHead& head : model.heads) {
    auto weighs = std::dynamic_pointer_cast<const WeighsLabels>(head.head);
    if (!weighs) continue;
    const auto field = std::ranges::find(model.fields, head.inputs.back(), &FieldSpec::name);
    const auto count = std::ranges::find(model.counts, head.head->weight());
    return {.field = static_cast<int>(field - model.fields.begin()),
            .count = static_cast<int>(count - model.counts.begin()),
            .classes = field->limit,
            .head = std::move(weighs)};
  }
  return {};
}

void count_labels(LayeredModel& model) {
  for (NamedHead& head : model.heads) {
    const auto* weighs = dynamic_cast<const WeighsLabels*>(head.head.get());
    if (weighs && head.head->weight() == "samples") head.head = weighs->counting_labels();
  }
  model.counts.emplace_back(kCountedLabels);
}

}  // namespace millrace
