#include "data/files/augmentation.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

struct Number {
  std::string_view name;
  double usual, least, most;
};

struct Row {
  Augmentation kind;
  std::string_view name;
  std::vector<Number> numbers;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {Augmentation::RandomResizedCrop,
       "random-resized-crop",
       {{"LEAST", 0.08, 0.001, 1}, {"MOST", 1, 0.001, 1}}},
      {Augmentation::RandomCrop, "random-crop", {{"PADDING", 4, 0, 1024}}},
      {Augmentation::RandomHorizontalFlip, "random-horizontal-flip", {{"P", 0.5, 0, 1}}},
      {Augmentation::ColorJitter,
       "color-jitter",
       {{"BRIGHTNESS", 0.4, 0, 100},
        {"CONTRAST", 0.4, 0, 100},
        {"SATURATION", 0.4, 0, 100},
        {"HUE", 0.1, 0, 0.5}}},
      {Augmentation::RandAugment, "rand-augment", {{"OPERATIONS", 2, 0, 100}, {"MAGNITUDE", 9, 0, 30}}},
      {Augmentation::Mixup, "mixup", {{"ALPHA", 0.2, 0.001, 1000}}}};
  return all;
}

std::string form_of(const Row& row) {
  std::string form(row.name);
  for (const Number& number : row.numbers) form += "[:" + std::string(number.name);
  return form + std::string(row.numbers.size(), ']');
}

Result<AugmentStep> step_from(const std::string& word) {
  const std::vector<std::string> parts = split(word, ':');
  const auto row = std::ranges::find(rows(), parts.front(), &Row::name);
  if (row == rows().end()) {
    std::vector<std::string> names;
    std::string all = "none";  // which stands alone
    for (const Row& known : rows()) all += ", " + names.emplace_back(known.name);
    const auto near = nearest_name(parts.front(), names);
    return Problem{"", "unknown augmentation '" + parts.front() + "'",
                   near ? "did you mean '" + *near + "'?" : "one of: " + all};
  }
  if (parts.size() > row->numbers.size() + 1)
    return Problem{"", "'" + word + "' has too many numbers", "its form is " + form_of(*row)};
  AugmentStep step{.kind = row->kind, .numbers = {}};
  for (std::size_t i = 0; i < row->numbers.size(); ++i) {
    const Number& number = row->numbers[i];
    const auto value = i + 1 < parts.size() ? number_of<double>(parts[i + 1]) : number.usual;
    if (!value || !(*value >= number.least && *value <= number.most))
      return Problem{"", "'" + parts[i + 1] + "' is no " + std::string(number.name) + " of " + parts.front(),
                     printed("a number from %g to %g", number.least, number.most)};
    step.numbers.push_back(*value);
  }
  if (step.kind == Augmentation::RandomResizedCrop && step.numbers[0] > step.numbers[1])
    return Problem{"", "'" + word + "' has its least above its most", "its form is " + form_of(*row)};
  const bool counts = step.kind == Augmentation::RandomCrop || step.kind == Augmentation::RandAugment;
  if (counts && std::ranges::any_of(step.numbers, [](double n) { return n != static_cast<int>(n); }))
    return Problem{"", "'" + word + "' needs whole numbers", "its form is " + form_of(*row)};
  return step;
}

}  // namespace

Result<std::vector<AugmentStep>> augment_steps_from(std::string_view text) {
  std::vector<AugmentStep> steps;
  if (text == "none") return steps;
  for (const std::string& word : split(text, ',')) {
    const Result<AugmentStep> step = step_from(word);
    if (!step) return step.problems();
    if (std::ranges::find(steps, step->kind, &AugmentStep::kind) != steps.end())
      return Problem{"", "'" + word + "' comes twice", "name each step once"};
    steps.push_back(*step);
  }
  return steps;
}

const AugmentStep* find_step(const std::vector<AugmentStep>& steps, Augmentation kind) {
  const auto found = std::ranges::find(steps, kind, &AugmentStep::kind);
  return found == steps.end() ? nullptr : &*found;
}

std::string augment_forms() {
  std::string forms;
  for (const Row& row : rows()) {
    forms += (forms.empty() ? "" : "; ") + form_of(row) + " (";
    for (std::size_t i = 0; i < row.numbers.size(); ++i)
      forms += (i ? ":" : "") + printed("%g", row.numbers[i].usual);
    forms += ")";
  }
  return forms;
}

}  // namespace millrace
