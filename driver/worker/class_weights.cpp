#include "driver/worker/class_weights.h"

#include <map>

#include "data/loading/weighed_dataset.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
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
Result<std::vector<double>> weights_of(const LayeredModel& model, int labels, const TrainFlags& flags,
                                       const Additions& own) {
  if (flags.class_weights != kBalancedClasses) {
    const Result<std::string> text = read_regular_file(flags.class_weights);
    if (!text)
      return Problem{"--class-weights", flags.class_weights + ": " + text.problems().front().what,
                     "give a file with a number a line, or " + std::string(kBalancedClasses)};
    return parse_class_weights(*text, flags.class_weights);
  }
  const Holdout holdout = flags.holdout.value_or(Holdout{});
  const auto set = make_dataset({.path = flags.data,
                                 .fields = model.fields,
                                 .seed = flags.data_seed.value_or(flags.options.seed),
                                 .dimensions = model.dimensions,
                                 .per_step = flags.options.microbatch,
                                 .holdout = holdout.share,
                                 .holdout_seed = holdout.seed,
                                 .augment = flags.augment},
                                own.datasets);
  if (!set) return set.problems();
  return balanced_weights(labels_of(**set, model.fields.size(), labels),
                          model.fields[static_cast<std::size_t>(labels)].limit);
}
}  // namespace

Status apply_class_weights(LayeredModel& model, const TrainFlags& flags, const Additions& own) {
  if (flags.class_weights.empty()) return Ok{};
  const Result<int> labels = labels_to_weigh(model);
  if (!labels) return labels.problems();
  const Result<std::vector<double>> weights = weights_of(model, *labels, flags, own);
  if (!weights) return weights.problems();
  return weigh_classes(model, *weights);
}

}  // namespace millrace
