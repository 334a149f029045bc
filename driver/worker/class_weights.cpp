#include "driver/worker/class_weights.h"

#include <algorithm>
#include <functional>
#include <map>

#include "data/files/data_kinds.h"
#include "data/loading/weighed_dataset.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
#include "runtime/layers/soft_cross_entropy.h"
#include "runtime/model/class_weights.h"

namespace millrace {
namespace {

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

}  // namespace

Result<std::vector<double>> parse_class_weights(const std::string& text, const std::string& where) {
  std::vector<double> in_order;
  std::map<std::int64_t, double> by_class;
  int number = 0;
  bool first = true;
  for (const std::string& raw : split(without_mark(text), '\n')) {
    ++number;
    const std::string line = trimmed(raw);
    if (line.empty() || line.front() == '#') continue;
    const Problem odd{where + ":" + std::to_string(number), "'" + escaped(line) + "' is no weight",
                      "one number a line, or class,weight on each"};
    const std::vector<std::string> cells = split(line, ',');
    const auto weight = number_of<double>(trimmed(cells.back()));
    const bool header = first && cells.size() == 2 && !weight;
    first = false;
    if (header) continue;
    if (!weight || cells.size() > 2) return odd;
    if (cells.size() == 1) {
      if (!by_class.empty()) return odd;
      in_order.push_back(*weight);
      continue;
    }
    const auto label = number_of<std::int64_t>(trimmed(cells.front()));
    if (!label || *label < 0 || !in_order.empty()) return odd;
    if (!by_class.emplace(*label, *weight).second)
      return Problem{odd.where, "class " + std::to_string(*label) + " stands twice", "leave one out"};
  }
  for (const auto& [label, weight] : by_class) {
    if (label != static_cast<std::int64_t>(in_order.size()))
      return Problem{where, "has no weight of class " + std::to_string(in_order.size()),
                     "give one for each class, which count from 0"};
    in_order.push_back(weight);
  }
  return in_order;
}

Result<std::vector<double>> balanced_weights(const std::vector<std::int64_t>& labels, std::int64_t classes) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(classes));
  for (const std::int64_t label : labels) {
    if (label >= 0 && label < classes) ++counts[static_cast<std::size_t>(label)];
  }
  std::vector<double> weights;
  for (std::size_t c = 0; c < counts.size(); ++c) {
    if (counts[c] == 0)
      return Problem{"--class-weights", "no sample of the training set has class " + std::to_string(c),
                     "give --classes as the data set has, or a file of weights"};
    weights.push_back(static_cast<double>(labels.size()) /
                      (static_cast<double>(classes) * static_cast<double>(counts[c])));
  }
  return weights;
}

namespace {
Result<std::shared_ptr<const Dataset>> open_set(const LayeredModel& model, const TrainFlags& flags,
                                                const Additions& own, DataSplit split) {
  const Holdout holdout = flags.holdout.value_or(Holdout{});
  return make_dataset({.path = flags.data,
                       .split = split,
                       .fields = model.fields,
                       .seed = flags.data_seed.value_or(flags.options.seed),
                       .dimensions = model.dimensions,
                       .per_step = flags.options.microbatch,
                       .holdout = holdout.share,
                       .holdout_seed = holdout.seed,
                       .augment = flags.augment},
                      own.datasets);
}

Result<std::vector<double>> class_weights_of(const LayeredModel& model, int labels, const TrainFlags& flags,
                                             const Additions& own) {
  if (flags.class_weights != kBalancedClasses) {
    const Result<std::string> text = read_regular_file(flags.class_weights);
    if (!text)
      return Problem{"--class-weights", flags.class_weights + ": " + text.problems().front().what,
                     "give a file with a number a line, or " + std::string(kBalancedClasses)};
    return parse_class_weights(*text, flags.class_weights);
  }
  const auto set = open_set(model, flags, own, DataSplit::Train);
  if (!set) return set.problems();
  return balanced_weights(labels_of(**set, model.fields.size(), labels),
                          model.fields[static_cast<std::size_t>(labels)].limit);
}
}  // namespace

Status apply_class_weights(LayeredModel& model, const TrainFlags& flags, const Additions& own) {
  if (flags.class_weights.empty()) return Ok{};
  const Result<int> labels = labels_to_weigh(model);
  if (!labels) return labels.problems();
  const Result<std::vector<double>> weights = class_weights_of(model, *labels, flags, own);
  if (!weights) return weights.problems();
  return weigh_classes(model, *weights);
}

namespace {
/// Returns whether the loss ignores one of the model's classes.
bool ignores_a_class(const LayeredModel& model, const WeighedLabels& labels) {
  const FieldSpec& field = model.fields[static_cast<std::size_t>(labels.field)];
  for (std::int64_t label = 0; field.shape.empty() && label < field.limit; ++label)
    if (labels.head->weight_of({&label, 1}, {}) == 0) return true;
  return false;
}

/// Returns whether the labels may be any integers. Those of folders of images are classes.
bool may_have_ignored_labels(const LayeredModel& model, const std::string& data, const Additions& own) {
  return rest_of(data, kArrayData) || (rest_of(data, kSyntheticData) && !model.dimensions.empty()) ||
         std::ranges::any_of(own.datasets, [&](const NamedDataset& set) {
           return data == set.name || data.starts_with(set.name + ":");
         });
}

bool holds(const Dataset& set, const LayeredModel& model, const std::string& field, std::int64_t label) {
  const auto found = std::ranges::find(model.fields, field, &FieldSpec::name);
  const auto f = static_cast<std::size_t>(found - model.fields.begin());
  if (found == model.fields.end() || found->form != SampleForm::Tensors) return false;
  std::vector<char> wanted(model.fields.size(), 0);
  wanted[f] = 1;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const FieldValue value = std::move(set.get(i, 0, wanted)[f]);
    if (value.tensor.defined() ? value.tensor.eq(label).any().item<bool>() : value.number == label)
      return true;
  }
  return false;
}
}  // namespace

void apply_ignored_labels(LayeredModel& model, const TrainFlags& flags, const Additions& own) {
  const WeighedLabels labels = weighed_labels(model);
  if (!labels.head || !model.counts.empty() ||
      (!may_have_ignored_labels(model, flags.data, own) && !ignores_a_class(model, labels)))
    return;
  for (const DataSplit split : {DataSplit::Train, DataSplit::Test}) {
    const auto set = open_set(model, flags, own, split);
    if (!set || !*set) continue;  // problems are reported where the set is read from
    const std::vector<std::int64_t> weights = weights_of(**set, model.fields.size(), labels);
    if (std::ranges::adjacent_find(weights, std::not_equal_to{}) == weights.end()) continue;
    return count_labels(model);
  }
}

std::string note_on_ignored_labels(const LayeredModel& model, const std::string& data, const Additions& own,
                                   const Dataset& set) {
  if (weighed_labels(model).head) return {};
  const auto note = [&](const IgnoredLabels& labels, const std::string& where) {
    return model.name + " ignores the labels of " + std::to_string(labels.label) + where +
           ", and its graph does not say how many count: a microbatch weighs as its samples, so the loss "
           "depends "
           "on --microbatch (docs/pytorch-models.md)";
  };
  for (const NamedHead& head : model.heads) {
    const auto* ignores = dynamic_cast<const IgnoresLabels*>(head.head.get());
    if (!ignores) continue;
    for (const IgnoredLabels& labels : ignores->ignored()) {
      if (labels.made) return note(labels, " that its graph makes");
      for (const std::string& field : labels.fields)
        if (may_have_ignored_labels(model, data, own) && holds(set, model, field, labels.label))
          return note(labels, " in " + field);
    }
  }
  return {};
}

}  // namespace millrace
